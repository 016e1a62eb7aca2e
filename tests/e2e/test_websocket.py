"""One WebSocket connection: malformed frames, subscriptions, times, liveness (protocol.md sections 2 to 4)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any

import pytest
from bson import Timestamp
from pymongo import MongoClient
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.e2e.conftest import Documents, StartService, seed
from tests.support.engine import Engine
from tests.support.service import Client, Service, client_of, make_jwt


@pytest.fixture(scope="module")
def service(start_for_module: StartService) -> Service:
    return start_for_module(heartbeat_interval="0.4", checkpoint_interval="0.4")


def timestamp(value: Timestamp | dict[str, int], plus_s: int = 0) -> dict[str, Any]:
    t, i = (value.time, value.inc) if isinstance(value, Timestamp) else (value["t"], value["i"])
    return {"$timestamp": {"t": t + plus_s, "i": i}}


# -- malformed input ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "text", "code"),
    [
        ("x" * (64 * 1024 + 1), True, 1009),
        (b"{}", False, 1003),
        (b'{"type":"ping\xff"}', True, 1007),
    ],
    ids=["over 64 KiB", "binary", "invalid UTF-8"],
)
async def test_a_frame_that_is_no_text_of_64_kib_closes_the_connection(
    service: Service, database: Documents, fresh_database: str, frame: str | bytes, text: bool, code: int
) -> None:
    async with client_of(service, fresh_database) as other, client_of(service, fresh_database) as client:
        await other.subscribe("orders")
        await client.socket.send(frame, text=text)
        assert (await client.closed())[0] == code
        database["orders"].insert_one({"_id": 1})
        assert (await other.events(1))[0]["documentKey"] == {"_id": 1}


async def test_a_message_in_fragments_that_passes_64_kib_closes_with_1009(
    service: Service, fresh_database: str
) -> None:
    async with client_of(service, fresh_database) as client:
        with contextlib.suppress(ConnectionClosed):
            await client.socket.send(["x" * 16_000] * 40)
        assert (await client.closed())[0] == 1009


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"no such type"}',
        '{"type":7}',
        "{}",
        "[]",
        "null",
        "not json",
        '{"type":"subscribe"}',
        '{"type":"subscribe","id":"","topic":{"collection":"orders"}}',
        '{"type":"subscribe","id":"' + "i" * 65 + '","topic":{"collection":"orders"}}',
        '{"type":"subscribe","id":"a","topic":{"filter":{}}}',
        '{"type":"subscribe","id":"a","topic":{"collection":"orders","operations":["drop"]}}',
        '{"type":"subscribe","id":"a","topic":{"collection":"orders"},"resumeAfter":"x","startAfter":"x"}',
        '{"type":"unsubscribe"}',
        "[" * 50_000,
        '{"type":"subscribe","id":"a","topic":{"collection":"c","filter":'
        + '{"a":' * 10_000
        + "1"
        + "}" * 10_002,
    ],
    ids=lambda text: text[:60],
)
async def test_a_malformed_frame_is_a_bad_request_and_the_connection_stays(
    service: Service, fresh_database: str, text: str
) -> None:
    async with client_of(service, fresh_database) as client:
        await client.socket.send(text)
        error = await client.until("error")
        assert (error["code"], error["retryable"]) == ("bad_request", False)
        await client.send({"type": "ping"})
        await client.until("pong")


async def test_unknown_fields_are_ignored_and_an_error_carries_the_id(
    service: Service, fresh_database: str
) -> None:
    async with client_of(service, fresh_database) as client:
        await client.send({"type": "ping", "later": {"version": 2}})
        await client.until("pong")
        await client.send({"type": "subscribe", "id": "mine", "topic": {"collection": 7}})
        assert (await client.until("error"))["id"] == "mine"


# -- subscriptions --------------------------------------------------------------------------------------------


async def test_a_topic_is_held_once_and_the_refusal_names_it(
    service: Service, database: Documents, fresh_database: str
) -> None:
    async with client_of(service, fresh_database) as client:
        first = await client.subscribe("orders", filter={"n": 1})
        await client.send(
            {
                "type": "subscribe",
                "id": "again",
                "topic": {"collection": "orders", "filter": {"n": {"$eq": 1}}},
            }
        )
        error = await client.until("error")
        assert (error["code"], error["id"], error["topic"]) == ("already_subscribed", "again", first["topic"])
        database["orders"].insert_one({"_id": 1, "n": 1})
        await client.events(1)


async def test_after_unsubscribed_no_frame_of_the_topic_follows(
    service: Service, database: Documents, fresh_database: str
) -> None:
    async with client_of(service, fresh_database) as client:
        ended = await client.subscribe("orders")
        await client.subscribe("others")
        database["orders"].insert_many([{"_id": number} for number in range(50)])
        await client.events(1)
        await client.send({"type": "unsubscribe", "topic": ended["topic"]})
        answer = await client.until("unsubscribed")
        assert (answer["topic"], answer["code"], answer["resubscribe"]) == (
            ended["topic"],
            "requested",
            False,
        )
        seen = len(client.seen)
        database["orders"].insert_one({"_id": "later"})
        database["others"].insert_one({"_id": "last"})
        await client.events(1)
        await client.until("checkpoint")
        assert not any(ended["topic"] in text for text in client.raw[seen:])
        await client.send({"type": "unsubscribe", "topic": ended["topic"]})
        error = await client.until("error")
        assert (error["code"], error["topic"]) == ("not_subscribed", ended["topic"])
        again = await client.subscribe("orders", resumeAfter=client.tokens[ended["topic"]])
        assert (again["topic"], again["resumed"]) == (ended["topic"], True)


async def test_events_reach_a_client_in_the_order_of_the_writes(
    service: Service, database: Documents, fresh_database: str
) -> None:
    async with client_of(service, fresh_database) as client:
        await client.subscribe("orders")
        database["orders"].insert_many([{"_id": number} for number in range(2_000)])
        events = await client.events(2_000)
        assert [event["documentKey"]["_id"] for event in events] == list(range(2_000))


# -- times ----------------------------------------------------------------------------------------------------


async def test_a_start_time_is_inclusive_and_can_be_served(
    service: Service, mongodb: MongoClient[dict[str, Any]], database: Documents, fresh_database: str
) -> None:
    seed(database["orders"], {"_id": 1})
    async with client_of(service, fresh_database) as client:
        await client.subscribe("orders")
        database["orders"].insert_many([{"_id": 2}, {"_id": 3}])
        events = await client.events(2)
    start = events[0]["clusterTime"]
    async with client_of(service, fresh_database) as client:
        subscribed = await client.subscribe("orders", startAtOperationTime=start)
        assert subscribed["resumed"] is True
        replayed = [frame["event"] for frame in client.seen if frame["type"] == "event"]
        assert replayed == events
    async with client_of(service, fresh_database) as client:
        await client.subscribe("orders", resumeAfter=subscribed["token"])
        assert [frame["event"] for frame in client.seen if frame["type"] == "event"] == events


async def test_a_start_time_ahead_of_the_cluster_is_a_bad_request(
    service: Service, mongodb: MongoClient[dict[str, Any]], fresh_database: str
) -> None:
    now = mongodb.admin.command("ping")["operationTime"]
    async with client_of(service, fresh_database) as client:
        await client.send(
            {
                "type": "subscribe",
                "id": "future",
                "topic": {"collection": "orders"},
                "startAtOperationTime": timestamp(now, plus_s=3600),
            }
        )
        error = await client.until("error")
        assert (error["code"], error["id"]) == ("bad_request", "future")
        await client.subscribe("orders")


async def test_a_start_time_before_the_oplog_gets_token_expired(
    start_service: StartService, small_oplog: Engine, fresh_database: str
) -> None:
    early = small_oplog.client.admin.command("ping")["operationTime"]
    small_oplog.client[fresh_database]["orders"].insert_one({"_id": 1})
    small_oplog.roll_oplog(small_oplog.client.admin.command("ping")["operationTime"])
    async with client_of(start_service(uri=small_oplog.uri), fresh_database) as client:
        subscribed = await client.subscribe("orders", startAtOperationTime=timestamp(early), expect="")
        resync = await client.receive()
        assert (subscribed["resumed"], resync["type"], resync["reason"]) == (False, "resync", "token_expired")


# -- liveness -------------------------------------------------------------------------------------------------


async def test_heartbeats_come_at_the_announced_interval(service: Service, fresh_database: str) -> None:
    async with client_of(service, fresh_database) as client:
        assert client.seen[0]["heartbeatMs"] == 400
        began = time.monotonic()
        for _ in range(3):
            heartbeat = await client.until("heartbeat", 1)
            assert heartbeat["stalled"] == []
        assert time.monotonic() - began < 3 * 0.4 + 0.5


async def test_a_checkpoint_token_resumes_behind_what_was_written_to_other_topics(
    service: Service, database: Documents, fresh_database: str
) -> None:
    async with client_of(service, fresh_database) as client:
        topic = (await client.subscribe("orders", filter={"n": 1}))["topic"]
        first = client.tokens[topic]
        database["orders"].insert_many([{"n": 2} for _ in range(10)])
        frame = await client.until(
            lambda frame: frame["type"] == "checkpoint" and frame["tokens"][topic] != first
        )
    database["orders"].insert_one({"_id": "missed", "n": 1})
    async with client_of(service, fresh_database) as client:
        await client.subscribe("orders", filter={"n": 1}, resumeAfter=frame["tokens"][topic])
        while "event" not in {frame["type"] for frame in client.seen}:  # the insert may be behind `live`
            await client.receive()
        assert [frame["event"]["documentKey"] for frame in client.seen if frame["type"] == "event"] == [
            {"_id": "missed"}
        ]


async def test_a_paused_engine_shows_as_stalled_in_time_and_nothing_is_lost(
    start_service: StartService, fresh_database: str
) -> None:
    engine = Engine().start()
    try:
        orders = engine.client[fresh_database]["orders"]
        seed(orders, {"_id": 0})
        service = start_service(uri=engine.uri, stall_after="1.5", heartbeat_interval="30")
        async with client_of(service, fresh_database) as client:
            topic = (await client.subscribe("orders"))["topic"]
            orders.insert_one({"_id": 1})
            await client.events(1)
            engine.pause()
            began = time.monotonic()
            heartbeat = await client.until("heartbeat")
            assert heartbeat["stalled"] == [topic]
            assert time.monotonic() - began < 1.5 + 1
            assert json.loads(service.get("/healthz/ready")[1])["status"] in ("degraded", "failing")
            assert service.get("/healthz/live")[0] == 200
            await client.send({"type": "ping"})
            await client.until("pong")
            engine.resume()
            orders.insert_many([{"_id": 2}, {"_id": 3}])
            events = await client.events(2)
            assert [event["documentKey"]["_id"] for event in events] == [2, 3]
            while not recovered(client):
                await client.receive()
            assert "resync" not in {frame["type"] for frame in client.seen}
            assert service.get("/healthz/ready")[0] == 200
    finally:
        engine.stop()


def recovered(client: Client) -> bool:
    heartbeats = [frame for frame in client.seen if frame["type"] == "heartbeat"]
    return not heartbeats[-1]["stalled"]


async def test_a_killed_engine_that_comes_back_loses_nothing(
    start_service: StartService, fresh_database: str
) -> None:
    engine = Engine().start()
    try:
        orders = engine.client[fresh_database]["orders"]
        seed(orders, {"_id": 0})
        async with client_of(start_service(uri=engine.uri), fresh_database) as client:
            await client.subscribe("orders")
            orders.insert_one({"_id": 1})
            await client.events(1)
            engine.kill()
            engine.restart()
            orders.insert_many([{"_id": 2}, {"_id": 3}])
            events = await client.events(2)
            assert [event["documentKey"]["_id"] for event in events] == [2, 3]
            assert "resync" not in {frame["type"] for frame in client.seen}
    finally:
        engine.stop()


async def test_a_client_that_vanishes_in_a_burst_leaves_no_error_and_no_trace(
    service: Service, database: Documents, fresh_database: str
) -> None:
    """TRA-06: reset sockets while a thousand events are on their way."""

    async def vanish() -> None:
        async with client_of(service, fresh_database) as client:
            await client.subscribe("orders")
            database["orders"].insert_many([{} for _ in range(100)])
            await client.events(1)
            client.socket.transport.abort()

    await asyncio.gather(*(vanish() for _ in range(10)))
    headers = {"Authorization": f"Bearer {make_jwt(fresh_database)}"}
    for _ in range(10):
        socket = await connect(service.url, additional_headers=headers, proxy=None)
        socket.transport.abort()
        await socket.wait_closed()
    async with client_of(service, fresh_database) as client, asyncio.timeout(10):
        while not {"feedsvc_connections 1.0", "feedsvc_subscriptions 0.0"} <= set(
            service.get("/metrics")[1].splitlines()
        ):
            await client.until("heartbeat")
    assert '"level":"error"' not in service.log()
    assert "Traceback" not in service.log()
