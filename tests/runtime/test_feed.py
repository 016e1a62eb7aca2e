"""A feed under faults: its catch-up tails take turns, and a tail that stands still is noticed."""

from __future__ import annotations

import asyncio

import pytest

from feedsvc.core.changes import TailScope
from feedsvc.core.limits import Limits
from feedsvc.ports import (
    EventUnavailable,
    PositionLost,
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
from tests.runtime.world import DATABASE, Peer, World

# Catch-up


async def old_tokens(world: World, count: int, collection: str = "orders") -> list[str]:
    """Resume tokens of 0, 1, 2, ... up to before `count`, which was inserted too. The live tail forgets all of them."""
    peer = await subscribed(world, collection)
    tokens = []
    for number in range(count):
        insert(world, number, collection)
        tokens.append((await heard(peer, "event"))["event"]["_id"])
        await asyncio.sleep(1)
    insert(world, count, collection)
    await heard(peer, "event")
    await asyncio.sleep(2)
    for feed in world.hub.feeds.values():
        assert feed.placement.live is not None
        feed.placement.live.ring.trim(0)
    return tokens


async def resuming(world: World, tokens: list[str], collection: str = "orders") -> list[Peer]:
    peers = []
    for token in tokens:
        peer = await world.signed_in()
        peer.subscribe(collection, resumeAfter=token)
        peers.append(peer)
    return peers


async def resumers(world: World, count: int) -> list[Peer]:
    """Clients that want to resume behind 0, 1, 2, ..., and miss all up to `count`."""
    return await resuming(world, await old_tokens(world, count))


@pytest.mark.parametrize("moment", ["open", "read"])
@in_virtual_time
async def test_catch_up_tails_that_fail_take_turns(moment: str) -> None:
    """However many clients resume at different positions; and once the fault is over each gets what it missed."""
    async with beating() as (world, source):

        def fails(opening: Opening) -> None:
            if opening is not source.openings[0]:
                raise SourceUnavailable("it was reset")

        setattr(source, f"on_{moment}", fails)
        peers = await resumers(world, 4)
        await asyncio.sleep(60)
        assert len(source.openings) > 4
        assert_never_hot(source.opened_at()[1:])
        setattr(source, f"on_{moment}", healthy)
        for number, peer in enumerate(peers):
            assert (await heard(peer, "subscribed", within_s=120))["resumed"]
            assert [await event(peer) for _ in range(number + 1, 5)] == list(range(number + 1, 5))
            await heard(peer, "live")


@in_virtual_time
async def test_a_storm_of_reconnects_is_gathered_even_if_each_one_is_older_than_the_last() -> None:
    """Sixty clients within a second and a half, the one with the oldest position last: not sixty streams."""
    async with beating() as (world, source):
        tokens = await old_tokens(world, 60)
        peers = []
        for token in reversed(tokens):
            peers += await resuming(world, [token])
            await asyncio.sleep(0.025)
        for number, peer in enumerate(reversed(peers)):
            assert (await heard(peer, "subscribed"))["resumed"]
            assert [await event(peer) for _ in range(number + 1, 61)] == list(range(number + 1, 61))
            await heard(peer, "live")
        assert len(source.openings[1:]) <= 4


@in_virtual_time
async def test_one_client_does_not_wait_for_others() -> None:
    async with beating() as (world, source):
        (token,) = await old_tokens(world, 1)
        began = asyncio.get_running_loop().time()
        (peer,) = await resuming(world, [token])
        await heard(peer, "subscribed")
        assert await event(peer) == 1
        assert source.openings[-1].at_s - began == pytest.approx(Limits().catch_up_window_s, abs=0.001)


@in_virtual_time
async def test_a_replay_that_breaks_again_and_again_goes_on_where_it_stood() -> None:
    """Each stream delivers two events and fails: the client gets all of them, once and in order."""
    async with beating() as (world, source):
        token, *_ = await old_tokens(world, 8)
        source.max_records = 2
        reads: dict[Opening, int] = {}

        def fails_late(opening: Opening) -> None:
            """Asked before and after each read: the first one goes well."""
            reads[opening] = reads.get(opening, 0) + 1
            if opening is not source.openings[0] and reads[opening] > 2:
                raise SourceUnavailable("it was reset")

        source.on_read = fails_late
        (peer,) = await resuming(world, [token])
        assert (await heard(peer, "subscribed"))["resumed"]
        assert [await event(peer) for _ in range(8)] == [1, 2, 3, 4, 5, 6, 7, 8]
        await heard(peer, "live")
        assert len(source.openings) > 2
        assert_never_hot(source.opened_at()[1:])


@in_virtual_time
async def test_each_dead_position_of_a_client_is_opened_once() -> None:
    """Each of them is another position and costs one open; nothing is tried twice, and nobody waits for the others."""
    async with beating() as (world, source):

        def dead(opening: Opening) -> None:
            if opening is not source.openings[0]:
                raise PositionLost("not found", 280)

        source.on_read = dead
        peers = await resumers(world, 4)
        for peer in peers:
            assert not (await heard(peer, "subscribed", within_s=5))["resumed"]
            assert (await heard(peer, "resync"))["reason"] == "token_expired"
            await heard(peer, "live")
        keys = [opening.position.key for opening in source.openings[1:]]
        assert len(keys) == len(set(keys)) == 4


@pytest.mark.parametrize("times", [1, 2])
@in_virtual_time
async def test_a_replayed_event_that_could_not_be_read_is_asked_for_once_more(times: int) -> None:
    """Then the replay goes on, or its client has lost it."""
    async with beating() as (world, source):
        (token,) = await old_tokens(world, 1)
        fails = Fails(EventUnavailable("no BSON"), times=times)

        def spoilt(opening: Opening) -> None:
            if opening is not source.openings[0]:
                fails(opening)

        source.on_read = spoilt
        (peer,) = await resuming(world, [token])
        answer = await heard(peer, "subscribed")
        assert answer["resumed"] is (times == 1)
        if times == 1:
            assert await event(peer) == 1
        else:
            assert (await heard(peer, "resync"))["reason"] == "event_unavailable"
        await heard(peer, "live")
        assert len(source.openings) == 3
        assert_never_hot(source.opened_at()[1:])


@in_virtual_time
async def test_an_oplog_that_has_rolled_over_loses_all_old_positions_at_once() -> None:
    """After a weekend every client's position is too old, and one open tells."""
    async with beating() as (world, source):
        peers = await resumers(world, 4)
        world.oplog.trim(1000)
        for peer in peers:
            assert not (await heard(peer, "subscribed", within_s=5))["resumed"]
            assert (await heard(peer, "resync"))["reason"] == "token_expired"
        assert len(source.openings) == 2


@in_virtual_time
async def test_while_the_live_tail_fails_no_other_is_tried() -> None:
    """Three opens in ten seconds for the topic, not for each of its tails."""
    async with beating() as (world, source):
        tokens = await old_tokens(world, 3)
        source.on_read = Fails(SourceUnavailable("it was reset"))
        await asyncio.sleep(1.5)
        peers = await resuming(world, tokens)
        await asyncio.sleep(60)
        assert len(source.openings) > 3
        assert_never_hot(source.opened_at())
        source.on_read = healthy
        for number, peer in enumerate(peers):
            assert (await heard(peer, "subscribed"))["resumed"]
            assert [await event(peer) for _ in range(number + 1, 4)] == list(range(number + 1, 4))


@in_virtual_time
async def test_a_topic_that_fails_to_catch_up_takes_no_slot_from_the_others() -> None:
    """More of its tails than there are slots wait for their next turn; a client of another topic is served at once."""
    async with beating("collection") as (world, source):
        orders = TailScope("collection", DATABASE, "orders")
        failing, served = (
            await old_tokens(world, Limits().catch_up_tails + 2),
            await old_tokens(world, 1, "users"),
        )
        live = next(opening for opening in source.openings if opening.scope == orders)

        def fails(opening: Opening) -> None:
            if opening.scope == orders and opening is not live:
                raise SourceUnavailable("it was reset")

        source.on_read = fails
        peers = await resuming(world, failing)
        await asyncio.sleep(60)
        assert len(source.opened_at(orders)) > Limits().catch_up_tails + 1
        (peer,) = await resuming(world, served, "users")
        assert (await heard(peer, "subscribed", within_s=3))["resumed"]
        assert await event(peer) == 1
        assert not any(frame["type"] == "live" for peer in peers for frame in peer.take())


# A frozen majority point


@in_virtual_time
async def test_a_tail_that_stands_still_while_the_oplog_goes_on_is_stalled() -> None:
    """Its stream answers each time, with nothing. This process is ready all the same: no other sees more."""
    async with beating() as (world, source):
        peer = await subscribed(world)
        await asyncio.sleep(20)
        peer.take()
        source.see_only(world.oplog.end)
        began = asyncio.get_running_loop().time()
        insert(world, 1)
        while not (await heard(peer, "heartbeat"))["stalled"]:
            pass
        assert STALL_AFTER_S - 1 <= asyncio.get_running_loop().time() - began <= STALL_AFTER_S + 2.5
        await asyncio.sleep(3)
        assert world.hub.stalls.in_use()
        assert not world.hub.stalls.only_here()
        source.see_only(None)
        assert await event(peer) == 1
        while (await heard(peer, "heartbeat"))["stalled"]:
            pass


@pytest.mark.parametrize("readable", [True, False])
@in_virtual_time
async def test_a_quiet_deployment_is_not_stalled(readable: bool) -> None:
    """An operation time ahead of all entries (SecantusDB mints one for each stream) is no entry to wait for."""
    async with beating() as (world, source):
        source.ahead, source.readable_oplog = (1 if readable else 0), readable
        peer = await subscribed(world)
        await asyncio.sleep(120)
        assert not any(frame["stalled"] for frame in peer.take() if frame["type"] == "heartbeat")


@in_virtual_time
async def test_a_reader_that_is_behind_and_moves_is_not_stalled() -> None:
    async with beating() as (world, source):
        peer = await subscribed(world)
        source.see_only(world.oplog.end)
        end = world.oplog.end
        for number in range(2000):
            insert(world, number)
        for _ in range(60):
            end += 2
            source.see_only(end)
            await asyncio.sleep(1)
        assert source.visible < world.oplog.end
        assert not any(frame["stalled"] for frame in peer.take() if frame["type"] == "heartbeat")
