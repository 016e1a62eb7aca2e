"""A feed under faults: its catch-up tails take turns, and a tail that stands still is noticed."""

from __future__ import annotations

import asyncio

import pytest

from feedsvc.core.changes import TailScope
from feedsvc.ports import (
    PositionLost,
    SourceUnavailable,
)
from tests.runtime.scripted import (
    STALL_AFTER_S,
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
from tests.runtime.world import Peer, World

# Catch-up


async def resumers(world: World, count: int) -> list[Peer]:
    """Clients that want to resume behind 0, 1, 2, ..., and miss all up to `count`; the live tail has forgotten them."""
    peer = await subscribed(world)
    resume_tokens = []
    for number in range(count):
        insert(world, number)
        resume_tokens.append((await heard(peer, "event"))["event"]["_id"])
        await asyncio.sleep(1)
    insert(world, count)
    await heard(peer, "event")
    await asyncio.sleep(2)
    live = world.hub.feeds[TailScope("deployment")].placement.live
    assert live is not None
    live.ring.trim(0)
    peers = []
    for token in resume_tokens:
        resuming = await world.signed_in()
        resuming.subscribe("orders", resumeAfter=token)
        peers.append(resuming)
    return peers


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
        assert world.hub.failing_tails()
        assert not world.hub.answers_but_not_here()
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
