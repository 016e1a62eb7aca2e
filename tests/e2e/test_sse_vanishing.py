"""Clients that are gone without a word: before the first byte (TRA-01), and in a network that is dead (TRA-02)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import Documents, StartService
from tests.support.service import Client, Service, client_of, make_jwt
from tests.support.sse import stream_of
from tests.support.sse_socket import SseSocket, vanish

PEER_TIMEOUT_S = 3.0
FREED_WITHIN_S = 5.0
REQUESTS = 300
EVENTS = 60
EVENT_BYTES = 200_000
MOST_GROWTH_BYTES = 8 * 1024 * 1024


@pytest.fixture(scope="module")
def service(start_for_module: StartService) -> Iterator[Service]:
    service = start_for_module(
        peer_timeout=str(PEER_TIMEOUT_S), heartbeat_interval="0.5", log_bytes="1000000"
    )
    yield service
    service.kill()


async def figures(service: Service) -> dict[str, float]:
    page = (await asyncio.to_thread(service.get, "/metrics"))[1]
    lines = (line.rsplit(" ", 1) for line in page.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in lines}


async def until_held(service: Service, within_s: float, *, connections: int = 0) -> dict[str, float]:
    """Wait until so many connections are left, each with a topic of its own; the figures then."""
    names = ("feedsvc_connections", "feedsvc_topics", "feedsvc_subscriptions")
    async with asyncio.timeout(within_s):
        while True:
            found = await figures(service)
            if all(found[name] == connections for name in names):
                return found


async def tenants(service: Service) -> list[object]:
    """Those that hold anything, as operators are told."""
    headers = {"Authorization": f"Bearer {make_jwt('ops', scope='feedsvc:admin')}"}
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:
        answer = await client.get(f"http://127.0.0.1:{service.port}/v1/status", headers=headers)
    found: list[object] = answer.json()["tenants"]
    return found


def resident_bytes(service: Service) -> int:
    """proc(5): VmRSS, in kB."""
    status = Path(f"/proc/{service.pid}/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmRSS:")).split()[1]) * 1024


async def test_a_client_that_is_gone_before_the_first_byte_leaves_nothing_behind(
    service: Service, database: Documents, fresh_database: str
) -> None:
    """TRA-01: 300 requests whose sockets are reset at once, or just when their topics are resolved; the next one is
    served."""
    for number in range(REQUESTS):
        peer = SseSocket(service, fresh_database, "orders")
        if number % 3 == 0:
            await asyncio.sleep(number / REQUESTS / 150)  # some milliseconds into what the service does
        peer.reset()
    await until_held(service, FREED_WITHIN_S)
    assert await tenants(service) == []
    async with stream_of(service, fresh_database, "orders") as stream:
        await stream.live()
        database["orders"].insert_one({"_id": 1})
        await stream.events(1)
    log = service.log()
    assert "Traceback" not in log and '"level":"error"' not in log


class WebSocketPeer:
    """A WebSocket on a bare socket that subscribes and reads up to `live`."""

    def __init__(self, service: Service, tenant: str, collection: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", service.port), 15)
        self.socket.sendall(
            "GET /v1/ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
            f"Authorization: Bearer {make_jwt(tenant)}\r\n\r\n".encode()
        )
        text = b'{"type":"subscribe","id":"s","topic":{"collection":"%b"}}' % collection.encode()
        found = b""
        while b"\r\n\r\n" not in found:
            found += self.socket.recv(65_536)
        self.socket.sendall(bytes([0x81, 0x80 | len(text)]) + bytes(4) + text)
        while b'"live"' not in found:
            found += self.socket.recv(65_536)


async def written(database: Documents, reader: Client, first: int, end: int) -> None:
    """Large documents with these numbers, and their events at somebody who reads."""
    listening = asyncio.create_task(reader.events(end - first))
    for number in range(first, end):
        await asyncio.to_thread(database["busy"].insert_one, {"_id": number, "text": "x" * EVENT_BYTES})
    assert [event["documentKey"]["_id"] for event in await listening] == list(range(first, end))


async def test_a_dead_network_is_noticed_on_quiet_and_on_busy_connections(
    service: Service, database: Documents, fresh_database: str
) -> None:
    """TRA-02: no FIN and no RST, while heartbeats or 12 MB of events are on their way: 4202 in time on both transports;
    meanwhile nothing piles up, and who is there gets everything."""
    async with contextlib.AsyncExitStack() as stack:
        there = await stack.enter_async_context(client_of(service, fresh_database))
        await there.subscribe("busy")
        await written(database, there, -EVENTS, 0)  # what reading them costs at all
        peers: list[socket.socket] = []
        for collection in ("quiet", "busy"):
            stream = stack.enter_context(SseSocket(service, fresh_database, collection))
            await asyncio.to_thread(stream.read_until, b"event: live")
            web = await asyncio.to_thread(WebSocketPeer, service, fresh_database, collection)
            stack.callback(web.socket.close)
            peers += [stream.socket, web.socket]
        before, held = await figures(service), resident_bytes(service)
        assert before["feedsvc_connections"] == len(peers) + 1
        for peer in peers:
            vanish(peer)
        began = time.monotonic()
        await written(database, there, 0, EVENTS)
        grown = resident_bytes(service) - held
        after = await until_held(service, PEER_TIMEOUT_S + 10, connections=1)
        took_s = time.monotonic() - began
        print(f"{grown >> 20} MiB more, all gone after {took_s:.1f} s")
        assert took_s < PEER_TIMEOUT_S + 2
        assert grown < MOST_GROWTH_BYTES
        closed = 'feedsvc_closes_total{code="4202"}'
        assert after[closed] == before.get(closed, 0) + len(peers)
