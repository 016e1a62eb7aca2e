"""The example this product started from, and what a client is promised when it comes back (issue 1, must show 1-3)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from bson import Timestamp
from pymongo import MongoClient
from pymongo.collection import Collection

from tests.e2e.conftest import StartService
from tests.support.engine import Engine
from tests.support.service import Client, Service, client_of

Documents = Collection[dict[str, Any]]


@pytest.fixture
def orders(mongodb_uri: str, fresh_database: str) -> Any:
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        yield client[fresh_database]["orders"]


async def gets_exactly_what_it_missed(service: Service, orders: Documents, *, restart: bool) -> None:
    """A client leaves, the collection changes, and it comes back; meanwhile the service may be killed and restarted."""
    tenant = orders.database.name
    wanted: dict[str, Any] = {"operations": ["insert", "update"]}
    async with client_of(service, tenant) as client:
        topic = (await client.subscribe("orders", **wanted))["topic"]
        orders.insert_many([{"_id": 1, "total": 10}, {"_id": 2, "total": 20}])
        first = await client.events(2)
        assert [(event["operationType"], event["documentKey"]["_id"]) for event in first] == [
            ("insert", 1),
            ("insert", 2),
        ]
        token = client.tokens[topic]
    if restart:
        service.kill()
    orders.insert_one({"_id": 3, "total": 30})
    orders.update_one({"_id": 1}, {"$set": {"total": 11}})
    orders.delete_one({"_id": 2})
    if restart:
        service.start()
    async with client_of(service, tenant) as client:
        subscribed = await client.subscribe("orders", resumeAfter=token, expect="", **wanted)
        assert (subscribed["resumed"], subscribed["token"], subscribed["topic"]) == (True, token, topic)
        await client.until("live")
        events = await client.replayed(2)
        assert [
            (event["operationType"], event["documentKey"]["_id"], event["fullDocument"]) for event in events
        ] == [("insert", 3, {"_id": 3, "total": 30}), ("update", 1, {"_id": 1, "total": 11})]
        orders.insert_one({"_id": 4})
        assert (await client.events(1))[0]["documentKey"] == {"_id": 4}


@pytest.mark.parametrize("restart", [False, True], ids=["running through", "killed and restarted"])
async def test_a_client_that_comes_back_gets_exactly_what_it_missed(
    start_service: StartService, orders: Documents, restart: bool
) -> None:
    await gets_exactly_what_it_missed(start_service(), orders, restart=restart)


async def test_a_token_that_the_oplog_no_longer_reaches_gets_resync_and_a_new_token_that_resumes(
    start_service: StartService, small_oplog: Engine, fresh_database: str
) -> None:
    orders = small_oplog.client[fresh_database]["orders"]
    service = start_service(uri=small_oplog.uri)
    async with client_of(service, fresh_database) as client:
        topic = (await client.subscribe("orders"))["topic"]
        orders.insert_one({"_id": 1})
        await client.events(1)
        token = client.tokens[topic]
    service.kill()
    orders.insert_one({"_id": 2})
    small_oplog.roll_oplog(small_oplog.client.admin.command("ping")["operationTime"])
    service.start()
    async with client_of(service, fresh_database) as client:
        subscribed = await client.subscribe("orders", resumeAfter=token, expect="")
        assert subscribed["resumed"] is False
        assert "token" not in subscribed
        resync = await client.receive()
        assert (resync["type"], resync["reason"]) == ("resync", "token_expired")
        assert (await client.receive())["type"] == "live"
        orders.insert_one({"_id": 3})
        assert (await client.events(1))[0]["documentKey"] == {"_id": 3}
        assert [frame["type"] for frame in client.seen].count("event") == 1
    async with client_of(service, fresh_database) as client:
        subscribed = await client.subscribe("orders", resumeAfter=resync["token"])
        assert subscribed["resumed"] is True
        events = await client.replayed(1)
        assert [event["documentKey"] for event in events] == [{"_id": 3}]


async def test_a_client_that_saw_no_event_resumes_from_the_token_in_subscribed(
    start_service: StartService, orders: Documents, fresh_database: str
) -> None:
    service = start_service()
    async with client_of(service, fresh_database) as client:
        token = (await client.subscribe("orders"))["token"]
    orders.insert_many([{"_id": 1}, {"_id": 2}])
    service.kill()
    service.start()
    async with client_of(service, fresh_database) as client:
        await client.subscribe("orders", resumeAfter=token)
        assert replayed_ids(client) == [1, 2]


@pytest.mark.parametrize(
    "busy",
    [
        pytest.param(False, id="quiet collection", marks=pytest.mark.verify),
        pytest.param(True, id="no match in a busy collection"),
    ],
)
async def test_the_last_checkpoint_resumes_after_the_oplog_has_rolled_past_the_subscription(
    start_service: StartService, small_oplog: Engine, fresh_database: str, busy: bool
) -> None:
    orders = small_oplog.client[fresh_database]["orders"]
    orders.insert_one({"_id": 0, "kind": "seed"})
    service = start_service(uri=small_oplog.uri, checkpoint_interval="0.3")
    wanted: dict[str, Any] = {"filter": {"kind": "rare"}}
    async with client_of(service, fresh_database) as client:
        subscribed = await client.subscribe("orders", **wanted)
        began = subscribed["clusterTime"]["$timestamp"]
        if busy:
            for _ in range(3):
                orders.insert_many([{"kind": "common"} for _ in range(1000)])
        small_oplog.roll_oplog(Timestamp(began["t"], began["i"]))
        rolled = small_oplog.client.admin.command("ping")["operationTime"]
        last = await checkpoint_past(client, rolled)
    orders.insert_one({"_id": "missed", "kind": "rare"})
    service.kill()
    service.start()
    async with client_of(service, fresh_database) as client:
        again = await client.subscribe("orders", resumeAfter=last, **wanted)
        assert again["resumed"] is True
        assert replayed_ids(client) == ["missed"]
    async with client_of(service, fresh_database) as client:
        stale = await client.subscribe("orders", resumeAfter=subscribed["token"], expect="resync", **wanted)
        assert stale["resumed"] is False


async def checkpoint_past(client: Client, time: Timestamp) -> str:
    """The token of a checkpoint that came after this collection's tail had passed a cluster time."""
    for attempt in itertools.count():
        probe = await client.subscribe("orders", request_id=f"probe{attempt}", filter={"probe": attempt})
        await client.send({"type": "unsubscribe", "topic": probe["topic"]})
        await client.until("unsubscribed")
        now = probe["clusterTime"]["$timestamp"]
        frame = await client.until("checkpoint")
        if (now["t"], now["i"]) > (time.time, time.inc):
            (token,) = frame["tokens"].values()
            return str(token)
    raise AssertionError


def replayed_ids(client: Client) -> list[Any]:
    return [frame["event"]["documentKey"]["_id"] for frame in client.seen if frame["type"] == "event"]
