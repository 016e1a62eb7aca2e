"""A connection of each kind with the far end of it: what the contract of `ports.Connection` is held against."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Protocol

import h11
import uvicorn
from uvicorn.server import ServerState
from websockets.client import ClientProtocol
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from feedsvc.adapters.web.asgi_connection import AsgiConnection
from feedsvc.adapters.web.descriptors import write_each
from feedsvc.adapters.web.http_protocol import FeedHttpProtocol
from feedsvc.adapters.web.server_protocol import FeedProtocol, protocol_of
from feedsvc.adapters.web.sse_connection import SseConnection
from feedsvc.adapters.web.stream_response import StreamResponse
from feedsvc.adapters.web.transport_connection import TransportConnection
from feedsvc.app import SystemClock
from feedsvc.core.stream_token import StreamPositions, StreamSealer
from feedsvc.ports import Connection
from feedsvc.runtime.wheel import Wheel
from feedsvc.testing import MemoryConnection
from tests.support.frames import received
from tests.support.sse import Parser

FRAME_BYTES = 16_000
ROOM_FRAMES = 4
ROOM_BYTES = ROOM_FRAMES * FRAME_BYTES
BUFFER_BYTES = 8_000
"""What the kernel may keep for a socket: about half a frame."""


def event(number: int, size: int = FRAME_BYTES) -> bytes:
    """A frame of this size, as topics have them, of which half is left where it is compressed."""
    empty = b'{"type":"event","topic":"t","event":{"_id":"%04d","text":""}}' % number
    text = Random(number).randbytes(size).hex().encode()
    return empty[:-3] + text[: size - len(empty)] + empty[-3:]


class Transport(Protocol):
    """A connection and the far end of it: a peer that reads, or does not."""

    @property
    def connection(self) -> Connection: ...

    async def stop_reading(self) -> None: ...

    async def read_all(self) -> list[bytes]:
        """Read everything that was written so far, and go on reading."""
        ...

    async def closed_with(self) -> tuple[int, str]: ...


class DirectTransport(Transport, Protocol):
    """One with a socket that may be written to past its connection."""

    def write_each(self, descriptors: Sequence[int], data: bytes) -> Sequence[tuple[int, memoryview]]: ...


class MemoryTransport:
    def __init__(self) -> None:
        self.connection = MemoryConnection()
        self.write_each = MemoryConnection.write_each

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
        self.connection = AsgiConnection(self._send, ROOM_BYTES)
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

    def __init__(self, *, compress: bool = False) -> None:
        self.write_each = write_each
        self._extensions = [ClientPerMessageDeflateFactory()] if compress else None

    async def open(self, *, filled: bytes = b"") -> None:
        """`filled`: what its transport holds already for a peer that does not read, when it is accepted."""
        accepted: asyncio.Future[TransportConnection] = asyncio.get_running_loop().create_future()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await send({"type": "websocket.accept"})
            protocol = protocol_of(scope)
            assert protocol is not None
            protocol.transport.write(filled)
            connection = TransportConnection(protocol)
            assert connection.carry(Wheel(SystemClock()), lambda text: None, lambda code, reason: None)
            accepted.set_result(connection)

        config = uvicorn.Config(app, ws=FeedProtocol, log_config=None, ws_per_message_deflate=False)
        config.load()
        state = ServerState()
        self._server, self._reader, self._writer = await narrow(lambda: FeedProtocol(config, state, {}))
        self._client = ClientProtocol(
            parse_uri("ws://127.0.0.1/"), extensions=self._extensions, max_size=None
        )
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


class StreamTransport:
    """Server-sent events over `FeedHttpProtocol` on a socket, and a client that reads them or not."""

    async def open(self) -> None:
        begun: asyncio.Future[SseConnection] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            response = StreamResponse(scope, ROOM_BYTES, 60, lambda: None)
            positions = StreamPositions(StreamSealer((b"k" * 32,)), "acme", [b"topic--0"])
            connection = SseConnection(send, ROOM_BYTES, positions, 1_000, response.closing)
            begun.set_result(connection)
            await response.until_gone(connection, receive)
            response.ended()
            self._ended.set()

        config = uvicorn.Config(app, http=FeedHttpProtocol, log_config=None)
        config.load()
        state = ServerState()
        self._server, self._reader, self._writer = await narrow(lambda: FeedHttpProtocol(config, state, {}))
        self._client, self._parser = h11.Connection(h11.CLIENT), Parser()
        self._events: list[tuple[str, str]] = []
        self._marks = 0
        request = h11.Request(method="GET", target="/", headers=[("Host", "a")])
        self._writer.write(self._client.send(request) + self._client.send(h11.EndOfMessage()))
        self.connection = await begun

    async def close(self) -> None:
        self._writer.transport.abort()
        await self._ended.wait()
        self._server.close()
        await self._server.wait_closed()

    async def stop_reading(self) -> None:
        """By not reading: the stream's limit is about half a frame."""

    async def read_all(self) -> list[bytes]:
        """Up to a frame that is written behind all others, or to the end."""
        self._marks += 1
        self.connection.write([b'{"type":"pong"}'])
        while sum(kind == "pong" for kind, _ in self._events) < self._marks:
            data = await self._reader.read(1 << 20)
            self._client.receive_data(data)
            while isinstance(part := self._client.next_event(), h11.Response | h11.Data | h11.EndOfMessage):
                if isinstance(part, h11.Data):
                    self._events += [(kind, text) for kind, text, _ in self._parser.feed(part.data.decode())]
            if not data:
                break
        for _ in range(100):
            await asyncio.sleep(0)  # the writer hears that all of it was taken
        return [text.encode() for kind, text in self._events if kind == "event"]

    async def closed_with(self) -> tuple[int, str]:
        await self.read_all()
        kind, text = self._events[-1]
        frame = received(text, event=kind)
        return frame["code"], frame["reason"]


async def narrow(
    make: Callable[[], asyncio.Protocol],
) -> tuple[asyncio.Server, asyncio.StreamReader, asyncio.StreamWriter]:
    """A server and a client of it with little room between them."""
    loop, listening = asyncio.get_running_loop(), socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    server = await loop.create_server(make, sock=listening)
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    peer.setblocking(False)
    await loop.sock_connect(peer, listening.getsockname())
    reader, writer = await asyncio.open_connection(sock=peer, limit=BUFFER_BYTES)
    return server, reader, writer
