"""The lifecycle: a drain tells every client, spreads the closes, and neither waits for nobody nor for ever."""

from __future__ import annotations

import asyncio

import pytest

from feedsvc.core.errors import close_code
from feedsvc.core.limits import Limits
from feedsvc.runtime.lifecycle import Lifecycle
from tests.runtime.world import Peer, World, running


class Fleet:
    """Peers held by a lifecycle, whose sockets go `answer()` after their close, and in what order they were closed."""

    def __init__(self, world: World, lifecycle: Lifecycle) -> None:
        self.world = world
        self.lifecycle = lifecycle
        self.peers: list[Peer] = []
        self.closed_at: list[float] = []

    async def join(self, *, answers: bool = True) -> Peer:
        peer = await self.world.signed_in()
        await peer.subscribed()
        self.lifecycle.add(peer.client)
        self.peers.append(peer)
        close = peer.connection.close
        loop = asyncio.get_running_loop()

        def closing(code: int, reason: str = "") -> None:
            close(code, reason)
            self.closed_at.append(loop.time())
            if answers:
                loop.call_soon(self.leave, peer)

        peer.connection.close = closing  # type: ignore[method-assign]
        return peer

    def leave(self, peer: Peer) -> None:
        peer.client.transport_closed()
        self.lifecycle.remove(peer.client)


async def test_every_client_is_told_and_closed() -> None:
    """`goaway` with a time of its own, one in each part of the spread, then 4200."""
    async with running() as world:
        fleet = Fleet(world, Lifecycle())
        peers = [await fleet.join() for _ in range(5)]
        await fleet.lifecycle.drain(0.1)
        assert fleet.lifecycle.draining
        assert not fleet.lifecycle.clients
        told = [peer.take() for peer in peers]
        assert sorted(frame["reconnectAfterMs"] for (frame,) in told) == [0, 16, 32, 48, 64]
        assert {frame["type"] for (frame,) in told} == {"goaway"}
        for peer in peers:
            assert peer.connection.closed == (close_code("going_away"), "going_away")
        assert world.subscriptions() == 0


async def test_the_closes_are_spread() -> None:
    """Not all reconnect at once, and the last is closed before the drain ends."""
    async with running() as world:
        fleet = Fleet(world, Lifecycle())
        for _ in range(4):
            await fleet.join()
        start = asyncio.get_running_loop().time()
        await fleet.lifecycle.drain(0.2)
        offsets = [when - start for when in fleet.closed_at]
        assert len(offsets) == 4
        for offset, planned in zip(offsets, (0.0, 0.04, 0.08, 0.12), strict=True):
            assert offset >= planned - 0.005


async def test_nobody_is_closed_before_the_time_that_it_was_told() -> None:
    """Else it would wait the rest of that time without a feed."""
    async with running() as world:
        fleet = Fleet(world, Lifecycle())
        peers = [await fleet.join() for _ in range(4)]
        start = asyncio.get_running_loop().time()
        await fleet.lifecycle.drain(0.2)
        told_ms = sorted(peer.take()[0]["reconnectAfterMs"] for peer in peers)
        for closed_at, told in zip(fleet.closed_at, told_ms, strict=True):
            assert closed_at - start >= told / 1000 - 0.005


async def test_it_is_announced_before_anybody_is_told_or_refused() -> None:
    """Readiness first; who still comes is let in, and told like the others afterwards."""
    async with running() as world:
        fleet = Fleet(world, Lifecycle())
        first = await fleet.join()
        leaving = asyncio.create_task(fleet.lifecycle.leave(Limits(announce_s=0.1, drain_s=0.05)))
        await asyncio.sleep(0)
        assert fleet.lifecycle.leaving and not fleet.lifecycle.draining
        late = await fleet.join()
        assert first.take() == late.take() == []
        await leaving
        assert fleet.lifecycle.leaving and fleet.lifecycle.draining
        assert [frame["type"] for frame in first.take() + late.take()] == ["goaway", "goaway"]


async def test_an_announcement_does_not_need_clients() -> None:
    """It is for proxies, which may send somebody."""
    lifecycle = Lifecycle()
    start = asyncio.get_running_loop().time()
    await lifecycle.leave(Limits(announce_s=0.05, drain_s=3600))
    assert asyncio.get_running_loop().time() - start >= 0.045


async def test_a_drain_without_clients_is_over_at_once() -> None:
    """It does not wait for the time that nobody needs."""
    lifecycle = Lifecycle()
    async with asyncio.timeout(1):
        await lifecycle.drain(3600)
    assert lifecycle.draining


async def test_a_drain_ends_early_when_all_are_gone() -> None:
    """The last close ends it."""
    async with running() as world:
        fleet = Fleet(world, Lifecycle())
        peer = await fleet.join()
        async with asyncio.timeout(5):
            await fleet.lifecycle.drain(3600)
        assert peer.connection.closed is not None


async def test_a_client_that_goes_by_itself_is_no_hindrance() -> None:
    """All leave on `goaway`: nobody is waited for, and nobody is closed twice."""
    async with running() as world:
        fleet = Fleet(world, Lifecycle())
        for _ in range(3):
            await fleet.join()
        async with asyncio.timeout(5):
            draining = asyncio.create_task(fleet.lifecycle.drain(3600))
            await asyncio.sleep(0)
            for peer in fleet.peers:
                fleet.leave(peer)
            await draining
        assert len(fleet.closed_at) <= 1


@pytest.mark.parametrize("drain_s", [0.0, 0.05])
async def test_a_peer_that_never_answers_is_not_waited_for(drain_s: float) -> None:
    """The drain time is a bound: what cannot be closed is left to the transport's abort."""
    async with running() as world:
        fleet = Fleet(world, Lifecycle())
        stuck = [await fleet.join(answers=False) for _ in range(3)]
        async with asyncio.timeout(5):
            await fleet.lifecycle.drain(drain_s)
        assert len(fleet.lifecycle.clients) == 3
        assert all(peer.connection.closed is not None for peer in stuck)


async def test_removing_twice_is_harmless() -> None:
    """A socket may report its end more than once."""
    async with running() as world:
        fleet = Fleet(world, Lifecycle())
        peer = await fleet.join()
        fleet.leave(peer)
        fleet.leave(peer)
        assert not fleet.lifecycle.clients
