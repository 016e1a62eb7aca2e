"""The lifecycle of a process: started, accepting, draining; and the set of its clients.

A process leaves as planned: readiness goes off while it still accepts, until proxies have noticed; then every client is
told `goaway` with a time of its own, is closed at that time, and only then does the server stop. The times are spread
evenly over most of the drain, so that neither who heeds them nor who only sees the close comes back with all others.
What cannot be closed is left to the transport's abort.
"""

from __future__ import annotations

import asyncio

from feedsvc.core.limits import Limits
from feedsvc.runtime.client import Client
from feedsvc.runtime.set_within import set_within

_CLOSES_END_AT = 0.8
"""The part of the drain time in which clients are closed; the rest is for closing handshakes and the streams."""


class Lifecycle:
    """Holds every client from accept to close."""

    def __init__(self) -> None:
        self.draining = False
        """Nobody new is let in."""
        self._announcing = False
        self.clients: set[Client] = set()
        self._frames_before = self._bytes_before = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def add(self, client: Client) -> None:
        self.clients.add(client)
        self._empty.clear()

    def remove(self, client: Client) -> None:
        if client in self.clients:
            self.clients.discard(client)
            self._frames_before += client.connection.frames_sent
            self._bytes_before += client.connection.bytes_sent
        if not self.clients:
            self._empty.set()

    def sent(self) -> tuple[int, int]:
        """Frames and bytes handed to the transports of all clients, also of those that are gone: linear in clients."""
        frames, size_bytes = self._frames_before, self._bytes_before
        for client in self.clients:
            connection = client.connection
            frames += connection.frames_sent
            size_bytes += connection.bytes_sent
        return frames, size_bytes

    @property
    def leaving(self) -> bool:
        """Proxies shall send nobody any more."""
        return self._announcing or self.draining

    async def leave(self, limits: Limits) -> None:
        """Accept for `announce_s` more seconds without being ready, whoever is connected, then drain."""
        self._announcing = True
        await asyncio.sleep(limits.announce_s)
        await self.drain(limits.drain_s)

    async def drain(self, drain_s: float) -> None:
        """Tell and close every client, spread over `drain_s`. Returns early once all are gone, and never later."""
        self.draining = True
        loop = asyncio.get_running_loop()
        begin = loop.time()
        clients = list(self.clients)
        after_s = [drain_s * _CLOSES_END_AT * index / len(clients) for index in range(len(clients))]
        for client, when_s in zip(clients, after_s, strict=True):
            client.goaway(int(1000 * when_s))
        for client, when_s in zip(clients, after_s, strict=True):
            await self._until(begin + when_s)
            client.close("going_away")
        await self._until(begin + drain_s)

    async def _until(self, when: float) -> None:
        """Wait until a loop time or until no client is left."""
        await set_within(self._empty, max(0.0, when - asyncio.get_running_loop().time()))
