"""Readers under faults: what is opened again and when, and what clients are told."""

from __future__ import annotations

import asyncio

import pytest

from feedsvc.core.changes import TailScope
from feedsvc.ports import (
    EventUnavailable,
    PositionLost,
    SourceError,
    SourceRefused,
    SourceUnavailable,
)
from tests.runtime.scripted import (
    STALL_AFTER_S,
    Fails,
    Opening,
    assert_never_hot,
    beating,
    event,
    healthy,
    heard,
    in_virtual_time,
    insert,
    subscribed,
)
from tests.runtime.world import DATABASE


@in_virtual_time
async def test_a_dead_position_is_never_used_twice() -> None:
    """SRC-01, RES-10: the first read after every resume says 286. Each of three subscribers gets one resync before
    anything newer, the stream is opened at now, and it stays open."""
    async with beating() as (world, source):
        peers = [await subscribed(world) for _ in range(3)]
        insert(world, 1)
        assert [await event(peer) for peer in peers] == [1, 1, 1]
        head = world.hub.feeds[TailScope("deployment")].placement.live
        assert head is not None
        first = source.openings[0]

        def dead(opening: Opening) -> None:
            if opening is first:
                raise SourceUnavailable("the connection was reset")
            if opening.position.data is not None:
                raise PositionLost("gone", 286, history=True)

        source.on_read = dead
        await asyncio.sleep(3)
        insert(world, 2)  # while the stream is down, or just after
        for peer in peers:
            assert (await heard(peer, "resync"))["reason"] == "history_lost"
            await heard(peer, "live")
        insert(world, 3)
        for peer in peers:
            seen = await event(peer)
            assert seen == 3 or (seen, await event(peer)) == (2, 3)
        await asyncio.sleep(60)
        assert not any(frame["type"] == "resync" for peer in peers for frame in peer.take())
        positions = [opening.position for opening in source.openings if opening.position.data is not None]
        assert len(positions) == len({position.key for position in positions}) == 1
        assert len(source.openings) == 3
        assert_never_hot(source.opened_at())


@in_virtual_time
async def test_back_to_back_failures_are_survived_in_silence() -> None:
    """SRC-10: a read fails, then two opens, then all is well: what was inserted meanwhile comes once and in order."""
    async with beating() as (world, source):
        peer = await subscribed(world)
        await asyncio.sleep(20)
        source.on_read = Fails(SourceUnavailable("not primary", 10107), times=1)
        source.on_open = Fails(SourceUnavailable("a network error"), times=2)
        await asyncio.sleep(2)
        insert(world, 1)
        insert(world, 2)
        assert [await event(peer), await event(peer)] == [1, 2]
        insert(world, 3)
        assert await event(peer) == 3
        assert len(source.openings) == 4
        assert_never_hot(source.opened_at())
        assert sum(name == "tail.failed" for name, _ in world.reports) >= 1


@in_virtual_time
async def test_an_outage_is_over_when_somebody_answers() -> None:
    """However long nobody was there to be asked, the wait after it is short."""
    async with beating() as (world, source):
        peer = await subscribed(world)
        source.on_read = Fails(SourceUnavailable("the connection was reset"), times=1)
        source.on_open = Fails(SourceUnavailable("nobody there", reached=False))
        await asyncio.sleep(300)
        insert(world, 1)
        source.on_open = healthy
        before = asyncio.get_running_loop().time()
        assert await event(peer) == 1
        assert asyncio.get_running_loop().time() - before < 2


@pytest.mark.parametrize(
    "error",
    [
        SourceUnavailable("killed", 43),
        PositionLost("gone", 286, history=True),
        PositionLost("rolled over", 136),
        EventUnavailable("too large", 10334),
        EventUnavailable("no BSON"),
        SourceRefused("no", 13),
        KeyError("a bug"),
    ],
)
@pytest.mark.parametrize("moment", ["open", "read", "after a delivery"])
@in_virtual_time
async def test_whatever_fails_for_ever_is_never_hot(error: Exception, moment: str) -> None:
    """At open, at the first read, or after each open delivered something; and it is over when the fault is."""
    async with beating() as (world, source):
        peer = await subscribed(world)
        delivered: set[Opening] = set()

        def fails_late(opening: Opening) -> None:
            if opening in delivered:
                raise error
            delivered.add(opening)
            insert(world, len(source.openings))

        if moment == "open":
            source.on_read = Fails(error, times=1)
            source.on_open = Fails(error)
        else:
            source.on_read = Fails(error) if moment == "read" else fails_late
        await asyncio.sleep(120)
        assert len(source.openings) > 3
        assert_never_hot(source.opened_at())
        source.on_open = source.on_read = healthy
        await asyncio.sleep(15)
        peer.take()
        insert(world, 1000)
        assert await event(peer) == 1000


