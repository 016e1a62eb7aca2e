"""The promises of the ports `Connection`, `Verifier`, `Clock` and `Metrics`, on every implementation.

`ChangeSource` has contract tests of its own: tests/adapters/test_source_contract.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import pytest
import uvicorn
from uvicorn.server import ServerState
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from feedsvc.adapters.jwt import JwtKey, JwtVerifier, sign_development_jwt
from feedsvc.adapters.telemetry.metrics import PrometheusMetrics
from feedsvc.adapters.web.asgi_connection import AsgiConnection
from feedsvc.adapters.web.server_protocol import FeedProtocol, protocol_of
from feedsvc.adapters.web.transport_connection import TransportConnection
from feedsvc.app import SystemClock
from feedsvc.core.burst import Burst
from feedsvc.ports import AuthError, Claims, Clock, Connection, Metrics, NoMetrics, Verifier
from feedsvc.testing import ManualClock, MemoryConnection, MemoryVerifier

ROOM_FRAMES = 4
FRAME = b"x" * 16_000
_BUFFER_BYTES = 8_000
"""What the kernel may keep for a socket: about as much as a frame."""
SECRET = "a secret of at least thirty-two bytes"


class Transport(Protocol):
    """A connection and the far end of it: a peer that reads, or does not."""

    @property
    def connection(self) -> Connection: ...

    async def stop_reading(self) -> None: ...

    async def read_all(self) -> list[bytes]:
        """Read everything that was written so far, and go on reading."""
        ...

    async def closed_with(self) -> tuple[int, str]: ...


class MemoryTransport:
    def __init__(self) -> None:
        self.connection = MemoryConnection()

    async def stop_reading(self) -> None:
        self.connection.set_room(ROOM_FRAMES)

    async def read_all(self) -> list[bytes]:
        self.connection.set_room(None)
        return self.connection.frames

    async def closed_with(self) -> tuple[int, str]:
        assert self.connection.closed is not None
        return self.connection.closed


class AsgiTransport:
    def __init__(self) -> None:
        self._reading = asyncio.Event()
        self._reading.set()
        self._messages: list[dict[str, Any]] = []
        self.connection = AsgiConnection(self._send, ROOM_FRAMES * len(FRAME))
        self.writer = asyncio.create_task(self.connection.run())

    async def _send(self, message: Any) -> None:
        await self._reading.wait()
        self._messages.append(dict(message))

    async def stop_reading(self) -> None:
        self._reading.clear()

    async def read_all(self) -> list[bytes]:
        self._reading.set()
        for _ in range(100):
            await asyncio.sleep(0)
        return [message["text"].encode() for message in self._messages if message["type"] == "websocket.send"]

    async def closed_with(self) -> tuple[int, str]:
        await self.read_all()
        return self._messages[-1]["code"], self._messages[-1]["reason"]


class CarriedTransport:
    """`FeedProtocol` on a socket, and a client that reads it or not."""

    async def open(self) -> None:
        accepted: asyncio.Future[TransportConnection] = asyncio.get_running_loop().create_future()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await send({"type": "websocket.accept"})
            protocol = protocol_of(scope)
            assert protocol is not None
            connection = TransportConnection(protocol)
            assert connection.carry(ROOM_FRAMES * len(FRAME), lambda text: None, lambda code, reason: None)
            accepted.set_result(connection)

        config = uvicorn.Config(app, ws=FeedProtocol, log_config=None, ws_per_message_deflate=False)
        config.load()
        state = ServerState()
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        self._server = await asyncio.get_running_loop().create_server(
            lambda: FeedProtocol(config, state, {}), sock=listening
        )
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        peer.setblocking(False)
        await asyncio.get_running_loop().sock_connect(peer, listening.getsockname())
        self._reader, self._writer = await asyncio.open_connection(sock=peer, limit=_BUFFER_BYTES)
        self._client = ClientProtocol(parse_uri("ws://127.0.0.1/"), max_size=None)
        self._client.send_request(self._client.connect())
        self._flush()
        self._events: list[Frame] = []
        self.connection = await accepted
        while self._client.state is not State.OPEN:
            self._take(await self._reader.read(1 << 20))

    async def close(self) -> None:
        self._writer.transport.abort()
        self._server.close()
        await self._server.wait_closed()

    def _flush(self) -> None:
        self._writer.write(b"".join(self._client.data_to_send()))

    def _take(self, data: bytes) -> None:
        self._client.receive_data(data)
        self._events += [event for event in self._client.events_received() if isinstance(event, Frame)]
        self._flush()

    async def stop_reading(self) -> None:
        """By not reading: the stream's limit is about a frame."""

    async def read_all(self) -> list[bytes]:
        """Up to the answer to a ping, which comes behind all that was written, or to the end."""
        mark = b"%d" % len(self._events)
        if self._client.state is State.OPEN:
            self._client.send_ping(mark)
            self._flush()
        while not any(event.opcode is Opcode.PONG and event.data == mark for event in self._events):
            data = await self._reader.read(1 << 20)
            if not data:
                break
            self._take(data)
        return [bytes(event.data) for event in self._events if event.opcode is Opcode.TEXT]

    async def closed_with(self) -> tuple[int, str]:
        await self.read_all()
        assert self._client.close_rcvd is not None
        return self._client.close_rcvd.code, self._client.close_rcvd.reason


