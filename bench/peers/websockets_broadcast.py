"""A peer: `websockets.broadcast` of the library of that name, on uvloop, without compression."""

from __future__ import annotations

import asyncio

import uvloop
from websockets.asyncio.server import ServerConnection, broadcast, serve

from bench.peers.orders import obey

_connections: set[ServerConnection] = set()


async def handle(connection: ServerConnection) -> None:
    await connection.send('{"type":"live"}')
    _connections.add(connection)
    try:
        await connection.wait_closed()
    finally:
        _connections.discard(connection)


async def send(payload: bytes, times: int) -> None:
    text = payload.decode()
    for _ in range(times):
        broadcast(_connections, text)
    await asyncio.sleep(0)


async def main() -> None:
    async with serve(handle, "127.0.0.1", 0, compression=None, backlog=4096) as server:
        await obey(next(iter(server.sockets)).getsockname()[1], send)


if __name__ == "__main__":
    uvloop.run(main())
