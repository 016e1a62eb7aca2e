"""The lifecycle of a process: started, accepting, draining; and the set of its clients.

A drain is planned: readiness goes off, every client is told `goaway` with a time of its own, the closes are spread
over the drain time, and only then does the server stop. What cannot be closed is left to the transport's abort.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from feedsvc.runtime.client import Client

_CLOSES_END_AT = 0.8
"""The part of the drain time in which clients are closed; the rest is for closing handshakes and the streams."""


class Lifecycle:
    """Holds every client from accept to close. `random` returns a float in [0, 1)."""

    def __init__(self, random: Callable[[], float]) -> None:
        self.draining = False
        self.clients: set[Client] = set()
        self._random = random
        self._sent_before = (0, 0)
        self._empty = asyncio.Event()
        self._empty.set()

    def add(self, client: Client) -> None:
        self.clients.add(client)
        self._empty.clear()

    def remove(self, client: Client) -> None:
        if client in self.clients:
            self.clients.discard(client)
            self._sent_before = _more(self._sent_before, client)
        if not self.clients:
            self._empty.set()

    def sent(self) -> tuple[int, int]:
        """Frames and bytes handed to the transports of all clients, also of those that are gone: linear in clients."""
        sent = self._sent_before
        for client in self.clients:
            sent = _more(sent, client)
        return sent

    async def drain(self, drain_s: float) -> None:
        """Tell and close every client, spread over `drain_s`. Returns early once all are gone, and never later."""
        self.draining = True
        loop = asyncio.get_running_loop()
        end = loop.time() + drain_s
        spread_s = drain_s * _CLOSES_END_AT
        clients = list(self.clients)
        for client in clients:
            client.goaway(int(1000 * spread_s * self._random()))
        for index, client in enumerate(clients):
            await self._until(end - drain_s + spread_s * index / len(clients))
            client.close("going_away")
        await self._until(end)

    async def _until(self, when: float) -> None:
        """Wait until a loop time or until no client is left."""
        try:
            await asyncio.wait_for(self._empty.wait(), max(0.0, when - asyncio.get_running_loop().time()))
        except TimeoutError:
            return


def _more(sent: tuple[int, int], client: Client) -> tuple[int, int]:
    connection = client.connection
    return sent[0] + connection.frames_sent, sent[1] + connection.bytes_sent