@pytest.fixture(params=["memory", "asgi", "carried"])
async def transport(request: pytest.FixtureRequest) -> AsyncIterator[Transport]:
    if request.param == "memory":
        yield MemoryTransport()
    elif request.param == "carried":
        carried = CarriedTransport()
        await carried.open()
        yield carried
        await carried.close()
    else:
        asgi = AsgiTransport()
        yield asgi
        asgi.writer.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asgi.writer


async def test_frames_arrive_whole_and_in_order(transport: Transport) -> None:
    transport.connection.write([b"1", b"2"])
    transport.connection.write([b"3"])
    transport.connection.write_burst(Burst([b"4" * 125, b"5" * 126, b"6" * 70_000]))
    assert await transport.read_all() == [b"1", b"2", b"3", b"4" * 125, b"5" * 126, b"6" * 70_000]


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
            connection.write([FRAME])
            written += 1
            assert written <= 2 * ROOM_FRAMES  # the kernel takes a few, too
        assert turned[-1] is False
        await transport.read_all()
        assert connection.writable
        assert turned == [False, True] * rounds


async def test_what_is_written_to_a_full_connection_is_not_lost(transport: Transport) -> None:
    """Answers may be written although it is full: it is for the runtime to stop."""
    await transport.stop_reading()
    for number in range(ROOM_FRAMES * 2):
        transport.connection.write([b"%03d" % number + FRAME])
    assert [frame[:3] for frame in await transport.read_all()] == [
        b"%03d" % number for number in range(ROOM_FRAMES * 2)
    ]


async def test_the_first_close_wins_and_ends_writing(transport: Transport) -> None:
    connection = transport.connection
    connection.write([b"before"])
    connection.close(4200, "going_away")
    connection.close(4000, "another")
    connection.write([b"after"])
    assert not connection.writable
    assert await transport.closed_with() == (4200, "going_away")
    assert await transport.read_all() == [b"before"]


async def test_a_closed_connection_does_not_ask_for_more(transport: Transport) -> None:
    """Nobody may be told that there is room in a connection that is closing."""
    turned: list[bool] = []
    transport.connection.on_room(lambda: turned.append(transport.connection.writable))
    await transport.stop_reading()
    while transport.connection.writable:
        transport.connection.write([FRAME])
    transport.connection.close(4201)
    await transport.read_all()
    assert turned == [False]


Known = tuple[Verifier, str, str]
"""A verifier, a JWT that it accepts for alice of acme, and one that has expired."""


def memory_verifier() -> Known:
    claims = Claims("alice", time.time() + 600, frozenset({"orders:read"}), {"tenant": "acme"})
    expired = AuthError("auth_expired", "The JWT has expired.")
    return MemoryVerifier({"good": claims, "old": expired}), "good", "old"


def jwt_verifier() -> Known:
    key = JwtKey.from_secret(SECRET, ["HS256"])
    payload = {"tenant": "acme", "sub": "alice", "scope": "orders:read"}
    good = sign_development_jwt(SECRET, payload, 600)
    old = sign_development_jwt(SECRET, payload, 600, now_s=time.time() - 3600)
    return JwtVerifier(key, clock_wall=time.time), good, old


@pytest.mark.parametrize("make", [memory_verifier, jwt_verifier])
async def test_a_verifier_gives_claims_or_a_registry_code(make: Callable[[], Known]) -> None:
    """A good JWT gives its claims; every other one raises `AuthError` with a code, and a message without the JWT."""
    verifier, good, old = make()
    claims = await verifier.verify(good)
    assert (claims.subject, claims.scopes, claims.claims["tenant"]) == (
        "alice",
        frozenset({"orders:read"}),
        "acme",
    )
    assert claims.expires_at > time.time()
    for jwt, code in ((old, "auth_expired"), ("never-signed", "auth_invalid"), ("", "auth_invalid")):
        with pytest.raises(AuthError) as refused:
            await verifier.verify(jwt)
        assert refused.value.code == code
        assert not jwt or jwt not in refused.value.message


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()], ids=["system", "manual"])
def test_a_clock_never_goes_back_and_tells_both_times(clock: Clock) -> None:
    readings = [clock.monotonic() for _ in range(3)]
    assert readings == sorted(readings)
    assert clock.wall() > 1_000_000_000


@pytest.mark.parametrize("metrics", [NoMetrics(), PrometheusMetrics("0")], ids=["none", "prometheus"])
def test_metrics_never_fail_their_caller(metrics: Metrics) -> None:
    """A measurement that is not declared, or has wrong labels, must not stop an event on its way."""
    metrics.count("resyncs", reason="overflow")
    metrics.gauge("connections", 3)
    metrics.count("no_such_counter", 2, label="x")
    metrics.gauge("resyncs", 1)
    metrics.observe("no_such_histogram", 0.1)
