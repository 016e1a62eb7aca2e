"""TRA-07: messages that grow, never end, nest or are no text get their close code, cost nothing that stays, and nobody
else notices."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import struct
import zlib
from collections.abc import AsyncIterator, Iterator
from functools import cache
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import Documents, StartService
from tests.support.frames import received
from tests.support.service import Service, client_of, make_jwt
from tests.support.sse import sse_url

MOST_GROWTH_BYTES = 10 * 1024 * 1024
TEXT, BINARY, CLOSE, PING, PONG, CONTINUATION = 1, 2, 8, 9, 10, 0
DEFLATED = 0x40
"""RSV1 of a frame: the message is compressed (RFC 7692, section 6)."""
DEEP = 100_000


@pytest.fixture(scope="module")
def service(start_for_module: StartService) -> Iterator[Service]:
    service = start_for_module()
    yield service
    service.kill()


def frame(opcode: int, payload: bytes, *, last: bool = True, bits: int = 0) -> bytes:
    """Masked with zeros, which change nothing (RFC 6455, section 5.2)."""
    size = len(payload)
    length = struct.pack("!BH", 0x80 | 126, size) if size < 1 << 16 else struct.pack("!BQ", 0x80 | 127, size)
    if size < 126:
        length = bytes([0x80 | size])
    return bytes([0x80 * last | bits | opcode]) + length + bytes(4) + payload


def deflated(size: int, byte: bytes = b"0") -> bytes:
    """A message of so many equal bytes: a thousandth of it travels."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = b"".join(packer.compress(byte * min(1 << 20, size - at)) for at in range(0, size, 1 << 20))
    return (packed + packer.flush(zlib.Z_SYNC_FLUSH)).removesuffix(b"\0\0\xff\xff")


class Peer:
    """A WebSocket client of bare bytes that offered to compress."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def say(self, *frames: bytes) -> None:
        self._writer.write(b"".join(frames))

    async def hear(self, opcode: int) -> bytes:
        """The payload of the next frame of this kind."""
        async with asyncio.timeout(15):
            while True:
                first, second = await self._reader.readexactly(2)
                size = second & 0x7F
                if size == 126:
                    (size,) = struct.unpack("!H", await self._reader.readexactly(2))
                payload = await self._reader.readexactly(size)
                if first & 0x0F == opcode:
                    return payload

    async def closed(self) -> int:
        (code,) = struct.unpack("!H", (await self.hear(CLOSE))[:2])
        return int(code)


@contextlib.asynccontextmanager
async def peer_of(service: Service, tenant: str | None) -> AsyncIterator[Peer]:
    """Of a tenant, or of nobody yet."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    credentials = "" if tenant is None else f"Authorization: Bearer {make_jwt(tenant)}\r\n"
    writer.write(
        "GET /v1/ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Extensions: permessage-deflate\r\n{credentials}\r\n".encode()
    )
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 ") and b"permessage-deflate" in head
    try:
        yield Peer(reader, writer)
    finally:
        writer.transport.abort()


@contextlib.asynccontextmanager
async def unharmed(service: Service, database: Documents, tenant: str) -> AsyncIterator[None]:
    """Another client gets its events, the service holds nothing more than before and has logged no fault."""
    async with client_of(service, tenant) as other:
        await other.subscribe("orders")
        begin_peak(service)
        before = resident_bytes(service, "VmRSS")
        yield
        database["orders"].insert_one({"_id": 1})
        assert (await other.events(1))[0]["documentKey"] == {"_id": 1}
        grown = resident_bytes(service, "VmHWM") - before
        print(f"{grown / 1024:.0f} KiB more at the most")
        assert grown < MOST_GROWTH_BYTES
    log = service.log()
    assert "Traceback" not in log and '"level":"error"' not in log


