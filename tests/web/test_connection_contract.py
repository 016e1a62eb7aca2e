"""The promises of the port `Connection`, on every implementation: each has a peer that reads, or does not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from feedsvc.core.burst import Burst
from tests.support.transports import (
    ROOM_FRAMES,
    AsgiTransport,
    CarriedTransport,
    DirectTransport,
    MemoryTransport,
    StreamTransport,
    Transport,
    event,
)


@contextlib.asynccontextmanager
async def opened(kind: str) -> AsyncIterator[Any]:
    if kind == "memory":
        yield MemoryTransport()
    elif kind != "asgi":
        transport = StreamTransport() if kind == "stream" else CarriedTransport(compress="compress" in kind)
        await transport.open()
        yield transport
        await transport.close()
    else:
        asgi = AsgiTransport()
        yield asgi
        asgi.writer.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asgi.writer


@pytest.fixture(params=["memory", "asgi", "carried", "carried, compressed", "stream"])
async def transport(request: pytest.FixtureRequest) -> AsyncIterator[Transport]:
    async with opened(request.param) as transport:
        yield transport


async def test_frames_arrive_whole_and_in_order(transport: Transport) -> None:
    frames = [event(number, size) for number, size in enumerate((60, 61, 62, 125, 126, 70_000))]
    transport.connection.write(frames[:2])
    transport.connection.write(frames[2:3])
    transport.connection.write_burst(Burst(frames[3:]))
    assert await transport.read_all() == frames


async def test_a_peer_that_does_not_read_ends_writable_and_its_reading_brings_it_back(
    transport: Transport,
) -> None:
    """`writable` turns false by writing alone, and the callback runs each time it turns."""
    turned: list[bool] = []
    connection = transport.connection
    connection.on_room(lambda: turned.append(connection.writable))
    assert connection.writable
    for rounds in (1, 2):
        await transport.stop_reading()
        written = 0
        while connection.writable:
            connection.write([event(written)])
            written += 1
            assert written <= 2 * ROOM_FRAMES  # the kernel takes a few, too
        assert turned[-1] is False
        await transport.read_all()
        assert connection.writable
        assert turned == [False, True] * rounds


async def test_what_is_written_to_a_full_connection_is_not_lost(transport: Transport) -> None:
    """Answers may be written although it is full: it is for the runtime to stop."""
    await transport.stop_reading()
    frames = [event(number) for number in range(ROOM_FRAMES * 2)]
    for frame in frames:
        transport.connection.write([frame])
    assert await transport.read_all() == frames


async def test_the_first_close_wins_and_ends_writing(transport: Transport) -> None:
    connection = transport.connection
    connection.write([event(1)])
    connection.close(4200, "going_away")
    connection.close(4000, "another")
    connection.write([event(2)])
    connection.write_burst(Burst([event(3)]))
    assert not connection.writable
    assert await transport.closed_with() == (4200, "going_away")
    assert await transport.read_all() == [event(1)]


async def test_a_closed_connection_does_not_ask_for_more(transport: Transport) -> None:
    """Nobody may be told that there is room in a connection that is closing."""
    turned: list[bool] = []
    transport.connection.on_room(lambda: turned.append(transport.connection.writable))
    await transport.stop_reading()
    while transport.connection.writable:
        transport.connection.write([event(1)])
    transport.connection.close(4201)
    await transport.read_all()
    assert turned == [False]


@pytest.fixture(params=["memory", "carried", "carried, compressed"])
async def past_it(request: pytest.FixtureRequest) -> AsyncIterator[DirectTransport]:
    """Those with a socket that may be written to past them."""
    async with opened(request.param) as transport:
        yield transport


def write_past(transport: DirectTransport, frame: bytes) -> bool:
    """As a fan-out does; whether the socket took all of it."""
    direct = transport.connection.direct
    assert direct is not None
    burst = Burst([frame])
    rests = transport.write_each([direct.descriptor], burst.deflated if direct.deflates else burst.websocket)
    for _, rest in rests:
        direct.write_rest(rest)
    return not rests


async def test_what_is_written_past_it_keeps_its_order(past_it: DirectTransport) -> None:
    frames = [event(number, size) for number, size in enumerate((60, 61, 125, 126, 4_000, 80))]
    for number, frame in enumerate(frames):
        if number % 2:
            assert write_past(past_it, frame)
        else:
            past_it.connection.write([frame])
    assert await past_it.read_all() == frames


async def test_what_a_socket_does_not_take_ends_writable_and_nothing_of_it_is_lost(
    past_it: DirectTransport,
) -> None:
    """At once: whoever writes past a transport that is not empty overtakes what it holds."""
    turned: list[bool] = []
    connection = past_it.connection
    connection.on_room(lambda: turned.append(connection.writable))
    frames: list[bytes] = []
    for rounds in (1, 2):
        await past_it.stop_reading()
        taken = True
        while connection.writable:
            frames.append(event(len(frames)))
            taken = write_past(past_it, frames[-1])
            assert len(frames) <= 4 * ROOM_FRAMES  # the kernel takes a few, too
        assert not taken
        assert turned[-1] is False
        frames.append(event(len(frames)))
        connection.write([frames[-1]])
        assert await past_it.read_all() == frames
        assert connection.writable
        assert turned == [False, True] * rounds


async def test_a_close_says_so_at_once_where_it_may_be_written_past(past_it: DirectTransport) -> None:
    turned: list[bool] = []
    connection = past_it.connection
    connection.on_room(lambda: turned.append(connection.writable))
    write_past(past_it, event(1))
    connection.close(4200, "going_away")
    assert turned == [False]
    assert await past_it.read_all() == [event(1)]
    assert turned == [False]
