"""Backoff with full jitter for upstream streams."""

from __future__ import annotations

from collections.abc import Callable

FIRST_S = 0.25
LONGEST_S = 10.0


class Backoff:
    """Doubles up to `LONGEST_S`; each wait is drawn from the upper half, so that instances spread but none is hot.

    `random` returns a float in [0, 1).
    """

    def __init__(
        self, random: Callable[[], float], first_s: float = FIRST_S, longest_s: float = LONGEST_S
    ) -> None:
        self._random = random
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s

    def reset(self) -> None:
        self._next_s = self._first_s

    def next_s(self) -> float:
        """Seconds to wait before the next attempt."""
        wait_s = self._next_s * (0.5 + 0.5 * self._random())
        self._next_s = min(self._next_s * 2, self._longest_s)
        return wait_s
