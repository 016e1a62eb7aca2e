"""Upgrades at a pace: a storm of reconnects must not stop the loop for those that are connected.

An upgrade costs a signature and the start of a client, about half a millisecond. Without a pace thousands of them,
which the kernel hands over at once, would all run within one round of the loop, and every event would wait for them.
"""

from __future__ import annotations

import asyncio
from collections import deque

UPGRADES_A_ROUND = 8
"""About 4 ms. Between two rounds the loop looks at all other sockets."""


class Pace:
    """Lets so many through in each round of the loop; the rest wait, in order of arrival."""

    def __init__(self, a_round: int = UPGRADES_A_ROUND) -> None:
        self._a_round = a_round
        self._left = a_round
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._running = False

    async def turn(self) -> None:
        """Wait for this round or a later one."""
        if self._left and not self._waiting:
            self._left -= 1
            self._go_on()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _go_on(self) -> None:
        if not self._running:
            self._running = True
            asyncio.get_running_loop().call_soon(self._next_round)

    def _next_round(self) -> None:
        self._running = False
        self._left = self._a_round
        while self._waiting and self._left:
            turn = self._waiting.popleft()
            if not turn.done():  # else it was cancelled
                turn.set_result(None)
                self._left -= 1
        if self._left < self._a_round:
            self._go_on()
