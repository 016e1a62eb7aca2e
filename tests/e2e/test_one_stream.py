"""However many clients and topics hang on a collection, MongoDB sees one change stream (decision 1)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.conftest import Documents, StartService, seed
from tests.support.engine import Engine
from tests.support.proxy import EngineProxy
from tests.support.service import Client, Service, client_of

CLIENTS = 500

SPELLINGS: list[dict[str, Any]] = [
    *({"filter": {"n": {"$gte": least}}} for least in range(8)),
    {},
    {"filter": {}},
    {"operations": ["insert"]},
    {"operations": ["insert", "insert"]},
    {"operations": ["delete", "insert"]},
    {"operations": ["insert", "delete"]},
    {"fields": {"n": 1}},
    {"fields": {"n": 1, "_id": 1}},
    {"filter": {"n": 100, "kind": "x"}},
    {"filter": {"kind": {"$eq": "x"}, "n": {"$in": [100]}}},
    {"filter": {"$and": [{"kind": "x"}, {"n": 100}]}},
    {"filter": {"$or": [{"kind": "x"}, {"n": 100}]}},
]
"""Twenty ways to ask; each sees an insert of {n: 100, kind: "x"}."""

EQUAL = [(8, 9), (10, 11), (12, 13), (14, 15), (16, 17), (16, 18)]


@pytest.fixture(scope="module")
def proxy(engine: Engine) -> Iterator[EngineProxy]:
    with EngineProxy(engine.port) as proxy:
        yield proxy


@pytest.fixture(scope="module", params=[pytest.param("collection", marks=pytest.mark.verify), "deployment"])
def service(
    request: pytest.FixtureRequest, proxy: EngineProxy, start_for_module: StartService
) -> Iterator[Service]:
    service = start_for_module(uri=proxy.uri, tail_scope=request.param)
    yield service
    service.kill()


async def test_500_clients_on_20_spellings_of_topics_share_one_change_stream(
    service: Service, proxy: EngineProxy, database: Documents, fresh_database: str
) -> None:
    seed(database["orders"], {"_id": "first"})
    opened, running = len(proxy.opened), proxy.running
    async with contextlib.AsyncExitStack() as stack:
        clients: list[Client] = []
        for _ in range(CLIENTS // 50):
            clients += await asyncio.gather(
                *(stack.enter_async_context(client_of(service, fresh_database)) for _ in range(50))
            )
        topics = await asyncio.gather(
            *(
                client.subscribe("orders", **SPELLINGS[number % len(SPELLINGS)])
                for number, client in enumerate(clients)
            )
        )
        ids = [answer["topic"] for answer in topics]
        assert all(ids[one] == ids[other] for one, other in EQUAL)
        assert len(set(ids)) == len(SPELLINGS) - len(EQUAL)
        database["orders"].insert_one({"_id": 1, "n": 100, "kind": "x"})
        events = await asyncio.gather(*(client.events(1) for client in clients))
        assert {event["documentKey"]["_id"] for (event,) in events} == {1}
        assert len({event["_id"] for (event,) in events}) == len(set(ids))
        assert (len(proxy.opened) - opened, proxy.running - running) == (1, 1)
        figures = service.get("/metrics")[1].splitlines()
        assert f"feedsvc_subscriptions {float(CLIENTS)}" in figures
        assert "feedsvc_tails 1.0" in figures


async def test_a_stream_is_never_filtered_by_document(
    service: Service, proxy: EngineProxy, database: Documents, fresh_database: str
) -> None:
    async with client_of(service, fresh_database) as client:
        await client.subscribe("others", filter={"secret": "a value of a client"})
    for command in proxy.opened:
        assert [*command["pipeline"][0]] == ["$changeStream"]
        assert "fullDocument." not in str(command["pipeline"][1:])
        assert "a value of a client" not in str(command)


async def test_a_reconnect_storm_shares_catch_up_streams(
    service: Service, proxy: EngineProxy, database: Documents, fresh_database: str
) -> None:
    """200 clients that were away together cost MongoDB a handful of cursors, and none is left behind."""
    async with client_of(service, fresh_database) as client:
        token = (await client.subscribe("storm"))["token"]
    database["storm"].insert_many([{"_id": number} for number in range(20)])
    service.kill()
    service.start()
    before = len(proxy.opened)
    async with contextlib.AsyncExitStack() as stack:
        clients: list[Client] = []
        for _ in range(4):
            clients += await asyncio.gather(
                *(stack.enter_async_context(client_of(service, fresh_database)) for _ in range(50))
            )
        await asyncio.gather(*(client.subscribe("storm", resumeAfter=token) for client in clients))
        for client in clients:
            replayed = [
                frame["event"]["documentKey"]["_id"] for frame in client.seen if frame["type"] == "event"
            ]
            assert replayed == list(range(20))
        assert len(proxy.opened) - before <= 1 + 4
