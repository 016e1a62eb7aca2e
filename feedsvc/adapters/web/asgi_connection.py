"""`ports.Connection` on the plain ASGI path, for a server that is not ours (`TransportConnection` is for that one).

`write` only queues; one task per connection hands frames to `send`, which waits while the transport is full. So the
queue is the transport's buffer as the runtime sees it: over the high-water mark `writable` is False, and the callback
runs when it has drained to half of it. A close waits for what was written before: how long a peer may hold that up is
the server's affair. `EventStream` is the same with other messages: it overrides `_deliver` and `_finish`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from starlette.types import Send

from feedsvc.core.burst import Burst

_REASON_BYTES = 123
"""The most that a close frame can carry (RFC 6455, section 5.5)."""


class AsgiConnection:
    """`run` is the writer; it returns when the close was sent or the peer is gone."""

    direct = None

    def __init__(self, send: Send, high_water_bytes: int) -> None:
        self._send = send
        self._high_water_bytes = high_water_bytes
        self._frames: deque[bytes] = deque()
        self._size_bytes = 0
        self._full = False
        self._callback: Callable[[], None] | None = None
        self._wake = asyncio.Event()
        self._closing: tuple[int, str] | None = None
        self.frames_sent = 0
        self.bytes_sent = 0

    @property
    def writable(self) -> bool:
        return not self._full and self._closing is None

    @property
    def close_sent(self) -> tuple[int, str] | None:
        """Code and reason with which this side closed, None if it did not."""
        return self._closing

    def write(self, frames: Sequence[bytes]) -> None:
        if self._closing is not None:
            return
        self._frames.extend(frames)
        self._size_bytes += sum(map(len, frames))
        self._wake.set()
        if self._size_bytes >= self._high_water_bytes and not self._full:
            self._full = True
            self._tell()

    def write_burst(self, burst: Burst) -> None:
        self.write(burst.frames)

    def on_room(self, callback: Callable[[], None]) -> None:
        self._callback = callback

    def close(self, code: int, reason: str = "") -> None:
        if self._closing is not None:
            return
        self._closing = (code, reason.encode()[:_REASON_BYTES].decode(errors="ignore"))
        self._wake.set()

    async def run(self) -> None:
        """Hand frames to the server, in order, until a close. Whatever `send` raises means that the peer is gone."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._frames:
                await self._deliver(self._frames)
            if self._closing is not None:
                await self._finish(*self._closing)
                return

    async def _deliver(self, frames: deque[bytes]) -> None:
        """Hand over the first of the queue."""
        frame = frames.popleft()
        await self._send({"type": "websocket.send", "text": frame.decode()})
        self._delivered(1, len(frame))

    async def _finish(self, code: int, reason: str) -> None:
        await self._send({"type": "websocket.close", "code": code, "reason": reason})

    def _delivered(self, count: int, size_bytes: int) -> None:
        """The server has taken so much."""
        self.frames_sent += count
        self.bytes_sent += size_bytes
        self._size_bytes -= size_bytes
        self._drained()

    def _drained(self) -> None:
        if self._full and self._size_bytes <= self._high_water_bytes // 2 and self._closing is None:
            self._full = False
            self._tell()

    def _tell(self) -> None:
        if self._callback is not None:
            self._callback()
