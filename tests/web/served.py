"""The whole application over a world on a real socket, in this process: by our protocols, or by uvicorn's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from uvicorn.server import ServerState
from websockets.asyncio.client import ClientConnection, connect

from feedsvc.adapters.web.http_protocol import FeedHttpProtocol
from feedsvc.adapters.web.server_protocol import FeedProtocol
from tests.runtime.world import DATABASE
from tests.support.resets import resets_when_closed
from tests.web.asking import Application, application

PROTOCOLS: dict[str, tuple[Any, Any]] = {
    "feedsvc": (FeedHttpProtocol, FeedProtocol),
    "websockets": (H11Protocol, WebSocketsSansIOProtocol),
    "wsproto": (H11Protocol, WSProtocol),
}
"""Ours, and those of uvicorn by the library that they are made with."""
SUBSCRIBE = '{"type":"subscribe","id":"s","topic":{"collection":"users"}}'


@asynccontextmanager
async def served(
    *, by: str = "feedsvc", wrapped: Callable[[ASGIApp], ASGIApp] = lambda app: app, **arguments: Any
) -> AsyncIterator[tuple[Application, int]]:
    """The application and its port on the loopback. All that was opened at it must be closed when the block ends."""
    async with application(**arguments) as web:
        web.world.oplog.create(DATABASE, "users")
        http, ws = PROTOCOLS[by]
        config = uvicorn.Config(wrapped(web.app), http=http, ws=ws, log_config=None, lifespan="off")
        config.load()
        state = ServerState()
        server = await asyncio.get_running_loop().create_server(
            lambda: http(config, state, {}), "127.0.0.1", 0
        )
        try:
            yield web, server.sockets[0].getsockname()[1]
            async with asyncio.timeout(10):
                while state.tasks:
                    await asyncio.wait(state.tasks)
        finally:
            server.close()
            for connection in list(state.connections):
                connection.transport.abort()
            await server.wait_closed()


async def peer_at(port: int, jwt: str | None, *, compress: bool = False) -> ClientConnection:
    """A WebSocket, with its credentials in the upgrade or none. Without a bound on its queue, or the library reads no
    close frame behind what nobody has taken."""
    return await connect(
        f"ws://127.0.0.1:{port}/v1/ws",
        additional_headers={} if jwt is None else {"Authorization": f"Bearer {jwt}"},
        proxy=None,
        max_size=None,
        max_queue=None,
        compression="deflate" if compress else None,
    )


async def reset(peer: ClientConnection) -> None:
    """Without a close frame, without a FIN."""
    resets_when_closed(peer.transport.get_extra_info("socket"))
    peer.transport.abort()
    await peer.wait_closed()