@in_virtual_time
async def test_an_event_that_could_not_be_read_is_asked_for_once_more() -> None:
    """What was spoilt on its way comes whole, and nobody is told; each time anew, as long as the tail gets on."""
    async with beating() as (world, source):
        peer = await subscribed(world)
        for number in range(3):
            source.on_read = Fails(EventUnavailable("no BSON"), times=1)
            insert(world, number)
            assert await event(peer) == number
            await asyncio.sleep(20)
        assert len(source.openings) == 4
        assert_never_hot(source.opened_at())


@pytest.mark.parametrize("code, openings", [(None, 3), (10334, 2)])
@in_virtual_time
async def test_an_event_that_cannot_be_read_is_lost(code: int | None, openings: int) -> None:
    """At the second time, or at the first where the server says so: at now the stream goes on without it."""
    async with beating() as (world, source):
        peer = await subscribed(world)
        insert(world, 1)
        assert await event(peer) == 1
        source.on_read = Fails(EventUnavailable("no BSON", code), times=openings - 1)
        assert (await heard(peer, "resync"))["reason"] == "event_unavailable"
        await heard(peer, "live")
        insert(world, 2)
        assert await event(peer) == 2
        assert len(source.openings) == openings


@in_virtual_time
async def test_a_fault_of_one_topic_leaves_the_others_alone() -> None:
    """SRC-09: one collection may not be read. Its stream is asked for at most 6 times in 30 s, and the others run."""
    async with beating("collection") as (world, source):
        peer = await subscribed(world)
        forbidden = TailScope("collection", DATABASE, "users")

        def refuse(opening: Opening) -> None:
            if opening.scope == forbidden:
                raise SourceRefused("MongoDB refused the request: Unauthorized (code 13)", 13)

        source.on_open = refuse
        other = await world.signed_in()
        other.subscribe("users")
        for number in range(30):
            insert(world, number)
            assert await event(peer) == number
            await asyncio.sleep(1)
        assert 3 <= len(source.opened_at(forbidden)) <= 6
        assert_never_hot(source.opened_at(forbidden))
        answer = await heard(other, "error")
        assert answer["code"] == "source_unavailable"
        assert "13" not in answer["message"] and "Unauthorized" not in answer["message"]
        assert len(source.openings) == 1 + len(source.opened_at(forbidden))
        assert not any(frame["stalled"] for frame in peer.take() if frame["type"] == "heartbeat")


@in_virtual_time
async def test_a_bug_in_reading_is_told_and_survived() -> None:
    """SRC-07: an exception that is no error of the source: logged, resync, and read on."""
    async with beating() as (world, source):
        peer = await subscribed(world)
        source.on_read = Fails(KeyError("updateDescription"), times=1)
        assert (await heard(peer, "resync"))["reason"] == "history_lost"
        await heard(peer, "live")
        insert(world, 1)
        assert await event(peer) == 1
        failures = [fields for name, fields in world.reports if name == "tail.failed"]
        assert any("KeyError" in str(fields["error"]) for fields in failures)


@in_virtual_time
async def test_a_topic_without_a_reader_fails_readiness() -> None:
    """SRC-07: heartbeats name it within `stall_after_s` + 1 s, and this process is not ready, since MongoDB answers."""
    async with beating() as (world, source):
        peer = await subscribed(world)
        await asyncio.sleep(20)
        assert not world.hub.stalls.in_use()
        peer.take()
        source.on_read = Fails(KeyError("a bug"))
        began = asyncio.get_running_loop().time()
        while not (await heard(peer, "heartbeat", before=("resync", "live")))["stalled"]:
            pass
        assert asyncio.get_running_loop().time() - began <= STALL_AFTER_S + 1.5
        await asyncio.sleep(2)
        assert world.hub.stalls.in_use()
        assert world.hub.stalls.only_here()


@in_virtual_time
async def test_what_a_reopened_stream_repeats_is_dropped() -> None:
    """SRC-14: 1 to 5 were delivered, and the stream that is opened again gives 4, 5 and 6."""
    async with beating() as (world, source):
        peer = await subscribed(world)
        for number in range(1, 6):
            insert(world, number)
        frames = [await heard(peer, "event") for _ in range(5)]
        live = world.hub.feeds[TailScope("deployment")].placement.live
        assert live is not None
        third = live.ring.position(live.ring.head_ordinal - 2)
        source.on_open = lambda _: third
        source.on_read = Fails(SourceUnavailable("the connection was reset"), times=1)
        await asyncio.sleep(2)
        insert(world, 6)
        frames.append(await heard(peer, "event"))
        assert [frame["event"]["documentKey"]["_id"] for frame in frames] == [1, 2, 3, 4, 5, 6]
        times = [frame["event"]["clusterTime"]["$timestamp"] for frame in frames]
        assert times == sorted(times, key=lambda time: (time["t"], time["i"]))
        assert len(source.openings) == 2


def test_errors_of_the_source_are_what_readers_are_written_for() -> None:
    """The table at the top of `runtime.tail` has a row for each."""
    known = {SourceUnavailable, PositionLost, EventUnavailable, SourceRefused}
    assert set(SourceError.__subclasses__()) == known
