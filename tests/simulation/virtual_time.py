"""An event loop whose time is virtual: when every task waits, the clock jumps to the next timer.

Nothing sleeps and no socket is read, so a schedule of a virtual minute takes milliseconds and always runs alike.
"""

from __future__ import annotations

import asyncio
import selectors
from random import Random

from feedsvc.testing import START


class DeadlockError(Exception):
    """Every task waits for another one, and no timer is set."""


class LivelockError(Exception):
    """Tasks keep each other running, and time stands still."""


_MOST_TURNS = 5_000


class _Selector(selectors.SelectSelector):
    now = 0.0
    turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise DeadlockError("nothing can happen any more")
        self.turns += 1
        # A turn takes a little time itself, or a deadline that is a rounding error away would never come.
        self.now += timeout + 1e-7
        if timeout > 1e-4:
            self.turns = 0
        elif self.turns > _MOST_TURNS:
            raise LivelockError("time stands still")
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    def rewind(self) -> None:
        """Forget how many turns were taken so far."""
        self._virtual.turns = 0


class WorkingClock:
    """`ports.Clock` on virtual time on which work takes time: `laziness` is how often a question costs 6 ms.

    A step that holds the loop for longer than its slice lets others run, so this decides where steps are suspended.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: Random, laziness: float) -> None:
        self._loop = loop
        self._rng = rng
        self._laziness = laziness
        self._worked = 0.0

    def monotonic(self) -> float:
        if self._laziness and self._rng.random() < self._laziness:
            self._worked += 0.006
        return self.now

    @property
    def now(self) -> float:
        """The same, for a look from outside that costs nothing."""
        return self._loop.time() + self._worked

    def wall(self) -> float:
        return (START >> 32) + self._loop.time()
