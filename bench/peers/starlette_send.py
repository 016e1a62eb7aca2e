"""A peer: Starlette's `send_text` on uvicorn's sans-I/O protocol and uvloop, one socket after the other."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from bench.peers.orders import obey

_sockets: set[WebSocket] = set()


async def endpoint(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text('{"type":"live"}')
    _sockets.add(websocket)
    with contextlib.suppress(WebSocketDisconnect):
        while True:
            await websocket.receive_text()
    _sockets.discard(websocket)


async def send(payload: bytes, times: int) -> None:
    text = payload.decode()
    for _ in range(times):
        for websocket in list(_sockets):
            await websocket.send_text(text)


async def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
    config = uvicorn.Config(
        Starlette(routes=[WebSocketRoute("/", endpoint)]),
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve([listening]))
    await obey(listening.getsockname()[1], send)
    server.should_exit = True
    await serving


if __name__ == "__main__":
    uvloop.run(main())
