"""Snapshots over a real hub: what a client is told, when, and what becomes of the find behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from feedsvc.core.changes import Document, Namespace
from feedsvc.core.limits import Limits
from feedsvc.ports import EventUnavailable, PositionLost, SourceUnavailable
from feedsvc.runtime import backoff
from feedsvc.testing import MemoryCursor, MemoryOplog, MemorySource
from tests.runtime.scripted import Fails, beating, heard, in_virtual_time, subscribed
from tests.runtime.world import DATABASE, Peer, World, running, until
from tests.support.frames import Frame

ONE_A_PAGE = Limits(snapshot_page_bytes=1)


class GatedSource(MemorySource):
    """A source whose finds give out one document a read, and each read only when the test lets it."""

    def __init__(self, oplog: MemoryOplog) -> None:
        super().__init__(oplog, max_documents=1)
        self.gate = asyncio.Semaphore(0)
        self.reads = 0
        self.fault: Exception | None = None

    def let(self, reads: int) -> None:
        for _ in range(reads):
            self.gate.release()

    async def find(self, namespace: Namespace, query: Document, after: int) -> GatedCursor:  # type: ignore[override]
        return GatedCursor(self, self.find_now(namespace, query, after))


class GatedCursor:
    def __init__(self, source: GatedSource, inner: MemoryCursor) -> None:
        self._source = source
        self._inner = inner

    async def read(self) -> Sequence[Document]:
        self._source.reads += 1
        await self._source.gate.acquire()
        fault, self._source.fault = self._source.fault, None
        if fault is not None:
            raise fault
        return await self._inner.read()

    async def close(self) -> None:
        await self._inner.close()


@asynccontextmanager
async def gating(limits: Limits | None = None) -> AsyncIterator[World]:
    """A running world over a `GatedSource`, whose gate is open at the end: a read is never cancelled."""
    async with running(limits, source=GatedSource) as world:
        try:
            yield world
        finally:
            gated(world).let(1_000)


def insert(world: World, *numbers: int, collection: str = "orders") -> None:
    for number in numbers:
        world.oplog.insert(DATABASE, collection, {"_id": number})


def gated(world: World) -> GatedSource:
    assert isinstance(world.source, GatedSource)
    return world.source


async def page(peer: Peer) -> list[int]:
    return [document["_id"] for document in (await peer.frame("snapshot"))["documents"]]


async def snapshot(peer: Peer) -> tuple[list[list[int]], Frame]:
    """The pages up to `snapshotEnd`, which comes last; each page has the next number."""
    pages: list[list[int]] = []
    await until(lambda: any(frame["type"] == "snapshotEnd" for frame in peer.connection.messages()))
    while True:
        frame = peer.take_one()
        assert frame is not None
        if frame["type"] == "snapshotEnd":
            return pages, frame
        assert (frame["type"], frame["page"]) == ("snapshot", len(pages)), frame
        pages.append([document["_id"] for document in frame["documents"]])


async def reading(world: World, reads: int = 1) -> None:
    """A find waits in its so-manieth read."""
    await until(lambda: gated(world).reads == reads)


# -- the sequences of the protocol ------------------------------------------------------------------------


async def test_always() -> None:
    """subscribed without a token, pages, snapshotEnd with one, live, events; the token resumes behind the snapshot."""
    async with running(ONE_A_PAGE) as world:
        peer = await world.signed_in()
        insert(world, 1, 2, 3)
        peer.subscribe("orders", snapshot="always")
        answer = await peer.frame("subscribed")
        assert (answer["resumed"], "token" in answer) == (False, False)
        pages, end = await snapshot(peer)
        assert pages == [[1], [2], [3]]
        assert (await peer.frame("live"))["topic"] == end["topic"] == answer["topic"]
        insert(world, 4)
        assert (await peer.frame("event"))["event"]["documentKey"] == {"_id": 4}
        again = await world.signed_in()
        again.subscribe("orders", resumeAfter=end["token"], snapshot="onResync")
        assert (await again.frame("subscribed"))["resumed"]
        assert (await again.frame("event"))["event"]["documentKey"] == {"_id": 4}


async def test_an_empty_collection() -> None:
    """One page without documents, so that what a client holds from before is gone at the end."""
    async with running() as world:
        peer = await world.signed_in()
        peer.subscribe("users", snapshot="always")
        await peer.frame("subscribed")
        assert (await snapshot(peer))[0] == [[]]
        await peer.frame("live")


@pytest.mark.parametrize(
    "beside", [{"resumeAfter": "no token"}, {"startAtOperationTime": {"$timestamp": {"t": 1, "i": 1}}}]
)
async def test_a_position_beside_always_is_ignored(beside: dict[str, Any]) -> None:
    """Not even looked at."""
    async with running() as world:
        peer = await world.signed_in()
        peer.subscribe("orders", snapshot="always", **beside)
        await peer.frame("subscribed")
        await snapshot(peer)


async def test_on_resync_without_a_position_is_a_plain_fresh_subscription() -> None:
    """A token at once, and no page."""
    async with running() as world:
        insert(world, 1)
        peer = await world.signed_in()
        assert "token" in await peer.subscribed(snapshot="onResync")
        insert(world, 2)
        await world.read_all()
        assert [frame["type"] for frame in peer.take()] == ["event"]
        assert world.source.found == []


async def test_on_resync_a_snapshot_follows_each_resync() -> None:
    """The resync carries no token: only the snapshot has a state that a token can stand for."""
    async with running() as world:
        insert(world, 1)
        peer = await world.signed_in()
        other = await peer.subscribed("users")
        peer.subscribe("orders", id="o", snapshot="onResync", resumeAfter=other["token"])
        assert (await peer.frame("subscribed"))["resumed"] is False
        resync = await peer.frame("resync")
        assert (resync["reason"], "token" in resync) == ("topic_changed", False)
        assert (await snapshot(peer))[0] == [[1]]
        await peer.frame("live")
        world.source.fail_next_read(PositionLost("rolled over", 286, history=True))
        await until(lambda: [frame["type"] for frame in peer.connection.messages()].count("live") == 4)
        told = [
            (frame["type"], "token" in frame) for frame in peer.take() if frame["topic"] != other["topic"]
        ]
        assert told == [("resync", False), ("snapshot", False), ("snapshotEnd", True), ("live", False)]


# -- what happens meanwhile -------------------------------------------------------------------------------


async def test_nothing_of_the_topic_comes_before_the_end() -> None:
    """No event and no checkpoint; what was written meanwhile follows, though the pages may show it already."""
    async with gating(ONE_A_PAGE) as world:
        insert(world, 1)
        peer = await world.signed_in()
        peer.subscribe("orders", snapshot="always")
        await peer.frame("subscribed")
        await reading(world)
        insert(world, 2)
        await world.read_all()
        await peer.later(16)
        assert {frame["type"] for frame in peer.take()} <= {"error", "heartbeat"}, "a checkpoint was due"
        gated(world).let(3)
        assert (await snapshot(peer))[0] == [[1], [2]]
        await peer.frame("live")
        assert (await peer.frame("event"))["event"]["documentKey"] == {"_id": 2}


async def test_position_first() -> None:
    """The find reads not before the position that snapshotEnd stands for, which is fixed before it."""
    async with gating() as world:
        insert(world, 1)
        peer = await world.signed_in()
        peer.subscribe("orders", snapshot="always")
        await reading(world)
        head = world.oplog.now
        (namespace, _, after), *others = world.source.found
        assert (namespace, others) == (Namespace(DATABASE, "orders"), [])
        insert(world, 2, 3)
        await world.read_all()
        gated(world).let(9)
        await peer.frame("subscribed")
        _, end = await snapshot(peer)
        parts = end["clusterTime"]["$timestamp"]
        assert (parts["t"] << 32 | parts["i"]) == after <= head


async def test_a_failed_find_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a new position, with page 0; nothing else is told."""
    monkeypatch.setattr(backoff, "WAITS_S", (0.001,))
    async with gating(ONE_A_PAGE) as world:
        insert(world, 1, 2, 3)
        peer = await world.signed_in()
        peer.subscribe("orders", snapshot="always")
        await peer.frame("subscribed")
        gated(world).let(2)
        assert await page(peer) == [1]
        await reading(world, 3)
        insert(world, 4)
        await world.read_all()
        gated(world).fault = SourceUnavailable("the cursor was killed", 43)
        gated(world).let(1)
        gated(world).let(5)
        assert (await snapshot(peer))[0] == [[1], [2], [3], [4]]
        await peer.frame("live")
        assert [find[2] for find in world.source.found] == sorted({find[2] for find in world.source.found})
        assert world.source.found[1][2] > world.source.found[0][2]
        assert world.reported("snapshot.failed")


