"""The floor: uvloop's `transport.write` of a frame that is ready, nothing else."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from typing import Any

import uvloop

from bench.peers.orders import obey

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_transports: set[asyncio.Transport] = set()


class Upgraded(asyncio.Protocol):
    """Answers the upgrade; what comes later is thrown away."""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._head = b""

    def data_received(self, data: bytes) -> None:
        if self._transport in _transports:
            return
        self._head += data
        if b"\r\n\r\n" not in self._head:
            return
        lines = self._head.split(b"\r\n")
        (key,) = [line.split(b": ")[1] for line in lines if line.lower().startswith(b"sec-websocket-key")]
        accept = base64.b64encode(hashlib.sha1(key + _GUID).digest())
        self._transport.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n" + _framed(b'{"type":"live"}')
        )
        _transports.add(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        _transports.discard(self._transport)


def _framed(payload: bytes) -> bytes:
    size = len(payload)
    if size < 126:
        return bytes((0x81, size)) + payload
    if size < 1 << 16:
        return bytes((0x81, 126)) + size.to_bytes(2, "big") + payload
    return bytes((0x81, 127)) + size.to_bytes(8, "big") + payload


def broadcast(payload: bytes, times: int) -> None:
    """One write for each frame and transport; uvloop hands each to the kernel by itself (`deliveries_per_write`)."""
    frame = _framed(payload)
    for transport in _transports:
        for _ in range(times):
            transport.write(frame)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Upgraded, "127.0.0.1", 0, backlog=4096)
    async with server:
        await obey(server.sockets[0].getsockname()[1], broadcast)


if __name__ == "__main__":
    uvloop.run(main())
