"""How often something may happen: so many at once, and so many in each second from then on.

A bucket that fills steadily (token bucket), looked at only when something is taken. Constant time and memory.
"""

from __future__ import annotations

_ROUNDING = 1e-9
"""Sums of tenths are not whole."""


class Rate:
    """Full at first. `now` arguments are monotonic seconds."""

    __slots__ = ("_at_once", "_looked_at", "_per_second", "_room")

    def __init__(self, at_once: float, per_second: float) -> None:
        self._at_once = self._room = at_once
        self._per_second = per_second
        self._looked_at = 0.0

    def take(self, now: float, amount: float = 1.0) -> float:
        """Take `amount`: 0.0, or in how many seconds it can be taken. A refusal costs nothing."""
        self._room = min(self._at_once, self._room + (now - self._looked_at) * self._per_second)
        self._looked_at = now
        missing = amount - self._room
        if missing > _ROUNDING:
            return missing / self._per_second
        self._room -= amount
        return 0.0
