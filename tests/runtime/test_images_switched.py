"""A collection's images are switched while clients hold topics of it: what they are told, and that nothing is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from feedsvc.runtime import image_modes, tail
from feedsvc.runtime.hub import Listener
from feedsvc.runtime.image_modes import IMAGES_FRESH_S
from feedsvc.runtime.pulse import BEAT_S
from feedsvc.testing import MemoryOplog, MemorySource
from tests.runtime.world import DATABASE, Peer, World, running, until
from tests.support.frames import Frame


@pytest.fixture(autouse=True)
def short_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_modes, "WAIT_S", 0.001)


def switch(world: World, collection: str, *, images: bool) -> None:
    world.oplog.create(DATABASE, collection, images=images)


def insert(world: World, number: int, collection: str, **fields: Any) -> None:
    world.oplog.insert(DATABASE, collection, {"_id": number, **fields})


def update(world: World, number: int, collection: str, **fields: Any) -> None:
    world.oplog.update(DATABASE, collection, number, fields)


async def frames_until(peer: Peer, type: str) -> list[Frame]:
    """What comes up to a frame of this type; no heartbeats, which come because time jumps."""
    frames: list[Frame] = []
    while not frames or frames[-1]["type"] != type:
        await until(lambda: len(peer.connection.frames) > peer._read)
        frame = peer.take_one()
        if frame is not None and frame["type"] != "heartbeat":
            frames.append(frame)
    return frames


async def subscribed(peer: Peer, collection: str, **fields: Any) -> Frame:
    """Subscribe, and wait until the subscription is live."""
    peer.subscribe(collection, **fields)
    (answer, _) = await frames_until(peer, "live")
    return answer


def told(frames: list[Frame]) -> list[tuple[Any, ...]]:
    return [
        (frame["event"]["documentKey"]["_id"], frame["event"].get("membership"))
        if frame["type"] == "event"
        else (frame["type"],)
        for frame in frames
    ]


def last_token(frames: list[Frame], topic: str) -> str:
    """What a client would resume with."""
    tokens = [
        frame["tokens"][topic]
        if frame["type"] == "checkpoint"
        else frame["event"]["_id"]
        if frame["type"] == "event"
        else frame["token"]
        for frame in frames
        if frame["type"] in ("checkpoint", "event", "resync", "subscribed")
    ]
    assert isinstance(tokens[-1], str)
    return tokens[-1]


@pytest.mark.parametrize("collection", ["orders", "shared"])
async def test_switching_on_loses_nothing(collection: str) -> None:
    """The client is ended where it stands, behind all that has no pre-image, and goes on from there as exact."""
    async with running() as world:
        switch(world, collection, images=False)
        for number in (1, 2, 3):
            insert(world, number, collection, owner="a" if number < 3 else "b")
        peer = await world.signed_in()
        first = await subscribed(peer, collection, topic={"filter": {"_id": {"$gt": 0}}})
        assert first["fidelity"] == {"membership": "partial", "deletes": collection == "orders"}
        update(world, 3, collection, v=1)  # another owner's, without a pre-image
        update(world, 1, collection, v=1)
        update(world, 3, collection, v=2)
        await world.read_all()
        switch(world, collection, images=True)
        world.clock.advance(IMAGES_FRESH_S)
        frames = await frames_until(peer, "unsubscribed")
        end = frames[-1]
        assert (end["topic"], end["code"], end["resubscribe"]) == (first["topic"], "topic_changed", True)
        update(world, 2, collection, owner="c")
        update(world, 3, collection, v=3)
        world.oplog.delete(DATABASE, collection, 1)
        insert(world, 4, collection, owner="a")
        again = {"filter": {"_id": {"$gt": 0}}}
        peer.subscribe(collection, topic=again, resumeAfter=last_token([first, *frames], first["topic"]))
        frames = await frames_until(peer, "live")
        assert frames[0]["type"] == "subscribed"
        assert frames[0]["resumed"]
        assert frames[0]["topic"] != first["topic"]
        assert frames[0]["fidelity"] == {"membership": "exact", "deletes": True}
        while (4, "entered") not in told(frames):
            frames += await frames_until(peer, "event")
        moved = (
            [(2, "left"), (1, "left")]
            if collection == "shared"
            else [(2, "stayed"), (3, "stayed"), (1, "left")]
        )
        assert [each for each in told(frames[1:]) if each != ("live",)] == [*moved, (4, "entered")]
    assert world.reported("images.changed")


@pytest.mark.parametrize("collection", ["orders", "shared"])
async def test_switching_off_is_a_resync_where_an_image_is_missing(collection: str) -> None:
    """And the switch is noticed at once, in a beat, for that; then the topic goes on as partial."""
    async with running() as world:
        switch(world, collection, images=True)
        insert(world, 1, collection, owner="a")
        peer = await world.signed_in()
        request = {"filter": {"owner": "a"}}
        first = await subscribed(peer, collection, topic=request)
        assert first["fidelity"] == {"membership": "exact", "deletes": True}
        update(world, 1, collection, v=1)
        switch(world, collection, images=False)
        update(world, 1, collection, owner="b")
        frames = await frames_until(peer, "resync")
        assert told(frames) == [(1, "stayed"), ("resync",)]
        assert frames[-1]["reason"] == "images_lost"
        await peer.frame("live")
        world.clock.advance(BEAT_S)
        end = (await frames_until(peer, "unsubscribed"))[-1]
        assert (end["code"], end["resubscribe"]) == ("topic_changed", True)
        # Not yet fetched: the client still holds the token before the missing image.
        peer.subscribe(collection, topic=request, resumeAfter=last_token(frames[:1], first["topic"]))
        insert(world, 2, collection, owner="a")
        frames = await frames_until(peer, "live")
        assert frames[0]["resumed"]
        assert frames[0]["fidelity"] == {"membership": "partial", "deletes": collection == "orders"}
        while (2, "entered") not in told(frames):
            frames += await frames_until(peer, "event")
        left = [(1, "left")] if collection == "orders" else []
        assert [each for each in told(frames[1:]) if each != ("live",)] == [*left, (2, "entered")]


async def test_without_images_a_strict_collection_is_refused_from_then_on() -> None:
    """`unsubscribed` says to subscribe again, and that is refused with the reason."""
    async with running() as world:
        switch(world, "mine", images=True)
        peer = await world.signed_in()
        await subscribed(peer, "mine")
        switch(world, "mine", images=False)
        world.clock.advance(IMAGES_FRESH_S)
        await frames_until(peer, "unsubscribed")
        peer.subscribe("mine")
        assert (await frames_until(peer, "error"))[-1]["code"] == "images_required"
        switch(world, "mine", images=True)
        world.clock.advance(IMAGES_FRESH_S)
        assert (await subscribed(peer, "mine"))["fidelity"]["membership"] == "exact"


async def test_a_drop_alone_is_no_switch() -> None:
    """The subscription goes on with what is created under the name; created otherwise, it ends."""
    async with running() as world:
        switch(world, "orders", images=True)
        peer = await world.signed_in()
        await subscribed(peer, "orders")
        world.oplog.drop(DATABASE, "orders")
        asked = world.clock.monotonic() + IMAGES_FRESH_S
        world.clock.advance(IMAGES_FRESH_S)
        await until(lambda: world.hub.image_modes._held[DATABASE].asked_at >= asked)
        switch(world, "orders", images=True)
        insert(world, 1, "orders")
        events = [(await frames_until(peer, "event"))[-1]["event"] for _ in range(3)]
        assert [each["operationType"] for each in events] == ["drop", "invalidate", "insert"]
        world.oplog.drop(DATABASE, "orders")
        switch(world, "orders", images=False)
        world.clock.advance(IMAGES_FRESH_S)
        frames = await frames_until(peer, "unsubscribed")
        assert [frame["event"]["operationType"] for frame in frames if frame["type"] == "event"] == [
            "drop", "invalidate",
        ]  # fmt: skip


async def test_who_is_not_subscribed_yet_is_ended_after_that() -> None:
    """A topic id that the client has not been told means nothing to it, and its `subscribe` would have no answer."""
    async with running() as world:
        switch(world, "orders", images=False)
        ahead = await world.signed_in()
        await subscribed(ahead, "orders")
        async with running(source=lambda _: MemorySource(world.oplog)) as behind:
            behind.oplog = world.oplog
            here, waits = await behind.signed_in(), await behind.signed_in()
            await subscribed(here, "orders")
            behind.source.see_only(world.oplog.end)
            insert(world, 1, "orders")
            token = (await ahead.frame("event"))["event"]["_id"]
            waits.subscribe(resumeAfter=token)
            await until(lambda: behind.subscriptions() == 2)
            switch(world, "orders", images=True)
            behind.clock.advance(IMAGES_FRESH_S)
            await frames_until(here, "unsubscribed")
            assert [frame for frame in waits.take() if frame["type"] != "heartbeat"] == []
            behind.source.see_only(None)
            world.oplog.tick()
            frames = await frames_until(waits, "unsubscribed")
            assert [frame["type"] for frame in frames if frame["type"] != "checkpoint"] == [
                "subscribed", "live", "unsubscribed",
            ]  # fmt: skip
            assert frames[0]["resumed"]


async def test_a_switch_anywhere_in_a_step_ends_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events, then the end, then nothing more; and the token that came last resumes with exactly the rest. A step that
    is under way is finished first, so that the token is that of all that was read."""
    monkeypatch.setattr(tail, "SLICE_S", -1.0)  # a step lets others run behind every record
    async with running() as world:
        switch(world, "orders", images=True)
        number = 0
        cut: set[tuple[bool, int]] = set()
        for rounds in range(0, 90, 3):
            peer = await world.signed_in()
            first = await subscribed(peer, "orders", topic={"filter": {"n": {"$gte": number}}})
            for n in range(number, number + 20):
                insert(world, n, "orders", n=n)
            for n in range(5):
                insert(world, -n, "orders")
            for _ in range(rounds):
                await asyncio.sleep(0)
            placement = next(iter(world.hub.feeds.values())).placement
            busy = placement._busy
            (subscription,) = placement.all_subscriptions()
            listener: Any = subscription.outlet
            told_twice: Listener = listener
            told_twice.mode_changed()
            told_twice.mode_changed()
            frames = await frames_until(peer, "unsubscribed")
            before = [each[0] for each in told(frames) if len(each) == 2]
            assert before == list(range(number, number + len(before)))
            token = last_token([first, *frames], first["topic"])
            peer.subscribe(topic={"filter": {"n": {"$gte": number}}}, resumeAfter=token)
            insert(world, number + 20, "orders", n=number + 20)
            rest: list[Any] = []
            while number + 20 not in rest:
                rest += [each[0] for each in told(await frames_until(peer, "event")) if len(each) == 2]
            assert before + rest == list(range(number, number + 21))
            cut.add((busy, len(before)))
            assert not busy or frames[-2]["type"] == "checkpoint"
            number += 21
            peer.client.transport_closed()
        assert cut == {(False, 0), (True, 20), (False, 20)}


async def test_the_window_of_an_exact_topic_knows_when_pre_images_go() -> None:
    """The smaller of the two; who needs no images has the oplog's."""

    def source(oplog: MemoryOplog) -> MemorySource:
        oplog.tick(1000)
        oplog.images_expire_s = 100
        return MemorySource(oplog)

    async with running(source=source) as world:
        switch(world, "orders", images=True)
        switch(world, "users", images=False)
        await until(lambda: world.hub.deployment.pulse.window is not None)
        peer = await world.signed_in()
        assert (await peer.subscribed("orders"))["oplogWindowSeconds"] == 100
        assert (await peer.subscribed("users", id="u"))["oplogWindowSeconds"] == 1000
        world.oplog.images_expire_s = None
        window = await world.source.oplog_window()
        assert window is not None
        assert window.seconds_with_images == 1000
