"""Timers that share a round of the loop: never early, all of a moment together, in slices."""

from __future__ import annotations

import asyncio
import time
from random import Random

from feedsvc.core.limits import Limits
from feedsvc.runtime.wheel import Wheel
from feedsvc.testing import ManualClock, MemoryVerifier
from tests.runtime.scripted import in_virtual_time
from tests.runtime.world import claims, running, until
from tests.simulation.virtual_time import WorkingClock


class Owner:
    def __init__(self, wheel: Wheel, called: list[Owner]) -> None:
        self._called = called
        self.wheel = wheel
        self.at = 0.0

    def due(self) -> None:
        self.at = time.monotonic()
        self._called.append(self)


class Real(ManualClock):
    def monotonic(self) -> float:
        return time.monotonic()


async def test_nobody_is_called_early_and_those_of_a_moment_together() -> None:
    wheel, called = Wheel(Real()), list[Owner]()
    owners = [Owner(wheel, called) for _ in range(5)]
    when = time.monotonic() + 0.05
    slots = {wheel.set(owner, when) for owner in owners}
    assert len(slots) == 1
    await until(lambda: len(called) == 5)
    assert called == owners
    assert min(owner.at for owner in owners) >= when


async def test_who_clears_its_timer_is_not_called() -> None:
    wheel, called = Wheel(Real()), list[Owner]()
    first, second = Owner(wheel, called), Owner(wheel, called)
    slot = wheel.set(first, 0.0)
    wheel.set(second, 0.0)
    wheel.clear(first, slot)
    wheel.clear(first, slot)
    await until(lambda: bool(called))
    assert called == [second]


async def test_many_of_a_moment_let_others_run_between() -> None:
    """Each of them takes longer than a slice."""
    clock = ManualClock()
    wheel, called = Wheel(clock), list[Owner]()

    class Slow(Owner):
        def due(self) -> None:
            clock.advance(1.0)
            super().due()

    for _ in range(3):
        wheel.set(Slow(wheel, called), 0.0)
    seen = []
    async with asyncio.timeout(10):
        while len(called) < 3:
            seen.append(len(called))
            await asyncio.sleep(0)
    assert {1, 2} <= set(seen)


async def test_a_fault_of_one_takes_nobody_elses_timer() -> None:
    """Nothing would set it again: no JWT of those behind it would ever expire."""
    wheel, called, faults = Wheel(Real()), list[Owner](), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context["exception"]))

    class Broken(Owner):
        def due(self) -> None:
            super().due()
            raise RuntimeError("the handler is closed")

    owners = [Owner(wheel, called), Broken(wheel, called), Broken(wheel, called), Owner(wheel, called)]
    for owner in owners:
        wheel.set(owner, 0.0)
    await until(lambda: len(called) == 4)
    assert called == owners
    assert len(faults) == 2


@in_virtual_time
async def test_the_end_of_a_jwt_is_exact_behind_another_deadline() -> None:
    """A heartbeat is due a hundredth of a second before it, in the same tenth."""
    loop, limits = asyncio.get_running_loop(), Limits(heartbeat_interval_s=10, checkpoint_interval_s=1_000)
    heartbeat_s = limits.heartbeat_interval_s / 2
    clock = WorkingClock(loop, Random(0), 0.0)
    await asyncio.sleep(0.025)
    began = loop.time()
    check = MemoryVerifier({"alice": claims(left_s=began + heartbeat_s + 0.01)})
    async with running(limits, check=check, clock=clock) as world:
        peer = await world.signed_in()
        await asyncio.sleep(began + heartbeat_s + 0.009 - loop.time())
        assert peer.connection.closed is None
        await asyncio.sleep(0.006)
        assert peer.connection.closed == (4101, "the JWT has expired")