def resident_bytes(service: Service, which: str) -> int:
    """Resident memory, now or at its peak (proc(5): VmRSS and VmHWM, in kB)."""
    status = Path(f"/proc/{service.pid}/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith(f"{which}:")).split()[1]) * 1024


def begin_peak(service: Service) -> None:
    """From now on VmHWM is the peak since now (proc(5), clear_refs)."""
    Path(f"/proc/{service.pid}/clear_refs").write_text("5")


@cache
def hostile() -> dict[str, tuple[list[bytes], int]]:
    """Frames by what is wrong with them, and the close code."""
    return {
        "64 KiB and one": ([frame(TEXT, deflated(65_537), bits=DEFLATED)], 1009),
        "a bomb of 10 MB": ([frame(TEXT, deflated(10_000_000), bits=DEFLATED)], 1009),
        "a bomb of 100 MB": ([frame(TEXT, deflated(100_000_000), bits=DEFLATED)], 1009),
        "a bomb in fragments": (
            [
                frame(TEXT, deflated(5_000_000), last=False, bits=DEFLATED),
                frame(CONTINUATION, deflated(5_000_000)),
            ],
            1009,
        ),
        "fragments without end": (
            [frame(TEXT, b"0" * 1_000, last=False), *[frame(CONTINUATION, b"0" * 1_000, last=False)] * 100],
            1009,
        ),
        "a length without end": ([frame(TEXT, b"")[:1] + struct.pack("!BQ", 0xFF, 1 << 62)], 1009),
        "deeper than the limit is long": ([frame(TEXT, b"[" * DEEP)], 1009),
        "deep and deflated": ([frame(TEXT, deflated(DEEP, b"["), bits=DEFLATED)], 1009),
        "binary": ([frame(BINARY, b"{}")], 1003),
        "no UTF-8": ([frame(TEXT, b'{"type":"ping\xff"}')], 1007),
        "no UTF-8, cut in two": (
            [frame(TEXT, b'"\xc3', last=False), frame(PING, b""), frame(CONTINUATION, b'("')],
            1007,
        ),
        "what does not inflate": ([frame(TEXT, b"\xff" * 50, bits=DEFLATED)], 1002),
    }


@pytest.mark.parametrize("known", [True, False], ids=["with credentials", "without"])
async def test_a_message_that_is_no_message(
    service: Service, database: Documents, fresh_database: str, known: bool
) -> None:
    """None of these codes asks to reconnect; somebody without credentials gets no further than others."""
    async with unharmed(service, database, fresh_database):
        for name, (frames, code) in hostile().items():
            async with peer_of(service, fresh_database if known else None) as peer:
                peer.say(*frames)
                assert await peer.closed() == code, name


async def test_what_nests_deeply_is_a_bad_request(
    service: Service, database: Documents, fresh_database: str
) -> None:
    """As long as it fits into a frame; no nesting is deep enough for an error of another kind."""
    texts = ["[" * 65_000, '{"a":' * 13_000, '{"type":"subscribe","id":"x","topic":' + '{"filter":' * 6_000]
    async with unharmed(service, database, fresh_database), peer_of(service, fresh_database) as peer:
        for text in texts:
            peer.say(frame(TEXT, text.encode()))
            answer = b""
            while b'"error"' not in answer:
                answer = await peer.hear(TEXT)
            assert received(answer)["code"] == "bad_request"
        async with peer_of(service, None) as stranger:
            stranger.say(frame(TEXT, b"[" * 4_000))
            assert await stranger.closed() == 4000


async def test_a_message_that_never_ends_holds_up_nobody(
    service: Service, database: Documents, fresh_database: str
) -> None:
    """Fifty connections that wait with 60 KB each: pings between fragments are answered, and their end frees it."""
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(unharmed(service, database, fresh_database))
        peers = [await stack.enter_async_context(peer_of(service, fresh_database)) for _ in range(50)]
        for peer in peers:
            peer.say(frame(TEXT, b"0" * 60_000, last=False), frame(PING, b"there?"))
        for peer in peers:
            assert await peer.hear(PONG) == b"there?"


@pytest.mark.parametrize("path", ["/v1/sse", "/v1/topics/explain"])
async def test_a_body_that_nests_or_grows_is_a_bad_request(
    service: Service, database: Documents, fresh_database: str, path: str
) -> None:
    """Over HTTP there is no compression of requests: what claims to be compressed is read as it is."""
    url = sse_url(service).removesuffix("/v1/sse") + path
    bearer = {"Authorization": f"Bearer {make_jwt(fresh_database)}", "Content-Type": "application/json"}
    deep = b'{"topics":[{"collection":"c","filter":'
    bodies = [
        b"[" * DEEP,
        b"[" * 60_000,
        deep + b'{"a":' * 10_000,
        gzip.compress(b" " * 10_000_000),
        b"\xff" * 9,
    ]
    async with (
        unharmed(service, database, fresh_database),
        httpx.AsyncClient(trust_env=False, verify=False) as client,
    ):
        for body in bodies:
            packed = {"Content-Encoding": "gzip"} if body.startswith(b"\x1f\x8b") else {}
            answer = await client.post(url, headers={**bearer, **packed}, content=body)
            assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
