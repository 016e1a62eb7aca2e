"""What leaves a connection leaves it in order, and what one peer costs or holds up is bounded (BPR-05, 06, 07, 08, 10).

Where a socket is carried on uvicorn's transport the same must hold as on the plain ASGI path, which other servers
take: one writer, whoever has something to say. A reader that has stopped is looked at in `test_slow_readers.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import sys
from typing import Any

import pytest

from tests.e2e.conftest import Documents, StartService, seed
from tests.e2e.test_server_hazards import RawClient, raw_client
from tests.e2e.test_slow_readers import (
    go_on,
    insert,
    kernel_bytes,
    keys,
    metric,
    narrow_client,
    rss_bytes,
    stop,
)
from tests.support.narrow_socket import narrow_socket
from tests.support.service import Client, Service, client_of, make_jwt

WITHOUT_TRANSPORT = """
import runpy, sys
from feedsvc.adapters.web import ws
ws.protocol_of = lambda scope: None
sys.argv = ["feedsvc", "serve"]
runpy.run_module("feedsvc", run_name="__main__")
"""
PATIENT = "60"
BURST = 150
EVENT_BYTES = 10_000
REPLAYED = 30
PINGS = 20
PING, PONG = 9, 10
PING_FLOOD = 120_000
IDLE = 300
WARM = 30
IDLE_BYTES = 40 << 10


@pytest.fixture(scope="module")
def carried(start_for_module: StartService) -> Service:
    return start_for_module(slow_after=PATIENT, checkpoint_interval="0.2", heartbeat_interval="0.2")


@pytest.fixture(scope="module")
def plain_asgi(start_for_module: StartService) -> Service:
    return start_for_module(
        wrapper=(sys.executable, "-c", WITHOUT_TRANSPORT),
        slow_after=PATIENT,
        checkpoint_interval="0.2",
        heartbeat_interval="0.2",
    )


@pytest.fixture(params=["carried", "plain_asgi"])
def served(request: pytest.FixtureRequest) -> Service:
    found: Service = request.getfixturevalue(request.param)
    return found


def of_topic(client: Client, topic: str) -> list[Any]:
    """What was told of a topic: frames by type, events by the `_id` of their document."""
    return [
        frame["event"]["documentKey"]["_id"] if frame["type"] == "event" else frame["type"]
        for frame in client.seen
        if frame.get("topic") == topic
    ]


async def test_frames_of_all_kinds_leave_whole_and_in_order_while_a_reader_is_paused(
    served: Service, database: Documents, fresh_database: str
) -> None:
    """BPR-05: a burst, pongs, a refresh, a resync, a replay and what is live behind it, all owed at once."""
    for name in ("orders", "replayed", "staging"):
        seed(database[name], {"_id": "first"})
    async with (
        client_of(served, fresh_database) as other,
        narrow_client(served, fresh_database) as paused,
    ):
        await other.subscribe("orders")
        past = (await other.subscribe("replayed", request_id="past"))["token"]
        burst = (await paused.subscribe("orders"))["topic"]
        target = (await paused.subscribe("target", request_id="t"))["topic"]
        database["replayed"].insert_many([{"_id": number} for number in range(REPLAYED)])
        await other.events(REPLAYED)

        stop(paused)
        await insert(database, 0, BURST)
        assert keys(await other.events(BURST)) == list(range(BURST))
        assert kernel_bytes(paused) < BURST * EVENT_BYTES, "the transport is full"
        for _ in range(PINGS):
            await paused.send({"type": "ping"})
        await paused.send({"type": "auth", "jwt": make_jwt(fresh_database, ttl_s=1_000)})
        topic = {"collection": "replayed"}
        await paused.send({"type": "subscribe", "id": "r", "topic": topic, "resumeAfter": past})
        database["staging"].rename("target")
        await insert(database, BURST, 5)
        database["replayed"].insert_many([{"_id": number} for number in range(REPLAYED, REPLAYED + 5)])
        await other.events(10)

        go_on(paused)
        async with asyncio.timeout(20):
            while "resync" not in of_topic(paused, target):
                await paused.receive()
            database["target"].insert_one({"_id": "behind"})
            while len(of_topic(paused, burst)) < BURST + 7 or "behind" not in of_topic(paused, target):
                await paused.receive()
            while not (answers := [frame for frame in paused.seen if frame.get("id") == "r"]):
                await paused.receive()
            again = answers[0]["topic"]
            while not {"live", REPLAYED + 4} <= set(of_topic(paused, again)):
                await paused.receive()

        types = [frame["type"] for frame in paused.seen]
        assert of_topic(paused, burst) == ["subscribed", "live", *range(BURST + 5)]
        assert of_topic(paused, target) == ["subscribed", "live", "resync", "live", "behind"]
        replay = of_topic(paused, again)
        assert answers[0]["resumed"] is True and replay[0] == "subscribed"
        assert [told for told in replay[1:] if told != "live"] == list(range(REPLAYED + 5))
        assert replay.index("live") > replay.index(REPLAYED - 1) and replay.count("live") == 1
        assert types.count("pong") == PINGS and types.count("authenticated") == 1
    assert "Traceback" not in served.log() and '"level":"error"' not in served.log()


async def test_the_position_of_the_stream_never_waits_for_a_subscriber(
    carried: Service, database: Documents, fresh_database: str
) -> None:
    """BPR-06: of thousands of events nobody is late, nor is the service, while one subscriber is blocked."""
    service = carried
    seed(database["orders"], {"_id": "first"})
    count, size_bytes, lags = 2_000, 1_500, []
    async with client_of(service, fresh_database) as other, narrow_client(service, fresh_database) as blocked:
        await other.subscribe("orders")
        await blocked.subscribe("orders")
        stop(blocked)

        async def write() -> None:
            for first in range(0, count, 200):
                await insert(database, first, 200, size_bytes)
                lags.append(await asyncio.to_thread(metric, service, "feedsvc_tail_lag_seconds"))

        writing = asyncio.create_task(write())
        assert keys(await other.events(count)) == list(range(count))
        await writing
        assert kernel_bytes(blocked) < count * size_bytes, "it took nothing"
        assert len(lags) == count // 200 and max(lags) < 5
        go_on(blocked)
        assert keys(await blocked.events(100)) == list(range(100))
        assert "resync" not in {frame["type"] for frame in blocked.seen}


async def test_pongs_do_not_pile_up_for_a_peer_that_does_not_read(
    served: Service, fresh_database: str
) -> None:
    """Pings are answered by the protocol itself, so no bound on owed answers counts them."""
    payload = b"x" * 120
    narrow = await narrow_socket(served.port, narrow_segments=True)
    reader, writer = await asyncio.open_connection(sock=narrow)
    asking = RawClient(reader, writer)
    asking.upgrade(make_jwt(fresh_database), served.port)
    await reader.readuntil(b"\r\n\r\n")
    assert b'"welcome"' in (await asking.frame())[1]
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    before = rss_bytes(served)
    for _ in range(PING_FLOOD // 500):
        for _ in range(500):
            asking.send(PING, payload)
        await writer.drain()
    await asyncio.to_thread(served.get, "/healthz/live")
    assert rss_bytes(served) - before < PING_FLOOD * len(payload) / 3
    asking.send(PING, b"last")
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    async with asyncio.timeout(15):
        while await asking.frame() != (PONG, b"last"):
            pass
    writer.transport.abort()


async def offer_deflate(client: RawClient, tenant: str, port: int) -> None:
    client.writer.write(
        f"GET /v1/ws HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n"
        f"Authorization: Bearer {make_jwt(tenant)}\r\n\r\n".encode()
    )
    head = await client.reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 ") and b"server_no_context_takeover" in head
    assert b'"welcome"' in (await client.frame())[1]


async def test_an_idle_socket_that_negotiated_compression_costs_little_memory(
    start_service: StartService, fresh_database: str
) -> None:
    """BPR-07: no window is kept for anybody; below 40 KiB for each connection, everything counted."""
    service = start_service(peer_timeout=PATIENT)
    async with contextlib.AsyncExitStack() as stack:

        async def idle(count: int) -> int:
            clients = [await stack.enter_async_context(raw_client(service.port)) for _ in range(count)]
            for client in clients:
                await offer_deflate(client, fresh_database, service.port)
            return rss_bytes(service)

        before = await idle(WARM)
        each = (await idle(IDLE) - before) / IDLE
        assert metric(service, "feedsvc_connections") == WARM + IDLE
        print(f"{each / 1024:.1f} KiB for each idle connection")
        assert each < IDLE_BYTES


async def test_a_peer_that_says_anything_is_there_and_one_that_says_nothing_gets_4202(
    start_service: StartService, fresh_database: str
) -> None:
    """BPR-08: neither answers a ping. A pong may stand behind what is still on its way; silence is no pong."""
    service = start_service(peer_timeout="1.5")
    async with raw_client(service.port) as silent, raw_client(service.port) as talking, asyncio.timeout(15):
        for client in (silent, talking):
            client.upgrade(make_jwt(fresh_database), service.port)
            await client.reader.readuntil(b"\r\n\r\n")
        opcodes: list[int] = []

        async def talk() -> None:
            while True:
                talking.send(1, b'{"type":"ping"}')
                await asyncio.sleep(0.1)

        async def listen(client: RawClient) -> bytes:
            opcode, payload = 0, b""
            while opcode != 8:
                opcode, payload = await client.frame()
                if client is talking:
                    opcodes.append(opcode)
            return payload

        speaking, heard = asyncio.create_task(talk()), asyncio.create_task(listen(talking))
        try:
            (code,) = struct.unpack("!H", (await listen(silent))[:2])
            assert code == 4202
            pings, pongs = opcodes.count(9), opcodes.count(1)
            assert pings and not heard.done()
            while opcodes.count(1) < pongs + 20 or opcodes.count(9) < pings + 1:
                await asyncio.sleep(0.01)
                assert not heard.done(), heard.result()
        finally:
            for task in (speaking, heard):
                task.cancel()
