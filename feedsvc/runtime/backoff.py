"""When a stream that failed may be opened again: at most three times in ten seconds, and no server is ever hot.

The first wait is short, since most failures are over at once (a killed cursor, a connection that was reset, a new
primary); the next ones are long, since the others are not. A stream that opens, delivers something and fails again
is no success: the count starts anew only once a stream was healthy for `HEALTHY_S`. So however opens and failures
alternate, the distances between opens are at least 0.4, 4.8, 9.6, 9.6, ... seconds.

An attempt that found no server costs nobody anything (`SourceUnavailable.reached`): it is not counted, and the next
one follows after `UNREACHED_S`. The driver itself waits for a server for seconds inside an attempt, and an outage is
over as soon as it finds one.
"""

from __future__ import annotations

from collections.abc import Callable

from feedsvc.ports import SourceUnavailable

WAITS_S = (0.5, 6.0, 12.0)
"""The last one repeats."""

HEALTHY_S = 10.0
UNREACHED_S = 0.5
_SPREAD = 0.2
"""Waits are drawn from the upper fifth, so that instances spread."""


class Backoff:
    """One series of attempts, which several readers may share: each takes a turn of its own.

    `random` returns a float in [0, 1). Times are monotonic seconds.
    """

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._failures = 0
        self._turn = float("-inf")

    def after(self, error: Exception, now: float) -> float:
        """An attempt or a stream failed: seconds until its next attempt."""
        return self._turn_s(now) if self._counts(error) else self._spread(UNREACHED_S)

    def given_up(self, error: Exception) -> float:
        """A failure whose reader does not try again by itself; it may go in so many seconds.

        Others of the series find out in `first_s`.
        """
        return 0.0 if self._counts(error) else self._spread(UNREACHED_S)

    def first_s(self, now: float) -> float:
        """Seconds until the first attempt of one more reader; 0 unless others have failed lately."""
        return self._turn_s(now) if self._failures else 0.0

    def healthy(self, since: float, now: float) -> None:
        """A stream that was opened at `since` still answers."""
        if self._failures and now - since >= HEALTHY_S:
            self.reset()

    def reset(self) -> None:
        self._failures = 0
        self._turn = float("-inf")

    def _counts(self, error: Exception) -> bool:
        if isinstance(error, SourceUnavailable) and not error.reached:
            return False
        self._failures += 1
        return True

    def _turn_s(self, now: float) -> float:
        wait_s = WAITS_S[min(self._failures, len(WAITS_S)) - 1]
        self._turn = max(self._turn, now) + self._spread(wait_s)
        return self._turn - now

    def _spread(self, wait_s: float) -> float:
        return wait_s * (1 - _SPREAD + _SPREAD * self._random())
