"""Sockets without a request: they end by themselves, and those with one are left alone."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from collections.abc import AsyncIterator

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from feedsvc.adapters.web import http_protocol
from feedsvc.adapters.web.http_protocol import FeedHttpProtocol
from tests.web.served import peer_at, served


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers after a while, which is longer than the deadline of these tests."""
    await asyncio.sleep(0.4 if scope["path"] == "/slow" else 0)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
async def port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    monkeypatch.setattr(http_protocol, "REQUEST_WITHIN_S", 0.2)
    config = uvicorn.Config(app, http="h11", lifespan="off", log_config=None, timeout_keep_alive=30)
    config.load()
    state = ServerState()

    def protocol() -> FeedHttpProtocol:
        return FeedHttpProtocol(config, state, {})

    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    for connection in list(state.connections):
        connection.shutdown()
    server.close()


@pytest.mark.parametrize(
    ("answered", "more"),
    [
        (b"", b""),
        (b"", b"GET / HTTP/1.1\r\nHost: a\r\nX: "),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"GET / HTTP/1.1\r\nHost:"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n", b"x"),
    ],
    ids=["nothing", "half a head", "half a second head", "half a body"],
)
async def test_a_socket_that_owes_a_request_is_closed(port: int, answered: bytes, more: bytes) -> None:
    """Also where it says something now and then, which stops uvicorn's own timer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    if answered:
        writer.write(answered)
        await reader.readuntil(b"\r\n\r\n")
    writer.write(more)
    async with asyncio.timeout(5):
        await reader.read()
    writer.close()
    await writer.wait_closed()


async def test_a_request_that_takes_longer_is_answered(port: int) -> None:
    """The deadline is the peer's; what the service takes does not count, nor the pause behind an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for path in (b"/slow", b"/"):
        writer.write(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % path)
        async with asyncio.timeout(5):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.4):
                await reader.read(1)
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 20_000,
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: nine\r\n\r\n",
    ],
    ids=["TLS", "no host", "a head without end", "no length"],
)
async def test_what_is_no_request_is_a_problem(port: int, data: bytes) -> None:
    """And the end of the connection, as where a request is wrong in another way."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    async with asyncio.timeout(5):
        head = await reader.readuntil(b"\r\n\r\n")
        body = json.loads(await reader.read())
    assert head.startswith(b"HTTP/1.1 400 ") and b"application/problem+json" in head
    assert (body["code"], body["status"]) == ("bad_request", 400)
    writer.close()


async def test_nonsense_behind_an_answer_ends_the_connection(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer came before the body; what then comes in its place is no fault of ours."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    async with asyncio.timeout(5):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.write(b"nonsense\r\n")
        assert await reader.read() == b""
    writer.close()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_an_upgraded_socket_keeps_nothing_of_http() -> None:
    """Its deadline would keep the parser, the head and the rest of it for ten seconds: for each client of a storm."""
    gc.collect()
    before = len(http_protocols())
    async with served() as (_, port):
        peer = await peer_at(port, "alice")
        await peer.recv()
        gc.collect()
        assert len(http_protocols()) <= before
        await peer.close()


def http_protocols() -> list[object]:
    return [found for found in gc.get_objects() if type(found) is FeedHttpProtocol]
