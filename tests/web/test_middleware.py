"""TRA-03: nothing between server and application may hide that a client is gone, or keep a stream at a shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from tests.runtime.world import DATABASE
from tests.web.served import served

NOTICED_WITHIN_S = 2.0
GET = b"GET /v1/sse?topic=%7B%22collection%22:%22users%22%7D HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer alice\r\n\r\n"


class PassesOn(BaseHTTPMiddleware):
    """What an operator might put before the application; it wraps `receive` and `send`."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)


@pytest.mark.parametrize("wrapped", [lambda app: app, PassesOn], ids=["as it is", "behind a middleware"])
async def test_streams_end_with_their_clients_and_with_the_service(
    wrapped: Callable[[ASGIApp], ASGIApp],
) -> None:
    """A client that closes is gone from the service at once; a drain ends the response of another, told by `close`."""
    async with served(wrapped=wrapped) as (web, port):
        first, second = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for reader, writer in (first, second):
            writer.write(GET)
            await reader.readuntil(b"event: live")
        assert len(web.lifecycle.clients) == 2
        first[1].close()
        async with asyncio.timeout(NOTICED_WITHIN_S):
            while len(web.lifecycle.clients) == 2:
                await first[1].wait_closed()
                await asyncio.sleep(0)
        assert web.world.subscriptions() == 1
        web.world.oplog.insert(DATABASE, "users", {"_id": 1})
        await second[0].readuntil(b"event: event")
        draining = asyncio.create_task(web.lifecycle.drain(1.0))
        async with asyncio.timeout(NOTICED_WITHIN_S):
            rest = await second[0].read()
        assert b"event: goaway" in rest and b'"code":4200' in rest
        assert rest.endswith(b"\r\n0\r\n\r\n")
        await draining
        assert not web.lifecycle.clients and not web.world.subscriptions()
        second[1].close()
