"""A response that never ends by itself, on our HTTP protocol: what a peer that is gone already makes of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from feedsvc.adapters.web.event_stream import EventStream
from feedsvc.adapters.web.http_protocol import FeedHttpProtocol, http_protocol_of
from feedsvc.adapters.web.stream_response import StreamResponse


async def test_a_peer_that_is_gone_before_the_first_byte_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """TRA-01: its socket is closing, and the server does not know it yet; nothing is written or logged for it."""
    ended = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        response = StreamResponse(scope, 1_000, 60, lambda: None)
        protocol = http_protocol_of(scope)
        assert protocol is not None
        protocol.transport.abort()
        await response.until_gone(EventStream(send, 1_000, 1_000, response.closing), receive)
        response.ended()
        ended.set()

    config = uvicorn.Config(app, http=FeedHttpProtocol, log_config=None, lifespan="off")
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: FeedHttpProtocol(config, state, {}), "127.0.0.1", 0
    )
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    async with asyncio.timeout(5):
        await ended.wait()
        while state.tasks:
            await asyncio.wait(state.tasks)
    writer.close()
    server.close()
    await server.wait_closed()
    assert caplog.records == []
