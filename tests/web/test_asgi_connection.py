"""A connection on the plain ASGI path: order, flow control, and a close that nobody holds up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from feedsvc.adapters.web.asgi_connection import AsgiConnection

HIGH_WATER_BYTES = 100


class Peer:
    """The other end of `send`: takes messages while it is open, and tells when it has taken one."""

    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []
        self.open = asyncio.Event()
        self.open.set()

    async def send(self, message: Any) -> None:
        await self.open.wait()
        self.taken.append(dict(message))

    @property
    def texts(self) -> list[str]:
        return [message["text"] for message in self.taken if message["type"] == "websocket.send"]


async def settle() -> None:
    """Let every task run as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
async def peer() -> Peer:
    return Peer()


@pytest.fixture
async def connection(peer: Peer) -> AsyncIterator[AsgiConnection]:
    connection = AsgiConnection(peer.send, HIGH_WATER_BYTES)
    writer = asyncio.create_task(connection.run())
    yield connection
    writer.cancel()
    await asyncio.gather(writer, return_exceptions=True)


async def test_frames_leave_in_order_and_are_counted(peer: Peer, connection: AsgiConnection) -> None:
    connection.write([b"one", b"two"])
    connection.write(["thr\u00e9e".encode()])
    await settle()
    assert peer.texts == ["one", "two", "thr\u00e9e"]
    assert (connection.frames_sent, connection.bytes_sent) == (3, 12)


async def test_it_is_full_at_the_mark_and_has_room_at_half_of_it(
    peer: Peer, connection: AsgiConnection
) -> None:
    calls: list[bool] = []
    connection.on_room(lambda: calls.append(connection.writable))
    peer.open.clear()
    connection.write([b"x" * 50])
    assert connection.writable
    connection.write([b"x" * 50])
    assert not connection.writable
    await settle()
    assert calls == [False]
    peer.open.set()
    await settle()
    assert calls == [False, True]
    assert connection.writable


async def test_below_the_mark_nobody_is_called(peer: Peer, connection: AsgiConnection) -> None:
    calls: list[int] = []
    connection.on_room(lambda: calls.append(1))
    connection.write([b"x" * 99])
    await settle()
    assert calls == []


async def test_a_close_follows_what_was_written_and_is_sent_once(
    peer: Peer, connection: AsgiConnection
) -> None:
    connection.write([b"last"])
    connection.close(4200, "going away")
    connection.close(1000, "again")
    connection.write([b"too late"])
    await settle()
    assert [message["type"] for message in peer.taken] == ["websocket.send", "websocket.close"]
    assert (peer.taken[-1]["code"], peer.taken[-1]["reason"]) == (4200, "going away")
    assert connection.close_sent == (4200, "going away")
    assert not connection.writable


async def test_a_reason_fits_into_a_close_frame_and_stays_text(
    peer: Peer, connection: AsgiConnection
) -> None:
    connection.close(4000, "\u00e9" * 100)
    await settle()
    reason = peer.taken[-1]["reason"]
    assert reason == "\u00e9" * 61
