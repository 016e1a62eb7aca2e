"""The hazards of the server layer (architecture, "Hazards of the server layer"), each on a served process.

Some have their tests elsewhere: a half-closed peer does not skip the drain (tests/faults/test_drain.py), a reader that
has stopped does not hold up the exit (test_shutdown.py), a peer that answers no ping is let go (test_limits.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import struct
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import yaml
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory

from feedsvc import app
from feedsvc.adapters.jwt import jwt_key_problems
from feedsvc.settings import load_settings
from tests.e2e.conftest import Documents, StartService
from tests.support.engine import Engine
from tests.support.fault_proxy import FaultProxy
from tests.support.frames import received
from tests.support.key_server import IssuerKey, KeyServer
from tests.support.narrow_socket import narrow_socket
from tests.support.ports import free_port
from tests.support.proxy import EngineProxy
from tests.support.service import (
    JWT_SECRET,
    ONE_DATABASE_PER_TENANT,
    Client,
    Service,
    client_of,
    make_jwt,
    token_key,
)

ABORT_AFTER_S = 2.0
SLOW_AFTER_S = 1.0
CYCLES = 200
CLOSE_OPCODE = 8


@pytest.fixture(scope="module")
def service(start_for_module: StartService) -> Service:
    return start_for_module(slow_after=str(SLOW_AFTER_S), checkpoint_interval="0.2", heartbeat_interval="0.2")


def upgrade_request(jwt: str, port: int) -> bytes:
    return (
        f"GET /v1/ws HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        f"Authorization: Bearer {jwt}\r\n\r\n".encode()
    )


def masked_frame(opcode: int, payload: bytes) -> bytes:
    """One frame (RFC 6455, section 5.2) of fewer than 126 bytes; the mask of zeros changes nothing."""
    return bytes([0x80 | opcode, 0x80 | len(payload)]) + bytes(4) + payload


class RawClient:
    """A WebSocket client of bare bytes, which does what a library never would."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def upgrade(self, jwt: str, port: int) -> None:
        self.writer.write(upgrade_request(jwt, port))

    def send(self, opcode: int, payload: bytes) -> None:
        self.writer.write(masked_frame(opcode, payload))

    async def frame(self) -> tuple[int, bytes]:
        """Opcode and payload of the next frame."""
        first, second = await self.reader.readexactly(2)
        assert first & 0x70 == 0, "no reserved bit without an extension"
        length = second & 0x7F
        if length == 126:
            (length,) = struct.unpack("!H", await self.reader.readexactly(2))
        return first & 0x0F, await self.reader.readexactly(length)


@contextlib.asynccontextmanager
async def raw_client(port: int) -> AsyncIterator[RawClient]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.transport.abort()


async def test_a_stalled_reader_is_aborted_two_seconds_after_the_close(
    service: Service, database: Documents, fresh_database: str
) -> None:
    """Nobody will ever take the close frame; the socket goes all the same."""
    narrow = await narrow_socket(service.port)
    headers = {"Authorization": f"Bearer {make_jwt(fresh_database)}"}
    async with connect(
        service.url,
        sock=narrow,
        additional_headers=headers,
        max_queue=1,
        max_size=None,
        compression=None,
        proxy=None,
    ) as stuck:
        await Client(stuck).subscribe("orders")
        stuck.transport.pause_reading()
        for number in range(20):
            database["orders"].insert_one({"_id": number, "text": "x" * 900_000})
        began = time.monotonic()
        await asyncio.to_thread(service.wait_for, "/metrics", 200, 'feedsvc_closes_total{code="4201"} 1.0')
        assert time.monotonic() - began < SLOW_AFTER_S + ABORT_AFTER_S + 2
        assert "\nfeedsvc_connections 0.0\n" in service.get("/metrics")[1]
        stuck.transport.abort()


