"""Writing past transports: every socket gets all of it, its transport the rest; and never a socket of somebody else."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedsvc.adapters.web.descriptors import direct_of, write_each
from feedsvc.core.burst import Burst
from feedsvc.core.lockstep import Direct, Lockstep
from feedsvc.core.positions import boundary
from feedsvc.core.subscription import Subscription
from tests.runtime.world import until
from tests.support.certificates import self_signed
from tests.support.resets import resets_when_closed
from tests.support.transports import FRAME_BYTES, CarriedTransport, event

BUFFER_BYTES = 4_096
DATA = bytes(range(256)) * 8


class Pair:
    """A socket that does not block and is written to, and its peer."""

    def __init__(self, opened: ExitStack, state: str) -> None:
        ours, self.peer = socket.socketpair()
        opened.enter_context(ours)
        opened.enter_context(self.peer)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        ours.setblocking(False)
        self.number = ours.fileno()
        self.state = state
        self.before = 0
        if state == "gone":
            self.peer.close()
        if state in ("full", "nearly full"):
            with suppress(BlockingIOError):
                while True:
                    self.before += ours.send(b"-" * 512)
        if state == "nearly full":
            self.before -= len(self.peer.recv(700))

    def got(self) -> bytes:
        """All that came behind what filled it."""
        self.peer.setblocking(False)
        came = b""
        with suppress(BlockingIOError):
            while part := self.peer.recv(1 << 16):
                came += part
        assert came[: self.before] == b"-" * self.before
        return came[self.before :]


@given(st.lists(st.sampled_from(["room", "full", "nearly full", "gone"]), max_size=8))
def test_each_takes_what_it_can_and_the_rest_is_told(states: list[str]) -> None:
    """Whatever the others are: one that is full or gone costs nobody else a byte, nor gives it one twice."""
    with ExitStack() as opened:
        pairs = [Pair(opened, state) for state in states]
        rests = dict(write_each([pair.number for pair in pairs], DATA))
        for place, pair in enumerate(pairs):
            rest = rests.get(place, b"")
            expected = {"room": b"", "full": DATA, "gone": DATA, "nearly full": rest}
            assert rest == expected[pair.state]
            if pair.state != "gone":
                assert pair.got() + rest == DATA


def test_a_part_is_taken_where_there_is_room_for_a_part() -> None:
    with ExitStack() as opened:
        pair = Pair(opened, "room")
        ((_, rest),) = write_each([pair.number], b"x" * 1_000_000)
        assert 0 < len(rest) < 1_000_000
        assert len(pair.got()) == 1_000_000 - len(rest)


def test_rests_share_the_bytes() -> None:
    """A large event, and many that do not take all of it, need it once."""
    with ExitStack() as opened:
        pairs = [Pair(opened, "full") for _ in range(3)]
        assert {id(rest.obj) for _, rest in write_each([pair.number for pair in pairs], DATA)} == {id(DATA)}


def test_nobody_is_written_to() -> None:
    assert write_each([], b"x") == []


# -- which transports --------------------------------------------------------------------------------------


class Closing(asyncio.Protocol):
    """Closes what it gets, and passes it on."""

    def __init__(self, to: Any) -> None:
        self._to = to

    def connection_made(self, transport: Any) -> None:
        transport.close()
        self._to.connection_made(transport)


async def accepted(make: Callable[[Any], Any], connect: Callable[[Any], Any]) -> Direct | None:
    """What an accepted transport of a server gives."""
    found: asyncio.Future[Direct | None] = asyncio.get_running_loop().create_future()

    class Accepted(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            found.set_result(direct_of(transport))

    server = await make(Accepted)
    _, writer = await connect(server)
    direct = await found
    writer.transport.abort()
    server.close()
    await server.wait_closed()
    return direct


def on_tcp(server: Any, **more: Any) -> Any:
    return asyncio.open_connection(*server.sockets[0].getsockname(), **more)


async def test_a_plain_tcp_transport_may_be_written_past() -> None:
    loop = asyncio.get_running_loop()
    direct = await accepted(lambda make: loop.create_server(make, "127.0.0.1", 0), on_tcp)
    assert direct is not None


async def test_tls_may_not(tmp_path: Path) -> None:
    """Its bytes are not those of the socket: a frame in the clear would end it, at best."""
    loop, pem = asyncio.get_running_loop(), self_signed(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pem)
    trusting = ssl.create_default_context(cafile=pem)
    direct = await accepted(
        lambda make: loop.create_server(make, "127.0.0.1", 0, ssl=tls),
        lambda server: on_tcp(server, ssl=trusting),
    )
    assert direct is None


async def test_a_transport_that_is_closing_may_not() -> None:
    loop = asyncio.get_running_loop()
    direct = await accepted(lambda make: loop.create_server(lambda: Closing(make()), "127.0.0.1", 0), on_tcp)
    assert direct is None


def test_a_transport_of_another_loop_may_not() -> None:
    """When it closes its descriptor was not looked at."""

    async def on_asyncio() -> Direct | None:
        loop = asyncio.get_running_loop()
        return await accepted(lambda make: loop.create_server(make, "127.0.0.1", 0), on_tcp)

    assert asyncio.run(on_asyncio()) is None


# -- when, and until when --------------------------------------------------------------------------------------------


def peer_resets(carried: CarriedTransport) -> None:
    resets_when_closed(carried._writer.transport.get_extra_info("socket"))
    carried._writer.transport.abort()


def peer_closes(carried: CarriedTransport) -> None:
    carried._client.send_close(1000)
    carried._flush()


def peer_breaks_the_protocol(carried: CarriedTransport) -> None:
    carried._writer.write(b"\xff\xff\xff\xff")


def peer_ends(carried: CarriedTransport) -> None:
    carried._writer.write_eof()


def service_closes(carried: CarriedTransport) -> None:
    carried.connection.close(4200, "going_away")


def server_shuts_down(carried: CarriedTransport) -> None:
    carried.connection._protocol.shutdown()


def peer_is_silent(carried: CarriedTransport) -> None:
    carried.connection._protocol.keepalive_timeout()


def transport_is_closed(carried: CarriedTransport) -> None:
    carried.connection._protocol.transport.close()


def transport_is_aborted(carried: CarriedTransport) -> None:
    carried.connection._protocol.transport.abort()


async def a_write_meets_the_end(carried: CarriedTransport) -> None:
    """Before the loop has read of it."""
    carried.connection._protocol.transport.pause_reading()
    peer_resets(carried)
    while (direct := carried.connection.direct) is not None:
        for _, rest in write_each([direct.descriptor], event(0)):
            direct.write_rest(rest)
        await asyncio.sleep(0)


async def test_room_is_an_empty_buffer(carried: CarriedTransport) -> None:
    """Whoever writes past a transport that still holds something overtakes it, and the peer gets no whole frames."""
    connection, transport = carried.connection, carried.connection._protocol.transport
    for _ in range(3):
        while connection.writable:
            assert transport.get_write_buffer_size() == 0
            connection.write([event(0, 500)])
        assert transport.get_write_buffer_size() > 0
        await carried.read_all()


async def test_what_was_full_before_it_was_carried_has_no_room() -> None:
    """Of answers to pings that came with the upgrade, say: uvloop tells once that it is full, and did."""
    carried = CarriedTransport()
    await carried.open(filled=Burst([event(0)] * 20).websocket)
    connection = carried.connection
    assert not connection.writable
    room = asyncio.Event()
    connection.on_room(room.set)
    connection.write([event(1)])
    assert await carried.read_all() == [event(0)] * 20 + [event(1)]
    await room.wait()
    assert connection.writable
    await carried.close()


async def test_an_owed_pong_may_fill_it_again(carried: CarriedTransport) -> None:
    """A peer that asks and reads little: at the moment of room the answer goes first, and may not fit."""
    connection, transport = carried.connection, carried.connection._protocol.transport
    chance = Random(1)
    peer: Any = carried._writer.transport
    peer.pause_reading()
    number = peer.get_extra_info("socket").fileno()
    for _ in range(60):
        while connection.writable:
            connection.write([event(0, chance.randrange(3_000, FRAME_BYTES))])
        carried._client.send_ping(b"p" * 125)
        carried._flush()
        await until(lambda: connection._protocol._owed_pong is not None or connection.writable)
        while not connection.writable:
            with suppress(BlockingIOError):
                os.read(number, chance.choice([100, 1_500, 4_000]))
            await asyncio.sleep(0)
        assert transport.get_write_buffer_size() == 0


@pytest.mark.parametrize(
    "end",
    [
        peer_resets,
        peer_closes,
        peer_breaks_the_protocol,
        peer_ends,
        service_closes,
        server_shuts_down,
        peer_is_silent,
        transport_is_closed,
        transport_is_aborted,
        a_write_meets_the_end,
    ],
)
async def test_it_is_forgotten_before_its_number_is_free(carried: CarriedTransport, end: Any) -> None:
    """However a socket ends: whoever holds its number loses it while it is still that socket, not another tenant's."""
    connection = carried.connection
    assert connection.direct is not None
    number = connection.direct.descriptor
    inode = os.fstat(number).st_ino
    told: list[tuple[bool, bool, int]] = []
    held = Lockstep()
    topic: Any = "topic"
    outlet: Any = connection
    subscription = Subscription(topic, outlet, boundary(1))
    held.apart[subscription] = None
    held.join(subscription, connection.direct)

    def is_open() -> bool:
        with suppress(OSError):
            return os.fstat(number).st_ino == inode
        return False

    connection.on_room(lambda: told.append((connection.writable, is_open(), len(held))))
    ending = end(carried)
    if ending is not None:
        await ending
    await until(lambda: bool(told))
    assert connection.direct is None
    carried._writer.transport.abort()
    await until(lambda: not is_open())
    assert told == [(False, True, 0)]
