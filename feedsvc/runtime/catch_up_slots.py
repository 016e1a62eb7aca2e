"""Slots of catch-up tails: awaited, and given to tenants in turn (`turns.py`)."""

from __future__ import annotations

import asyncio

from feedsvc.runtime.turns import Turns


class CatchUpSlots:
    """`slots` in all. While others may come one tenant leaves one of them: no storm of its clients takes them all.

    A feed waits for one slot at a time, so the feeds of a tenant take turns, too.
    """

    def __init__(self, slots: int) -> None:
        self._turns: Turns[asyncio.Future[None]] = Turns(slots, max(1, slots - 1))

    async def acquire(self, tenant: str) -> None:
        """Wait for a slot; give it back with `release`."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.wait(tenant, turn)
        self._start_next()
        try:
            await turn
        except asyncio.CancelledError:
            self._turns.leave(tenant, turn)
            if turn.done() and not turn.cancelled():
                self.release(tenant)
            raise

    def release(self, tenant: str) -> None:
        self._turns.free(tenant)
        self._start_next()

    def _start_next(self) -> None:
        while (turn := self._turns.next()) is not None:
            turn.set_result(None)
