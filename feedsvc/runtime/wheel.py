"""The timers of many clients, to a tenth of a second: those that fall due together run in one round of the loop.

Ten thousand idle clients have some thousand deadlines a second. One by one each would wake the process and find its
code and its data gone from the caches, which costs several times what is to be done.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Protocol

from feedsvc.ports import Clock

GRAIN_S = 0.1
NO_SLOT = -1
"""A slot that is never used, for an owner who set a timer of its own."""
_SLICE_S = 0.005
"""How long those of one moment may hold the event loop before it lets others run."""


class Due(Protocol):
    """Whose timer it is; hashable by identity."""

    def due(self) -> None:
        """Its time has come, or came up to a tenth of a second ago. Also for one that was cleared while others of its
        moment ran. Must not raise."""
        ...


class Wheel:
    """At most one timer for each owner and slot: the owner keeps the slot that `set` returned, to `clear` it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.now = clock.monotonic
        """Monotonic seconds."""
        self._slots: dict[int, dict[Due, None]] = {}

    def set(self, owner: Due, when: float) -> int:
        """`when`: monotonic seconds; never called before that, whatever the loop's timers do."""
        slot = math.ceil(when / GRAIN_S)
        owners = self._slots.get(slot)
        if owners is None:
            owners = self._slots[slot] = {}
            delay_s = max(0.0, slot * GRAIN_S - self._clock.monotonic())
            asyncio.get_running_loop().call_later(delay_s, self._run, slot)
        owners[owner] = None
        return slot

    def clear(self, owner: Due, slot: int) -> None:
        """It is not called any more, unless its time has come already."""
        owners = self._slots.get(slot)
        if owners is not None:
            owners.pop(owner, None)

    def _run(self, slot: int) -> None:
        early_s = slot * GRAIN_S - self._clock.monotonic()
        if early_s > 0:  # a timer of uvloop may come early by less than a millisecond
            asyncio.get_running_loop().call_later(early_s, self._run, slot)
            return
        self._go_on(iter(self._slots.pop(slot)))

    def _go_on(self, owners: Iterator[Due]) -> None:
        until = self._clock.monotonic() + _SLICE_S
        for owner in owners:
            try:
                owner.due()
            except BaseException:  # the loop reports it, and the others have their turn
                asyncio.get_running_loop().call_soon(self._go_on, owners)
                raise
            if self._clock.monotonic() > until:
                asyncio.get_running_loop().call_soon(self._go_on, owners)
                return
