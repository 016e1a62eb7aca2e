"""BPR-10: floods on one connection and invented names get the documented answer, and nobody else notices."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from tests.e2e.conftest import Documents, StartService
from tests.support.service import ONE_DATABASE_PER_TENANT, Client, Frame, Service, client_of

SUBSCRIBES = 5_000
PAIRS_PER_SECOND = 1_000
PAIRS = 1_500
EVENTS = 20


@pytest.fixture(scope="module")
def service(start_for_module: StartService) -> Iterator[Service]:
    service = start_for_module()
    yield service
    service.kill()


async def everything(client: Client, count: int) -> list[Frame]:
    """The next `count` answers: errors, `subscribed` and `unsubscribed`."""
    answers: list[Frame] = []
    while len(answers) < count:
        frame = await client.receive()
        if frame["type"] in ("error", "subscribed", "unsubscribed"):
            answers.append(frame)
    return answers


async def heard_meanwhile(client: Client, database: Documents, done: asyncio.Event) -> list[float]:
    """How long each event takes from its acknowledged write to another client, until `done` and some more."""
    delays, number = list[float](), 0
    while not done.is_set() or number < EVENTS:
        await asyncio.to_thread(database["orders"].insert_one, {"_id": number})
        written = time.monotonic()
        assert (await client.events(1))[0]["documentKey"] == {"_id": number}
        delays.append(time.monotonic() - written)
        number += 1
    return delays


def counted(service: Service, name: str) -> float:
    """The value of a series on the page of metrics."""
    (line,) = [line for line in service.get("/metrics")[1].splitlines() if line.startswith(f"{name} ")]
    return float(line.rpartition(" ")[2])


async def test_five_thousand_subscribes_at_once(
    service: Service, database: Documents, fresh_database: str
) -> None:
    """As many as a connection may hold are served, each other is told by its id when to come again; the connection
    lives on, one stream is open, and another client hears every event as if nothing were."""
    before = counted(service, 'feedsvc_errors_sent_total{code="rate_limited"}')
    async with client_of(service, fresh_database) as flood, client_of(service, fresh_database) as other:
        await other.subscribe("orders")
        done = asyncio.Event()
        listening = asyncio.create_task(heard_meanwhile(other, database, done))
        for number in range(SUBSCRIBES):
            topic = {"collection": "orders", "filter": {"never": number}}
            await flood.send({"type": "subscribe", "id": f"s{number}", "topic": topic})
        answers = await everything(flood, SUBSCRIBES)
        done.set()
        assert len({answer["id"] for answer in answers}) == SUBSCRIBES
        codes = Counter(answer.get("code", answer["type"]) for answer in answers)
        assert codes["subscribed"] == 128
        assert set(codes) == {"subscribed", "subscription_limit", "rate_limited"}
        assert codes["subscription_limit"] <= 100
        refused = [answer for answer in answers if answer.get("code") == "rate_limited"]
        assert all(answer["retryable"] and 0 < answer["retryAfterMs"] <= 1_000 for answer in refused)
        assert counted(service, 'feedsvc_errors_sent_total{code="rate_limited"}') == before + len(refused)
        assert counted(service, "feedsvc_tails") == 1
        assert max(await listening) < 5
        await asyncio.sleep(refused[-1]["retryAfterMs"] / 1000)  # what the answer asks for
        topic_id = next(answer["topic"] for answer in answers if answer["type"] == "subscribed")
        await flood.send({"type": "unsubscribe", "topic": topic_id})
        assert (await everything(flood, 1))[0]["type"] == "unsubscribed"


async def test_a_thousand_pairs_a_second(service: Service, database: Documents, fresh_database: str) -> None:
    """Subscribe and unsubscribe without waiting: beyond the pace each frame is refused, and nothing is left behind."""
    async with client_of(service, fresh_database) as flood, client_of(service, fresh_database) as other:
        await other.subscribe("orders")
        first = await flood.subscribe("orders", filter={"x": 1})
        unsubscribe = json.dumps({"type": "unsubscribe", "topic": first["topic"]})
        topic = {"collection": "orders", "filter": {"x": 1}}
        subscribe = json.dumps({"type": "subscribe", "id": "again", "topic": topic})
        done = asyncio.Event()
        listening = asyncio.create_task(heard_meanwhile(other, database, done))
        answering = asyncio.create_task(flood.until("pong", 30))
        started = time.monotonic()
        for number in range(PAIRS):
            await flood.socket.send(unsubscribe)
            await flood.socket.send(subscribe)
            await asyncio.sleep(max(0.0, started + number / PAIRS_PER_SECOND - time.monotonic()))  # the rate
        in_time = 178 + 20 * (time.monotonic() - started + 1)
        await asyncio.sleep(0.2)  # a refusal says at most 100 ms
        await flood.send({"type": "ping"})
        await answering
        done.set()
        codes = Counter(frame["code"] for frame in flood.seen if frame["type"] == "error")
        assert set(codes) <= {"rate_limited", "not_subscribed", "already_subscribed"}
        assert 2 * PAIRS - in_time <= codes["rate_limited"] <= 2 * PAIRS - 177  # one was for the first
        assert max(await listening) < 5
        assert counted(service, "feedsvc_subscriptions") <= 2
    assert fresh_database not in service.log()


async def test_who_never_stops_is_closed_and_told_when_to_come_back(
    service: Service, fresh_database: str
) -> None:
    """4301 with `retryAfterMs`: a client that is told ten thousand times does not read."""
    async with client_of(service, fresh_database) as flood, client_of(service, fresh_database) as other:
        await other.subscribe("orders")
        closing = asyncio.create_task(flood.closed())
        for sent in range(14_000):
            # It reads: one that does not is closed as slow before.
            while len(flood.seen) < sent - 2_000 and not closing.done():  # noqa: ASYNC110 - thousands of frames
                await asyncio.sleep(0.01)
            if closing.done():
                break
            with contextlib.suppress(ConnectionClosed):  # while this one waits to be sent
                await flood.socket.send('{"type":"ping"}')
        code, reason = await closing
        assert (code, json.loads(reason)) == (4301, {"retryAfterMs": 5_000})
        assert flood.seen[-1]["code"] == "rate_limited"
        await other.send({"type": "ping"})
        await other.until("pong")


async def test_invented_collections_take_a_share_of_the_tails(
    start_service: StartService, mongodb: Any, fresh_database: str
) -> None:
    """One tenant, any number of connections; another tenant and the collections that are watched are unharmed."""
    policy = {**ONE_DATABASE_PER_TENANT, "collections": {"orders": {}, "*": {}}}
    service = start_service(policy=policy, tail_scope="collection", max_tails="6")
    async with (
        client_of(service, fresh_database) as one,
        client_of(service, fresh_database) as two,
        client_of(service, f"{fresh_database}x") as other,
    ):
        for name in ("x1", "x2"):
            await one.subscribe(name)
        await two.subscribe("x3")
        for client in (one, two):
            topic = {"collection": "x4"}
            await client.send({"type": "subscribe", "id": "x4", "topic": topic})
            error = await client.until("error")
            assert (error["id"], error["code"], error["retryable"]) == ("x4", "topic_limit", True)
        await one.subscribe("orders")
        for name in ("y1", "orders"):
            await other.subscribe(name)
        mongodb[fresh_database]["x1"].insert_one({"_id": 1})
        mongodb[f"{fresh_database}x"]["y1"].insert_one({"_id": 2})
        assert (await one.events(1))[0]["documentKey"] == {"_id": 1}
        assert (await other.events(1))[0]["documentKey"] == {"_id": 2}
        assert counted(service, 'feedsvc_errors_sent_total{code="topic_limit"}') == 2
