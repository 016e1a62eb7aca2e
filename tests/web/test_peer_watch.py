"""Whether a peer is still there, by what its kernel acknowledges."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from uvloop.loop import PseudoSocket  # type: ignore[attr-defined]

from feedsvc.adapters.web.peer_watch import PeerWatch, last_heard_s
from tests.support.sse_socket import vanish

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO as Linux has it")
TIMEOUT_S = 3.0


@pytest.fixture
async def pair() -> AsyncIterator[tuple[asyncio.Transport, socket.socket]]:
    """The transport of an accepted connection, and its peer's socket."""
    loop = asyncio.get_running_loop()
    made: asyncio.Future[asyncio.Transport] = loop.create_future()

    class Accepted(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            made.set_result(transport)

    server = await loop.create_server(Accepted, "127.0.0.1", 0)
    peer = socket.create_connection(server.sockets[0].getsockname())
    transport = await made
    yield transport, peer
    peer.close()
    transport.abort()
    server.close()
    await server.wait_closed()


async def test_a_peer_that_vanished_is_told_once_and_within_the_time_out(
    pair: tuple[asyncio.Transport, socket.socket],
) -> None:
    """Though neither side writes anything: keep-alive asks. Not while the peer still answered."""
    transport, peer = pair
    gone = asyncio.Event()
    calls: list[float] = []

    def told() -> None:
        calls.append(time.monotonic())
        gone.set()

    watch = PeerWatch(transport, TIMEOUT_S, told)
    vanish(peer)
    began = time.monotonic()
    await asyncio.wait_for(gone.wait(), TIMEOUT_S + 1)
    assert TIMEOUT_S / 3 < calls[0] - began < TIMEOUT_S + 0.5
    watch.stop()
    assert len(calls) == 1


async def test_a_watch_that_was_stopped_says_nothing(pair: tuple[asyncio.Transport, socket.socket]) -> None:
    """A response that is over has nobody to lose."""
    transport, _ = pair
    calls: list[int] = []
    PeerWatch(transport, 0.001, lambda: calls.append(1)).stop()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 0.05)
    assert calls == []


def test_what_is_no_tcp_connection_is_not_known() -> None:
    """A Unix socket, behind some proxies."""
    one, other = socket.socketpair()
    with one, other:
        assert last_heard_s(one) is None


def test_a_connection_that_ended_is_not_known() -> None:
    """A timer may come between the end of a connection and its response's hearing of it: uvloop's socket is then so."""
    assert last_heard_s(PseudoSocket(socket.AF_INET, socket.SOCK_STREAM, 0, -1)) is None
    closed = socket.socket()
    closed.close()
    assert last_heard_s(closed) is None