@pytest.mark.parametrize(
    "how, reason",
    [
        (lambda world: world.source.fail_next_read(PositionLost("gone", 286, history=True)), "history_lost"),
        (lambda world: world.source.fail_next_read(EventUnavailable("16 MiB", 10334)), "event_unavailable"),
        (lambda world: world.oplog.rename(DATABASE, "users", "orders"), "event_unavailable"),
    ],
    ids=["the live tail lost its place", "the live tail met an event", "another collection took the name"],
)
async def test_a_loss_during_a_snapshot(how: Callable[[World], None], reason: str) -> None:
    """resync, and a snapshot anew; the find that was under way is closed behind its read."""
    async with gating(ONE_A_PAGE) as world:
        insert(world, 1, 2)
        insert(world, 7, collection="users")
        peer = await world.signed_in()
        peer.subscribe("orders", snapshot="always")
        await peer.frame("subscribed")
        gated(world).let(2)
        assert await page(peer) == [1]
        await reading(world, 3)
        how(world)
        resync = await peer.frame("resync")
        assert (resync["reason"], "token" in resync) == (reason, False)
        assert world.source.open_cursors == 1
        gated(world).let(9)
        pages, _ = await snapshot(peer)
        assert [number for numbers in pages for number in numbers] in ([1, 2], [7])
        await peer.frame("live")
        assert world.source.open_cursors == 0
        insert(world, 9)
        assert (await peer.frame("event"))["event"]["documentKey"] == {"_id": 9}


