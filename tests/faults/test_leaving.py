"""A process that leaves ends in its time, whoever hangs: clients, streams, MongoDB (DEP-03)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from feedsvc import app
from feedsvc.core.limits import Limits
from tests.support.engine import Engine
from tests.support.service import Client, Service, client_of, make_jwt, token_key
from tests.support.sse import Stream, stream_of
from tests.support.sse_socket import SseSocket

DRAIN_S = 4
PER_KIND = 20 if os.environ.get("VERIFY_SCALE") == "short" else 100
STALLED = 5
FEW, MANY = 10, 40
"""Events before the signal, and in all."""


@pytest.fixture
def engine_of_its_own() -> Iterator[Engine]:
    engine = Engine().start()
    yield engine
    engine.stop()


def open_cursors(engine: Engine) -> int:
    total: int = engine.client.admin.command("serverStatus")["metrics"]["cursor"]["open"]["total"]
    return total


async def test_no_cursor_stays_open_in_mongodb(
    engine_of_its_own: Engine, tmp_path: Path, fresh_database: str
) -> None:
    """Each change stream of the process is killed, not left to MongoDB's ten minutes."""
    before = open_cursors(engine_of_its_own)
    service = Service(engine_of_its_own.uri, tmp_path, drain="0.2", tail_scope="collection")
    await asyncio.to_thread(service.start)
    try:
        async with client_of(service, fresh_database) as client:
            for collection in ("orders", "users", "carts"):
                await client.subscribe(collection)
            assert open_cursors(engine_of_its_own) >= before + 3
            assert await asyncio.to_thread(service.stop) == 0
    finally:
        service.kill()
    assert open_cursors(engine_of_its_own) == before


@pytest.mark.verify
@pytest.mark.parametrize("driver", ["pymongo", "motor"])
async def test_a_mongodb_that_hangs_does_not_hold_up_the_end(
    engine_of_its_own: Engine, tmp_path: Path, fresh_database: str, driver: str
) -> None:
    """The process is gone within what a grace period is made for (`app.longest_shutdown_s`)."""
    service = Service(engine_of_its_own.uri, tmp_path, drain="1", mongo_driver=driver)
    try:
        await asyncio.to_thread(service.start)
        async with client_of(service, fresh_database) as client:
            await client.subscribe("orders")
            engine_of_its_own.pause()
            began = time.monotonic()
            assert await asyncio.to_thread(service.stop) == 0
            took_s = time.monotonic() - began
    finally:
        engine_of_its_own.resume()
        service.kill()
    longest_s = app.longest_shutdown_s(Limits(drain_s=1))
    print(f"\n{driver}: out in {took_s:.1f} s of {longest_s:.0f} while MongoDB hangs")
    assert took_s < longest_s
    assert "Traceback" not in service.log()


async def followed(client: Client) -> tuple[int, int]:
    """Close code and number of events of a WebSocket that reads until it is closed."""
    code, _ = await client.closed()
    return code, sum(frame["type"] == "event" for frame in client.seen)


async def streamed(stream: Stream) -> tuple[int, int]:
    seen = await stream.to_the_end()
    assert stream.parser.retry_ms is not None
    return seen[-1]["code"], sum(frame["type"] == "event" for frame in seen)


@pytest.mark.verify
async def test_two_hundred_clients_of_both_kinds_are_let_go_in_time(
    engine_of_its_own: Engine, tmp_path: Path, fresh_database: str
) -> None:
    """Each that reads is closed with 4200 or `close`, the stalled ones are cut, the last token is good elsewhere."""
    keys = token_key()
    orders = engine_of_its_own.client[fresh_database]["orders"]
    services = [
        Service(engine_of_its_own.uri, tmp_path, token_keys=keys, drain=str(DRAIN_S)) for _ in range(2)
    ]
    leaving, staying = services
    for service in services:
        await asyncio.to_thread(service.start)
    try:
        async with contextlib.AsyncExitStack() as stack:
            sockets = [
                await stack.enter_async_context(client_of(leaving, fresh_database)) for _ in range(PER_KIND)
            ]
            streams = [
                await stack.enter_async_context(stream_of(leaving, fresh_database, "orders"))
                for _ in range(PER_KIND)
            ]
            await asyncio.gather(*(client.subscribe("orders") for client in sockets))
            await asyncio.gather(*(stream.live() for stream in streams))
            for _ in range(STALLED):
                bearer = {"Authorization": f"Bearer {make_jwt(fresh_database)}"}
                deaf = Client(await connect(leaving.url, additional_headers=bearer, proxy=None))
                stack.callback(deaf.socket.transport.abort)
                await deaf.subscribe("orders")
                deaf.socket.transport.pause_reading()
                peer = stack.enter_context(SseSocket(leaving, fresh_database, "orders", buffer_bytes=4_096))
                await asyncio.to_thread(peer.read_until, b"event: live")
            orders.insert_many([{"_id": number, "text": "x" * 100_000} for number in range(FEW)])
            await asyncio.gather(*(stream.events(FEW) for stream in streams))
            readers = [
                *(asyncio.create_task(followed(client)) for client in sockets),
                *(asyncio.create_task(streamed(stream)) for stream in streams),
            ]
            began = time.monotonic()
            end = asyncio.create_task(asyncio.to_thread(leaving.stop))
            for number in range(FEW, MANY):
                await asyncio.to_thread(orders.insert_one, {"_id": number})
            ends = await asyncio.gather(*readers)
            assert await end == 0
            took_s = time.monotonic() - began
        assert {code for code, _ in ends} == {4200}
        assert took_s < app.longest_shutdown_s(Limits(drain_s=DRAIN_S))
        for client, (_, had) in list(zip(sockets, ends, strict=False))[:5]:
            async with client_of(staying, fresh_database) as again:
                (token,) = client.tokens.values()
                assert (await again.subscribe("orders", resumeAfter=token))["resumed"] is True
                rest = await again.replayed(MANY - had)
                assert [event["documentKey"]["_id"] for event in rest] == list(range(had, MANY))
        for stream, (_, had) in list(zip(streams, ends[PER_KIND:], strict=True))[:5]:
            last = stream.last_event_id
            async with stream_of(staying, fresh_database, "orders", last_event_id=last) as resumed:
                rest = await resumed.events(MANY - had)
                assert [event["documentKey"]["_id"] for event in rest] == list(range(had, MANY))
        assert "Traceback" not in leaving.log()
    finally:
        for service in services:
            service.kill()
    print(f"\n{PER_KIND} sockets, {PER_KIND} streams, {STALLED} deaf of each: out in {took_s:.1f} s")