async def test_deflate_is_negotiated_without_context_and_frames_are_shared(
    service: Service, database: Documents, fresh_database: str
) -> None:
    """A frame that many connections share must not depend on what one of them got before: with and without compression,
    with a window too small for the shared form, large frames between small ones, all read the same."""
    headers = {"Authorization": f"Bearer {make_jwt(fresh_database)}"}
    offers: list[ClientPerMessageDeflateFactory | None] = [
        ClientPerMessageDeflateFactory(),
        ClientPerMessageDeflateFactory(server_max_window_bits=9),
        None,
    ]
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for offer in offers:
            socket = await stack.enter_async_context(
                connect(
                    service.url,
                    additional_headers=headers,
                    compression=None,
                    extensions=None if offer is None else [offer],
                    proxy=None,
                )
            )
            assert socket.response is not None
            answer = socket.response.headers.get("Sec-WebSocket-Extensions", "")
            assert ("server_no_context_takeover" in answer) == (offer is not None)
            client = Client(socket)
            await client.subscribe("orders")
            clients.append(client)
        texts = ["x" * size for size in (10, 5_000, 20, 70_000, 900, 30)]
        for number, text in enumerate(texts):
            database["orders"].insert_one({"_id": number, "text": text})
        for client in clients:
            events = [(await client.until("event"))["event"] for _ in texts]
            assert [event["fullDocument"]["text"] for event in events] == texts


async def test_a_message_that_inflates_beyond_the_limit_ends_its_connection(
    service: Service, fresh_database: str
) -> None:
    """A bomb: 10 MB in a frame of 10 KB."""
    headers = {"Authorization": f"Bearer {make_jwt(fresh_database)}"}
    async with connect(service.url, additional_headers=headers, proxy=None) as socket:
        await socket.send(json.dumps({"type": "ping", "filler": "x" * 10_000_000}))
        with pytest.raises(ConnectionClosedError) as closed:
            [frame async for frame in socket]
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009


async def test_nothing_is_written_after_the_peers_close(
    service: Service, database: Documents, fresh_database: str
) -> None:
    """Events, checkpoints and heartbeats are on their way when the peer closes: the close frame is the last."""
    async with raw_client(service.port) as client:
        client.upgrade(make_jwt(fresh_database), service.port)
        await client.reader.readuntil(b"\r\n\r\n")
        client.send(1, b'{"type":"subscribe","id":"s","topic":{"collection":"orders"}}')
        while b'"live"' not in (await client.frame())[1]:
            pass
        database["orders"].insert_many([{} for _ in range(500)])
        while b'"event"' not in (await client.frame())[1]:
            pass
        client.send(CLOSE_OPCODE, struct.pack("!H", 1000))
        database["orders"].insert_many([{} for _ in range(100)])
        opcodes: list[int] = []
        async with asyncio.timeout(5):
            with contextlib.suppress(asyncio.IncompleteReadError):
                while True:
                    opcodes.append((await client.frame())[0])
        assert opcodes[-1] == CLOSE_OPCODE
        assert CLOSE_OPCODE not in opcodes[:-1]
    assert "Traceback" not in service.log() and '"level":"error"' not in service.log()


