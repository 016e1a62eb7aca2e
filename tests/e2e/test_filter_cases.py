"""Failure cases from public reports about filters and snapshots, on a served process; docs/cases.md has them all."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.conftest import Documents, StartService
from tests.support.engine import Engine
from tests.support.fault_proxy import FaultProxy
from tests.support.service import Client, Frame, client_of
from tests.support.view import Document, View, key_of

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
