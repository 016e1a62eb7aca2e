"""The room of one connection, which its subscriptions share."""

from __future__ import annotations

import asyncio
from random import Random

from feedsvc.core.limits import Limits
from tests.runtime.scripted import (
    ScriptedSource,
    heard,
    in_virtual_time,
    insert,
    subscribed,
)
from tests.runtime.world import DATABASE, running
from tests.simulation.virtual_time import WorkingClock

COLLECTIONS = ("orders", "users")
MISSED = 100


@in_virtual_time
async def test_replays_of_one_connection_take_turns() -> None:
    """A client that reads a frame each second, without a pause, resumes two topics: each has a tail of its own, which
    is full all the time. None of them is left for so long that the client counts as slow."""
    clock = WorkingClock(asyncio.get_running_loop(), Random(0), 0.0)
    limits = Limits(ring_records=10, high_water_bytes=100)
    async with running(limits, source=ScriptedSource, level="collection", clock=clock) as world:
        world.source.max_records = 10
        tokens = {}
        for collection in COLLECTIONS:
            world.oplog.create(DATABASE, collection)
            peer = await subscribed(world, collection)
            insert(world, 0, collection)
            tokens[collection] = (await heard(peer, "event"))["event"]["_id"]
        for number in range(1, 1 + MISSED):
            for collection in COLLECTIONS:
                insert(world, number, collection)
        await world.read_all()
        for feed in world.hub.feeds.values():
            assert feed.placement.live is not None
            feed.placement.live.ring.trim(0)
        peer = await world.signed_in(room=1)
        for collection in COLLECTIONS:
            peer.subscribe(collection, id=collection, resumeAfter=tokens[collection])
        topics: dict[str, list[int]] = {}
        for _ in range(2 * MISSED + 50):
            peer.connection.set_room(1)
            await asyncio.sleep(1)
            assert peer.connection.closed is None
            for frame in peer.take():
                if frame["type"] == "event":
                    topics.setdefault(frame["topic"], []).append(frame["event"]["documentKey"]["_id"])
        assert list(topics.values()) == [list(range(1, 1 + MISSED))] * len(COLLECTIONS)