async def test_a_drop_during_a_snapshot_is_an_event_behind_it() -> None:
    """The find fails, as MongoDB's does, and begins anew: the drop may be before or behind the new position."""
    async with gating() as world:
        insert(world, 1)
        peer = await world.signed_in()
        peer.subscribe("orders", snapshot="always")
        await peer.frame("subscribed")
        gated(world).let(1)
        await reading(world, 2)
        world.oplog.drop(DATABASE, "orders")
        insert(world, 2)
        gated(world).let(9)
        assert (await snapshot(peer))[0] == [[2]]
        await peer.frame("live")


# -- the end of it ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["unsubscribe", "rights", "socket", "service"])
async def test_it_ends_with_its_subscription(how: str) -> None:
    """At once for the client, and for the source behind the read that is under way; the slot goes to the next."""
    async with gating(Limits(snapshots=1, snapshot_page_bytes=1)) as world:
        insert(world, 1, 2)
        peer = await world.signed_in()
        peer.subscribe("orders", snapshot="always")
        topic = (await peer.frame("subscribed"))["topic"]
        await reading(world)
        if how == "unsubscribe":
            peer.say("unsubscribe", topic=topic)
            assert (await peer.frame("unsubscribed"))["code"] == "requested"
        elif how == "rights":
            peer.say("auth", jwt="alice-without-orders")
            assert (await peer.frame("unsubscribed"))["code"] == "forbidden"
        elif how == "socket":
            peer.client.transport_closed()
        else:
            peer.client.close("going_away")
        assert (world.hub.snapshots.running, world.source.open_cursors) == (1, 1)
        other = await world.signed_in()
        other.subscribe("orders", snapshot="always")
        await other.frame("subscribed")
        assert world.hub.snapshots.waiting == 1
        gated(world).let(9)
        assert (await snapshot(other))[0] == [[1], [2]]
        assert not [frame for frame in peer.connection.messages() if frame["type"] == "snapshot"]
        assert world.source.open_cursors == 0


@pytest.mark.parametrize(
    "limits, fault",
    [
        (Limits(), EventUnavailable("a document that is not BSON")),
        (Limits(max_snapshot_documents=1), None),
        (Limits(max_snapshot_bytes=100, snapshot_page_bytes=1), None),
        (Limits(max_event_bytes=70), None),
        (Limits(), ValueError("nobody foresaw it")),
    ],
    ids=["undecodable", "documents", "bytes", "one document", "a fault of ours"],
)
async def test_what_cannot_be_sent_ends_the_subscription(limits: Limits, fault: Exception | None) -> None:
    """`snapshot_too_large`, and not to be asked for again as it is; the connection stays."""
    async with gating(limits) as world:
        insert(world, 1, 2)
        gated(world).fault = fault
        gated(world).let(9)
        peer = await world.signed_in()
        peer.subscribe("orders", snapshot="always")
        await peer.frame("subscribed")
        await until(lambda: peer.connection.messages()[-1]["type"] == "unsubscribed")
        told = peer.take()[-1]
        assert (told["code"], told["resubscribe"]) == ("snapshot_too_large", False)
        assert world.reported("snapshot.given_up")
        assert world.subscriptions() == 0
        peer.say("ping")
        await peer.frame("pong")


# -- room, and turns --------------------------------------------------------------------------------------


