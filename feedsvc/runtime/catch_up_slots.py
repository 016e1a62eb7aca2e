"""Slots of catch-up tails: awaited, and given to tenants in turn (`turns.py`)."""

from __future__ import annotations

import asyncio

import msgspec

from feedsvc.runtime.turns import Turns


class _Waiter(msgspec.Struct, frozen=True, eq=False):
    tenant: str
    turn: asyncio.Future[None]


class CatchUpSlots:
    """`slots` in all. While others may come one tenant leaves one of them: no storm of its clients takes them all.

    `shared`: whether others may come. At scope `deployment` the one feed is that of all tenants, and takes every slot.
    A feed waits for one slot at a time, so the feeds of a tenant take turns, too.
    """

    def __init__(self, slots: int, *, shared: bool) -> None:
        self._turns: Turns[_Waiter] = Turns(slots, max(1, slots - 1) if shared else slots)

    async def acquire(self, tenant: str) -> None:
        """Wait for a slot; give it back with `release`."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(tenant, turn)
        self._turns.wait(tenant, waiter)
        self._start_next()
        try:
            await turn
        except asyncio.CancelledError:
            self._turns.leave(tenant, waiter)
            if turn.done() and not turn.cancelled():
                self.release(tenant)
            raise

    def release(self, tenant: str) -> None:
        self._turns.free(tenant)
        self._start_next()

    def wanted(self, tenant: str) -> bool:
        """Whether somebody waits for the slot of a tenant that has one."""
        return self._turns.wanted(tenant)

    def _start_next(self) -> None:
        while (waiter := self._turns.next()) is not None:
            if waiter.turn.cancelled():  # in this round of the loop: it has not left the queue yet
                self._turns.free(waiter.tenant)
            else:
                waiter.turn.set_result(None)