async def test_nothing_is_written_before_the_handshake(
    start_service: StartService, fresh_database: str
) -> None:
    """While credentials are judged the peer hears nothing; then the answer to its upgrade comes first.

    A peer that did not wait for it is heard all the same: they wait in uvicorn's queue when the socket is carried.
    """
    with KeyServer() as keys:
        key = IssuerKey("k2")
        keys.publish(IssuerKey("k1"))
        service = start_service(jwt_secret="", jwks_url=keys.url, heartbeat_interval="0.1")
        keys.publish(key)
        keys.hold()
        async with raw_client(service.port) as client:
            client.upgrade(key.sign(tenant=fresh_database), service.port)
            await asyncio.to_thread(keys.wait_for_requests, len(keys.requests) + 1)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.reader.read(1), 0.5)
            client.send(1, b'{"type":"ping"}')
            client.send(1, b'{"type":"nonsense"}')
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.reader.read(1), 0.2)
            keys.release()
            assert (await client.reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 101 ")
            await client.reader.readuntil(b"\r\n\r\n")
            types: list[str] = []
            async with asyncio.timeout(5):
                while types[-1:] != ["error"]:
                    types.append(received((await client.frame())[1])["type"])
            assert [name for name in types if name != "heartbeat"] == ["welcome", "pong", "error"]


async def test_a_subscribe_that_waits_for_mongodb_does_not_stop_pongs(
    start_service: StartService, fresh_database: str
) -> None:
    engine = Engine().start()
    try:
        service = start_service(uri=engine.uri)
        async with client_of(service, fresh_database) as client, client_of(service, fresh_database) as other:
            engine.pause()
            await client.send({"type": "subscribe", "id": "s", "topic": {"collection": "orders"}})
            answer = asyncio.create_task(client.until(lambda frame: frame.get("id") == "s"))
            for _ in range(5):
                async with asyncio.timeout(1):
                    await (await client.socket.ping())
                    await other.send({"type": "ping"})
                    await other.until("pong")
                assert not answer.done()
            engine.resume()
            await answer
    finally:
        engine.stop()


async def test_query_strings_are_never_logged(start_service: StartService, fresh_database: str) -> None:
    """Neither of an upgrade that is served, nor of one that is refused, nor of a request."""
    service = start_service()
    headers = {"Authorization": f"Bearer {make_jwt(fresh_database)}"}
    async with connect(f"{service.url}?note=planted1", additional_headers=headers, proxy=None):
        pass
    for query in ("ticket=planted2", "token=planted3"):
        with pytest.raises(InvalidStatus):
            async with connect(f"{service.url}?{query}", proxy=None):
                pass
    for path in ("/healthz/live?planted4", "/metrics?x=planted5", "/nothing?x=planted6"):
        service.get(path)
    assert service.stop() == 0
    log = service.log()
    assert "connection.opened" in log
    assert "planted" not in log


async def test_a_double_upgrade_request_ends_with_a_clean_close_or_does_no_harm(
    service: Service, fresh_database: str
) -> None:
    """A link that says the request twice: what follows an upgrade is no frame, unless both came at once and the HTTP
    side has swallowed the second."""
    with FaultProxy(service.port) as proxy:
        proxy.duplicate_next("up")
        async with raw_client(proxy.port) as client, asyncio.timeout(5):
            client.upgrade(make_jwt(fresh_database), service.port)
            head = await client.reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 101 ")
            client.send(1, b'{"type":"ping"}')
            opcode, payload = 0, b""
            while opcode != CLOSE_OPCODE and b'"pong"' not in payload:
                opcode, payload = await client.frame()
            assert opcode != CLOSE_OPCODE or payload[:2] == struct.pack("!H", 1002)
    assert "Traceback" not in service.log()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    policy = tmp_path / "policy.yaml"
    policy.write_text(yaml.safe_dump(dict(ONE_DATABASE_PER_TENANT)))
    return {
        "FEEDSVC_DRAIN": "1",
        "FEEDSVC_PORT": str(free_port()),
        "FEEDSVC_POLICY": str(policy),
        "FEEDSVC_JWT_SECRET": JWT_SECRET,
        "FEEDSVC_TOKEN_KEYS": token_key(),
    }


@pytest.fixture
def counted(engine: Engine) -> Iterator[EngineProxy]:
    with EngineProxy(engine.port) as proxy:
        yield proxy


async def test_200_cycles_leave_no_task_and_no_cursor(
    engine: Engine, counted: EngineProxy, environment: dict[str, str], fresh_database: str
) -> None:
    """Connect, subscribe (every other one with an old token), and vanish at some moment: all is as it was before."""
    settings = load_settings(
        {**environment, "FEEDSVC_MONGODB_URI": counted.uri}, key_problems=jwt_key_problems
    )
    before = len(asyncio.all_tasks())
    served = asyncio.create_task(app.Service(settings).run())
    headers = {"Authorization": f"Bearer {make_jwt(fresh_database)}"}
    url = f"ws://127.0.0.1:{settings.port}/v1/ws"

    async def open_socket() -> Client:
        for _ in range(100):
            try:
                return Client(await connect(url, additional_headers=headers, proxy=None))
            except OSError:
                await asyncio.sleep(0.05)
        raise AssertionError("it does not listen")

    try:
        holder = await open_socket()
        token = (await holder.subscribe("orders"))["token"]
        await asyncio.to_thread(engine.client[fresh_database]["orders"].insert_many, [{} for _ in range(20)])
        await holder.events(20)
        tasks, cursors = len(asyncio.all_tasks()), counted.running

        async def vanish(number: int) -> None:
            client = await open_socket()
            old = {"resumeAfter": token} if number % 2 else {}
            topic = {"collection": "orders", "filter": {} if number % 2 else {"n": number}}
            await client.send({"type": "subscribe", "id": "s", "topic": topic, **old})
            for _ in range(number % 4):
                await client.receive()
            client.socket.transport.abort()
            await client.socket.wait_closed()

        for first in range(0, CYCLES, 20):
            await asyncio.gather(*(vanish(number) for number in range(first, first + 20)))
        async with asyncio.timeout(15):
            while (len(asyncio.all_tasks()), counted.running) != (tasks, cursors):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.05)
        await holder.socket.close()
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        assert await served == 0
    assert len(asyncio.all_tasks()) == before
    assert counted.running == 0
