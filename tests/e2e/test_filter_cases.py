"""Failure cases from public reports about filters and snapshots, on a served process; docs/cases.md has them all."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from bson import Int64, ObjectId

from tests.e2e.conftest import Documents, StartService
from tests.support.engine import Engine
from tests.support.fault_proxy import FaultProxy
from tests.support.proxy import EngineProxy
from tests.support.service import Client, Frame, client_of
from tests.support.view import Document, View, key_of

REFUSED = [
    '{"$or":{"0":{"a":1},"length":1}}',
    '{"$and":[{"$nor":{"0":{"a":1},"length":1}}]}',
    '{"a":{"$not":{"$in":{"0":1,"length":1}}}}',
    '{"a":1,"a":{"$where":"1"}}',
    '{"$where":"1"}',
    '{"$expr":{"$function":{"body":"1","args":[],"lang":"js"}}}',
    '{"a":{"\\u0024where":"1"}}',
    '{"\\u0024expr":{"$eq":[1,1]}}',
    '{"a":' * 200 + "1" + "}" * 200,
    '{"$and":[' * 200 + "{}" + "]}" * 200,
]
LARGE = 2**53 + 1
"""No double has this value."""
INSERTS = 500
FILTERS: list[dict[str, Any]] = [{}, {"n": {"$lt": 2}}, {"n": 1}]
"""Each matches the last of them."""
BACKTRACKING = [
    "(a|a)+b",
    "(a+)+$",
    "^(([a-z])+.)+[A-Z]([a-z])+$",
    "(.*)*x",
    "(a?){40}a{40}b",
    "(?:a*)*(?:a*)*b",
    "^(a|aa)+$",
]
"""What takes a backtracking engine longer than the universe has: each refused, or answered in linear time."""


def answer_to(request_id: str) -> Callable[[Frame], bool]:
    return lambda frame: frame.get("id") == request_id


@pytest.mark.parametrize("images", [True, False], ids=["exact", "partial"])
async def test_no_regular_expression_holds_another_client_up(
    start_service: StartService, database: Documents, fresh_database: str, images: bool
) -> None:
    """FIL-04: while patterns that backtrack meet texts made for them, another client's pings and events are answered,
    behind each of those documents at once, and the patterns that are not refused answer right."""
    service = start_service()
    names = database.create_collection("names", changeStreamPreAndPostImages={"enabled": images})
    async with client_of(service, fresh_database) as hostile, client_of(service, fresh_database) as other:
        accepted = 0
        for number, pattern in enumerate(BACKTRACKING):
            topic = {"collection": "names", "filter": {"name": {"$regex": pattern}}}
            await hostile.send({"type": "subscribe", "id": f"p{number}", "topic": topic})
            answer = await hostile.until(answer_to(f"p{number}"))
            accepted += answer["type"] == "subscribed"
            assert answer.get("code") in (None, "filter_unsupported", "filter_invalid")
        assert accepted
        await other.subscribe("orders")
        for number, text in enumerate(["a" * 40, "a" * 40 + "!", "a" * 10_000, "aA" * 5_000]):
            await asyncio.to_thread(names.insert_one, {"_id": number, "name": text})
            await other.send({"type": "ping"})
            await other.until("pong")
            await asyncio.to_thread(database["orders"].insert_one, {"_id": number})
            (event,) = await other.events(1)
            assert event["documentKey"] == {"_id": number}
        await asyncio.to_thread(names.insert_one, {"_id": "end", "name": "a" * 40 + "bx"})
        await hostile.until(
            lambda frame: frame["type"] == "event" and frame["event"]["documentKey"] == {"_id": "end"}
        )


async def test_values_of_a_filter_have_the_type_that_they_are_written_with(
    start_service: StartService, database: Documents, fresh_database: str
) -> None:
    """FIL-07: Extended JSON is honoured from the client's frame to the document, a bare hex string is a string, and
    what is no ObjectId is an error."""
    service = start_service()
    identity = ObjectId()
    filters = {
        "oid": {"_id": {"$oid": str(identity)}},
        "hex": {"_id": str(identity)},
        "date": {"at": {"$gte": {"$date": "2024-01-15T00:00:00Z"}}},
        "text": {"at": {"$gte": "2024-01-15T00:00:00Z"}},
        "long": {"n": {"$numberLong": str(LARGE)}},
        "double": {"n": {"$numberDouble": str(float(LARGE))}},
    }
    async with client_of(service, fresh_database) as client:
        names = {
            (await client.subscribe("orders", request_id=name, filter=query))["topic"]: name
            for name, query in filters.items()
        }
        await client.subscribe("orders", request_id="end", filter={"_id": "end"})
        day = datetime.datetime(2024, 1, 15, tzinfo=datetime.UTC)
        await asyncio.to_thread(
            database["orders"].insert_many,
            [
                {"_id": identity, "at": day, "n": Int64(LARGE)},
                {"_id": str(identity), "at": day.isoformat().replace("+00:00", "Z"), "n": float(LARGE)},
                {"_id": "end"},
            ],
        )
        await client.until(lambda frame: frame["type"] == "event" and frame["topic"] not in names)
        await client.send({"type": "ping"})
        await client.until("pong")
        told: dict[str, list[object]] = {}
        for frame in client.seen:
            if frame["type"] == "event" and frame["topic"] in names:
                key = frame["event"]["documentKey"]["_id"]
                told.setdefault(names[frame["topic"]], []).append(key)
        first, second = {"$oid": str(identity)}, str(identity)
        assert told == {
            "oid": [first], "date": [first], "long": [first], "hex": [second], "text": [second], "double": [second]
        }  # fmt: skip
        await client.send(
            {
                "type": "subscribe",
                "id": "x",
                "topic": {"collection": "orders", "filter": {"_id": {"$oid": "12"}}},
            }
        )
        assert (await client.until(answer_to("x")))["code"] == "filter_invalid"


async def test_a_refused_filter_asks_mongodb_for_nothing(
    start_service: StartService, engine: Engine, fresh_database: str
) -> None:
    """FIL-08: arrays made of objects, operators under escapes and the deep are refused before a stream is opened, and
    the connection goes on."""
    with EngineProxy(engine.port) as proxy:
        service = start_service(uri=proxy.uri)
        async with client_of(service, fresh_database) as client:
            for number, text in enumerate(REFUSED):
                await client.socket.send(
                    f'{{"type":"subscribe","id":"r{number}","topic":{{"collection":"orders","filter":{text}}}}}'
                )
                answer = await client.until(answer_to(f"r{number}"))
                assert answer.get("code") in ("filter_invalid", "filter_unsupported"), text
            assert proxy.opened == []
            await client.subscribe("orders")
            assert len(proxy.opened) == 1


async def test_a_snapshot_and_its_events_miss_nothing_that_is_inserted_meanwhile(
    start_service: StartService, engine: Engine, database: Documents, fresh_database: str
) -> None:
    """RES-01: while 500 documents are inserted clients ask for snapshots, with MongoDB out of reach between every other
    subscription and its find: each ends with all of them."""
    orders = database.create_collection("orders", changeStreamPreAndPostImages={"enabled": True})
    inserted = itertools.count()

    async def insert(count: int) -> None:
        for number in itertools.islice(inserted, count):
            await asyncio.to_thread(orders.insert_one, {"_id": number, "n": number % 3})

    async def follow(client: Client, view: View) -> dict[str, Document]:
        while not (view.live and key_of(INSERTS - 1) in view.documents):
            frame = await client.receive()
            if frame["type"] != "heartbeat":
                view.apply(frame)
        return view.documents

    with FaultProxy(engine.port) as proxy:
        service = start_service(uri=f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true")
        async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            followers = []
            for turn in range(10):
                client = await stack.enter_async_context(client_of(service, fresh_database))
                if turn % 2:
                    proxy.stall()
                view = View()
                view.asked(None)
                topic = {"collection": "orders", "filter": FILTERS[turn % 3]}
                await client.send({"type": "subscribe", "id": "s", "topic": topic, "snapshot": "always"})
                view.apply(await client.until("subscribed"))
                await insert(20)
                proxy.heal()
                followers.append(group.create_task(follow(client, view)))
                await insert(20)
            await insert(INSERTS - 400)
    for turn, follower in enumerate(followers):
        found = orders.find(FILTERS[turn % 3])
        assert follower.result() == {key_of(document["_id"]): document for document in found}
    assert orders.count_documents({}) == INSERTS