async def test_nothing_is_read_while_the_client_takes_nothing() -> None:
    """One page waits, and no read is asked for until it was written; then the snapshot goes on where it was."""
    async with gating(ONE_A_PAGE) as world:
        insert(world, *range(20))
        gated(world).let(99)
        peer = await world.signed_in(room=3)
        peer.subscribe("orders", snapshot="always")
        await peer.frame("subscribed")
        assert await page(peer) == [0]
        await until(lambda: world.hub.snapshots.running == 1 and gated(world).reads == 3)
        for _ in range(50):
            await asyncio.sleep(0)
        assert gated(world).reads == 3
        assert not peer.connection.writable
        peer.connection.set_room(1)
        assert await page(peer) == [1]
        peer.connection.set_room(None)
        assert [numbers async for numbers in _rest(peer)] == [[number] for number in range(2, 20)]


async def _rest(peer: Peer) -> Any:
    await until(lambda: peer.connection.messages()[-1]["type"] == "live")
    for frame in peer.take():
        if frame["type"] == "snapshot":
            yield [document["_id"] for document in frame["documents"]]


async def test_a_client_that_takes_nothing_is_closed_as_slow() -> None:
    """A snapshot that waits for room does not keep it, and ends with it."""
    async with running(ONE_A_PAGE) as world:
        insert(world, *range(20))
        peer = await world.signed_in(room=3)
        peer.subscribe("orders", snapshot="always")
        await until(lambda: not peer.connection.writable)
        world.clock.advance(31)
        peer.client.receive("{}")
        assert (await peer.close())[0] == 4201
        await until(lambda: world.hub.snapshots.running == 0)
        assert world.source.open_cursors == 0


async def test_a_slow_client_falls_off_the_log_during_its_snapshot() -> None:
    """The events behind the position come from a catch-up tail then, none is missing."""
    async with gating(Limits(log_bytes=1_000, ring_records=5)) as world:
        insert(world, 1)
        peer = await world.signed_in()
        peer.subscribe("orders", snapshot="always")
        await peer.frame("subscribed")
        await reading(world)
        insert(world, *range(100, 150))
        await world.read_all()
        gated(world).let(99)
        await until(lambda: len(peer.connection.messages()) >= 55)
        types = [frame["type"] for frame in peer.take()]
        assert types[-51:] == ["live", *["event"] * 50]
        events = [frame["event"] for frame in peer.connection.messages() if frame["type"] == "event"]
        assert [event["documentKey"]["_id"] for event in events] == list(range(100, 150))


async def test_while_the_live_tail_fails_nothing_begins() -> None:
    """A snapshot would begin at a position that grows old."""
    async with running() as world:
        insert(world, 1)
        peer = await world.signed_in()
        await peer.subscribed("users")
        feed = next(iter(world.hub.feeds.values()))
        feed.readers.live_failed_until = float("inf")
        peer.subscribe("orders", id="o", snapshot="always")
        await peer.frame("subscribed")
        for _ in range(20):
            await asyncio.sleep(0)
        assert (world.source.found, world.hub.snapshots.waiting) == ([], 1)
        feed.readers.live_failed_until = 0.0
        assert (await snapshot(peer))[0] == [[1]]


@in_virtual_time
async def test_repeated_resyncs_wait_as_they_tell() -> None:
    """The service fetches for the client: at once the first time, later when a client would be told to."""
    async with beating() as (world, source):
        peer = await subscribed(world, snapshot="onResync")
        waits_s, told_s = [], []
        for _ in range(6):
            source.on_read = Fails(PositionLost("rolled over", 286, history=True), times=1)
            told_s.append((await heard(peer, "resync"))["retryAfterMs"] / 1000)
            began = asyncio.get_running_loop().time()
            await heard(peer, "snapshotEnd", before=("snapshot",))
            await heard(peer, "live")
            waits_s.append(asyncio.get_running_loop().time() - began)
        assert waits_s[0] < 2
        assert all(waited > told - 0.1 for waited, told in zip(waits_s[1:], told_s[1:], strict=True))
        assert told_s[-1] > 5


# -- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["always", "onResync"])
async def test_refused_without_all_operations(mode: str) -> None:
    """What is not told of can be applied to no snapshot."""
    async with running() as world:
        peer = await world.signed_in()
        peer.subscribe("orders", snapshot=mode, topic={"operations": ["insert", "update", "replace"]})
        error = await peer.frame("error")
        assert (error["code"], error["id"]) == ("snapshot_unavailable", "s")
        peer.subscribe(
            "orders", snapshot=mode, topic={"operations": ["delete", "replace", "update", "insert"]}
        )
        await peer.frame("subscribed")


async def test_refused_where_deletes_cannot_be_told() -> None:
    """A policy's filter over a collection without images: what leaves would stay with the client for ever."""
    async with running() as world:
        world.oplog.create(DATABASE, "partly", images=False)
        peer = await world.signed_in()
        peer.subscribe("partly", snapshot="always")
        assert (await peer.frame("error"))["code"] == "snapshot_unavailable"
        await peer.subscribed("partly")
