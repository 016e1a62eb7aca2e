"""A reader that is slow, but not stuck, on a catch-up tail that others share: they go on without it (rule 12).

It takes a frame every twenty seconds, so nobody would ever call it too slow.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from random import Random

import msgspec

from feedsvc.core.limits import Limits
from tests.runtime.scripted import ScriptedSource, heard, in_virtual_time, insert, subscribed
from tests.runtime.world import DATABASE, Peer, World, running
from tests.simulation.virtual_time import WorkingClock

EVENTS = 300
LIMITS = msgspec.structs.replace(Limits(), ring_records=50, high_water_bytes=100, max_age_s=1e9)
OTHER = "app_globex"


@contextlib.asynccontextmanager
async def world_with_a_past(limits: Limits = LIMITS) -> AsyncIterator[tuple[World, str, str]]:
    """An old token of the first tenant, and one of the second behind all its events that the live tail has just
    forgotten."""
    clock = WorkingClock(asyncio.get_running_loop(), Random(0), 0.0)
    async with running(limits, source=ScriptedSource, level="deployment", clock=clock) as world:
        world.oplog.create(DATABASE, "orders")
        world.oplog.create(OTHER, "orders")
        world.source.max_records = 10
        first = await subscribed(world, "orders")
        insert(world, 0)
        old = (await heard(first, "event"))["event"]["_id"]
        for number in range(1, EVENTS):
            insert(world, number)
        second = await world.signed_in("other-tenant")
        second.subscribe("orders")
        await heard(second, "subscribed")
        await heard(second, "live")
        world.oplog.insert(OTHER, "orders", {"_id": 1})
        recent = (await heard(second, "event"))["event"]["_id"]
        world.oplog.insert(OTHER, "orders", {"_id": 2})
        await heard(second, "event")
        for feed in world.hub.feeds.values():
            assert feed.placement.live is not None
            feed.placement.live.ring.trim(0)
        yield world, old, recent


@contextlib.asynccontextmanager
async def dribbling(world: World, token: str) -> AsyncIterator[Peer]:
    """A client that resumes far back and takes one frame every twenty seconds."""
    slow = await world.signed_in()
    slow.connection.set_room(1)
    slow.subscribe("orders", resumeAfter=token)

    async def dribble() -> None:
        while True:
            slow.connection.set_room(1)
            await asyncio.sleep(20)

    taking = asyncio.create_task(dribble())
    await asyncio.sleep(30)
    assert world.hub.feeds
    try:
        yield slow
    finally:
        taking.cancel()


async def numbers(peer: Peer, count: int) -> list[int]:
    got = [await heard(peer, "event", before=("subscribed", "live")) for _ in range(count)]
    return [frame["event"]["documentKey"]["_id"] for frame in got]


@in_virtual_time
async def test_a_client_of_another_tenant_waits_only_seconds_for_it() -> None:
    async with world_with_a_past() as (world, old, recent), dribbling(world, old) as slow:
        began_s = asyncio.get_running_loop().time()
        quick = await world.signed_in("other-tenant")
        quick.subscribe("orders", resumeAfter=recent)
        assert (await heard(quick, "subscribed"))["resumed"] is True
        assert await numbers(quick, 1) == [2]
        assert asyncio.get_running_loop().time() - began_s < 15
        assert slow.connection.closed is None


@in_virtual_time
async def test_a_quick_client_of_the_same_topic_gets_everything_meanwhile_and_so_does_the_slow_one() -> None:
    async with world_with_a_past() as (world, old, _):
        quick = await world.signed_in()
        quick.subscribe("orders", resumeAfter=old)
        async with dribbling(world, old) as slow:
            assert await numbers(quick, EVENTS - 1) == list(range(1, EVENTS))
            slow.connection.set_room(None)
            assert await numbers(slow, EVENTS - 1) == list(range(1, EVENTS))
            assert slow.connection.closed is None


@in_virtual_time
async def test_one_that_holds_up_nobody_keeps_its_stream() -> None:
    async with world_with_a_past() as (world, old, _), dribbling(world, old):
        source = world.source
        assert isinstance(source, ScriptedSource)
        opened = len(source.openings)
        await asyncio.sleep(600)
        assert len(source.openings) == opened


@in_virtual_time
async def test_the_only_slot_goes_round() -> None:
    """Whoever waits for a slot that a slow reader has gets it within its turn, also from behind that tail."""
    limits = msgspec.structs.replace(LIMITS, catch_up_tails=1)
    async with world_with_a_past(limits) as (world, old, _), dribbling(world, old) as slow:
        for _ in range(60):  # until the oldest position is before what the slow one's tail still has
            await asyncio.sleep(20)
        late = await world.signed_in()
        began_s = asyncio.get_running_loop().time()
        late.subscribe("orders", resumeAfter=old)
        assert await numbers(late, EVENTS - 1) == list(range(1, EVENTS))
        assert asyncio.get_running_loop().time() - began_s < 180
        slow.connection.set_room(None)
        assert await numbers(slow, EVENTS - 1) == list(range(1, EVENTS))
