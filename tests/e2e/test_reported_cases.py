"""Failure cases from public reports that no other module shows on a served process; docs/cases.md has them all."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.e2e.conftest import Documents, StartService
from tests.support.engine import Engine
from tests.support.fault_proxy import FaultProxy
from tests.support.proxy import EngineProxy
from tests.support.service import (
    ONE_DATABASE_PER_TENANT,
    Client,
    Frame,
    Service,
    client_of,
    make_jwt,
    tail_open,
)

WRITE_EVERY_S = 0.02


def ids(client: Client) -> list[object]:
    return [frame["event"]["documentKey"]["_id"] for frame in client.seen if frame["type"] == "event"]


def answer_to(request_id: str) -> Callable[[Frame], bool]:
    return lambda frame: frame.get("id") == request_id


@contextlib.asynccontextmanager
async def writing(database: Documents) -> AsyncIterator[list[int]]:
    """Inserts 0, 1, 2, ... until it is left; yields the list of those that were acknowledged."""
    written: list[int] = []
    done = asyncio.Event()

    async def write() -> None:
        while not done.is_set():
            await asyncio.to_thread(database["orders"].insert_one, {"_id": len(written)})
            written.append(len(written))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), WRITE_EVERY_S)

    task = asyncio.create_task(write())
    try:
        yield written
    finally:
        done.set()
        await task


async def reaches(client: Client, number: int) -> None:
    """Until an event has come."""
    while number not in ids(client):
        await client.receive()


async def test_topics_beyond_the_budget_of_streams_are_refused_and_disturb_nobody(
    start_service: StartService, engine: Engine, database: Documents, fresh_database: str
) -> None:
    """SRC-06: 50 clients of one topic, then 20 collections with a budget of 5 streams: MongoDB sees 5, the rest is told
    so, questions to MongoDB are answered as before, and what was live stays live."""
    with EngineProxy(engine.port) as proxy:
        policy = {
            **ONE_DATABASE_PER_TENANT,
            "collections": {"orders": {}, **{f"c{n}": {} for n in range(20)}},
        }
        service = start_service(uri=proxy.uri, policy=policy, tail_scope="collection", max_tails="5")
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(client_of(service, fresh_database)) for _ in range(50)]
            await asyncio.gather(*(client.subscribe("orders") for client in clients))
            assert len(proxy.opened) == 1
            codes = []
            for number in range(20):
                topic = {"collection": f"c{number}"}
                await clients[0].send({"type": "subscribe", "id": f"s{number}", "topic": topic})
                answer = await clients[0].until(answer_to(f"s{number}"))
                codes.append(answer.get("code", answer["type"]))
            assert codes == ["subscribed"] * 4 + ["topic_limit"] * 16
            assert (len(proxy.opened), proxy.running) == (5, 5)
            began = time.monotonic()
            database["orders"].insert_one({"_id": 1})
            await asyncio.gather(*(reaches(client, 1) for client in clients))
            assert time.monotonic() - began < 2
            assert service.get("/healthz/ready")[0] == 200


async def test_what_is_written_while_a_subscription_is_made_is_not_missed(
    start_service: StartService, database: Documents, fresh_database: str
) -> None:
    """RES-01: every insert that was acknowledged after `subscribed` arrives, and none between it and the last is
    missing; for the first subscriber of a topic, which opens its stream, and for later ones."""
    service = start_service(tail_scope="collection")
    async with writing(database) as written:
        for _ in range(10):
            async with client_of(service, fresh_database) as client:
                await client.subscribe("orders", expect="")
                first = len(written)
                await reaches(client, first + 5)
                got = ids(client)
                assert got[0] in range(first + 1)
                assert got == list(range(int(str(got[0])), int(str(got[-1])) + 1))


async def test_a_client_cut_in_the_middle_of_a_batch_gets_the_rest_of_it(
    start_service: StartService, database: Documents, fresh_database: str
) -> None:
    """RES-11: one write of 100 documents, cut after 30; the token of event 30 brings 31 to 100, each once."""
    service = start_service()
    async with client_of(service, fresh_database) as client:
        topic = (await client.subscribe("orders"))["topic"]
        database["orders"].insert_many([{"_id": number} for number in range(100)])
        await client.events(30)
        token = client.tokens[topic]
        client.socket.transport.abort()
    async with client_of(service, fresh_database) as client:
        await client.subscribe("orders", resumeAfter=token)
        await reaches(client, 99)
        assert ids(client) == list(range(30, 100))


async def test_a_half_open_socket_is_let_go_while_its_client_has_long_resumed(
    start_service: StartService, database: Documents, fresh_database: str
) -> None:
    """RES-13: the network swallows the first socket; the second gets each event once, and then is the only one."""
    service = start_service(
        peer_timeout="1.5",
        policy={
            "tenant": {"claim": "tenant", "database": "{tenant}"},
            "collections": {"*": {}},
            "limits": {"connectionsPerTenant": 2},
        },
    )
    headers = {"Authorization": f"Bearer {make_jwt(fresh_database)}"}
    with FaultProxy(service.port) as proxy:
        url = f"ws://127.0.0.1:{proxy.port}/v1/ws"
        first = Client(await connect(url, additional_headers=headers, proxy=None))
        topic = (await first.subscribe("orders"))["topic"]
        proxy.half_open()
        database["orders"].insert_many([{"_id": number} for number in range(3)])
        async with client_of(service, fresh_database) as second:
            await second.subscribe("orders", resumeAfter=first.tokens[topic])
            await reaches(second, 2)
            assert ids(second) == [0, 1, 2]
            await asyncio.to_thread(service.wait_for, "/metrics", 200, "\nfeedsvc_connections 1.0\n")
            assert 'feedsvc_closes_total{code="4202"} 1.0' in service.get("/metrics")[1]
            async with client_of(service, fresh_database):
                pass
            assert ids(second) == [0, 1, 2]
        first.socket.transport.abort()
        await first.socket.wait_closed()


async def test_connections_that_age_in_turn_miss_nothing_between_them(
    start_service: StartService, database: Documents, fresh_database: str
) -> None:
    """RES-15, on a WebSocket: the service ends the connection each second while a writer writes."""
    service = start_service(max_age="1")
    await tail_open(service, fresh_database)
    got: list[object] = []
    resume: dict[str, str] = {}
    async with writing(database) as written:
        for _ in range(4):
            async with client_of(service, fresh_database) as client:
                topic = (await client.subscribe("orders", **resume))["topic"]
                assert (await client.closed())[0] == 4205
                got += ids(client)
                resume = {"resumeAfter": client.tokens[topic]}
    database["orders"].insert_one({"_id": len(written)})
    while len(written) not in got:
        async with client_of(service, fresh_database) as client:
            topic = (await client.subscribe("orders", **resume))["topic"]
            with contextlib.suppress(ConnectionClosed):
                await reaches(client, len(written))
            got += ids(client)
            resume = {"resumeAfter": client.tokens[topic]}
    assert got == list(range(int(str(got[0])), len(written) + 1))
    assert len(got) > 50


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "talking"])
async def test_sockets_without_credentials_do_not_keep_clients_out(
    start_service: StartService, database: Documents, fresh_database: str, silent: bool
) -> None:
    """AUT-13: rejected ones are gone in two seconds though they never answer the close, and a valid client connects
    throughout. (The absolute deadline of silent ones: test_auth.py; their cap: tests/runtime/test_client.py.)"""
    service = start_service()
    waiting = [await asyncio.open_connection("127.0.0.1", service.port) for _ in range(20)]
    for reader, writer in waiting:
        writer.write(
            b"GET /v1/ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        if not silent:
            writer.write(b"\x81\x84\0\0\0\0null")
    async with client_of(service, fresh_database) as client:
        await client.subscribe("orders")
        database["orders"].insert_one({"_id": 1})
        await client.events(1)
        left = 20.0 if silent else 0.0
        async with asyncio.timeout(5):
            while f"\nfeedsvc_waiting_sockets {left}\n" not in service.get("/metrics")[1]:
                await client.send({"type": "ping"})
                await client.until("pong")
        if not silent:
            for reader, _ in waiting:
                async with asyncio.timeout(5):
                    with contextlib.suppress(ConnectionError):
                        await reader.read()
    for _, writer in waiting:
        writer.transport.abort()


async def test_a_position_ahead_of_the_deployment_waits_and_is_no_error(
    start_service: StartService, fresh_database: str
) -> None:
    """RES-08: a token from a time that this deployment has not reached (it was restored, or the instance reads a member
    that lags) is neither an error nor a hole: nobody else is disturbed, and the process stays as it is."""
    ahead, behind = Engine().start(), Engine().start()
    try:
        first: Service = start_service(uri=ahead.uri)
        for _ in range(5):
            ahead.client[fresh_database]["orders"].insert_many([{} for _ in range(50)])
        async with client_of(first, fresh_database) as client:
            topic = (await client.subscribe("orders"))["topic"]
            ahead.client[fresh_database]["orders"].insert_one({"_id": 1})
            await client.events(1)
            token = client.tokens[topic]
        second: Service = start_service(uri=behind.uri, token_keys=first.token_keys)
        async with client_of(second, fresh_database) as client:
            await client.subscribe("others")
            await client.send(
                {"type": "subscribe", "id": "x", "topic": {"collection": "orders"}, "resumeAfter": token}
            )
            behind.client[fresh_database]["others"].insert_one({"_id": 2})
            assert (await client.events(1))[0]["documentKey"] == {"_id": 2}
            answer = next((frame for frame in client.seen if frame.get("id") == "x"), None)
            if answer is None:
                answer = await client.until(answer_to("x"))
            assert answer["type"] == "subscribed"
            if not answer["resumed"]:
                assert (await client.until("resync"))["reason"] in ("token_expired", "source_changed")
        assert "Traceback" not in second.log()
    finally:
        ahead.stop()
        behind.stop()
