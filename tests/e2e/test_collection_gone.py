"""A collection that is dropped, renamed or loses its database, at every tail scope (protocol.md section 4)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.e2e.conftest import Documents, StartService, seed
from tests.support.service import Client, Frame, Service, client_of

wide_scopes = pytest.mark.parametrize(
    "service", [pytest.param("database", marks=pytest.mark.verify), "deployment"], indirect=True
)
"""At scope `collection` the engine, unlike MongoDB, does not send a rename to the stream of its target."""


@pytest.fixture(
    scope="module", params=["collection", pytest.param("database", marks=pytest.mark.verify), "deployment"]
)
def service(request: pytest.FixtureRequest, start_for_module: StartService) -> Service:
    return start_for_module(tail_scope=request.param)


def told(client: Client, topic: str) -> list[tuple[str, Any]]:
    """Operation and `_id` of each event of a topic, and every resync."""
    return [
        (frame["event"]["operationType"], frame["event"].get("documentKey", {}).get("_id"))
        if frame["type"] == "event"
        else ("resync", frame["reason"])
        for frame in client.seen
        if frame["type"] in ("event", "resync") and frame["topic"] == topic
    ]


def events_of(client: Client, topic: str) -> list[Frame]:
    return [frame["event"] for frame in client.seen if frame["type"] == "event" and frame["topic"] == topic]


async def every_token_resumes_with_the_rest(
    service: Service, tenant: str, collection: str, start: str, events: list[Frame]
) -> None:
    tokens = [start, *(event["_id"] for event in events)]

    async def resume(number: int, way: str) -> None:
        async with client_of(service, tenant) as client:
            subscribed = await client.subscribe(collection, **{way: tokens[number]})
            assert (subscribed["resumed"], subscribed["token"]) == (True, tokens[number])
            assert events_of(client, subscribed["topic"]) == events[number:]

    ways = ("resumeAfter", "startAfter")
    await asyncio.gather(*(resume(number, way) for number in range(len(tokens)) for way in ways))


async def everywhere(service: Service, tenant: str, collection: str, start: str, events: list[Frame]) -> None:
    """From the live log, and from the oplog after a restart."""
    await every_token_resumes_with_the_rest(service, tenant, collection, start, events)
    service.kill()
    service.start()
    await every_token_resumes_with_the_rest(service, tenant, collection, start, events)


async def test_a_subscription_goes_on_with_the_collection_that_comes_after_a_drop(
    service: Service, database: Documents, fresh_database: str
) -> None:
    seed(database["orders"], {"_id": 0})
    async with client_of(service, fresh_database) as client:
        before = await client.subscribe("orders", operations=["insert"])
        others = (await client.subscribe("others"))["topic"]
        database["orders"].insert_one({"_id": 1})
        database["orders"].drop()
        database["orders"].insert_one({"_id": 2})
        database["others"].insert_one({"_id": 3})
        await client.events(5)
    topic = before["topic"]
    assert told(client, topic) == [("insert", 1), ("drop", None), ("invalidate", None), ("insert", 2)]
    assert told(client, others) == [("insert", 3)]
    async with client_of(service, fresh_database) as client:
        await client.subscribe("orders", operations=["insert"], resumeAfter=before["token"])
        assert len({event["_id"] for event in events_of(client, topic)}) == 4


async def test_every_token_around_a_drop_resumes_with_exactly_the_rest(
    service: Service, database: Documents, fresh_database: str
) -> None:
    seed(database["orders"], {"_id": 0})
    async with client_of(service, fresh_database) as client:
        before = await client.subscribe("orders")
        database["orders"].insert_one({"_id": 1})
        database["orders"].drop()
        database["orders"].insert_one({"_id": 2})
        database["orders"].drop()
        database["orders"].insert_one({"_id": 3})
        await client.events(7)
    events = events_of(client, before["topic"])
    assert [event["operationType"] for event in events] == [
        "insert", "drop", "invalidate", "insert", "drop", "invalidate", "insert",
    ]  # fmt: skip
    for event in events:
        if event["operationType"] in ("drop", "invalidate"):
            assert event.keys() == {"_id", "operationType", "clusterTime", "ns"}
    await everywhere(service, fresh_database, "orders", before["token"], events)


async def test_a_rename_ends_the_source_without_telling_the_new_name(
    service: Service, database: Documents, fresh_database: str
) -> None:
    seed(database["orders"], {"_id": 0})
    async with client_of(service, fresh_database) as client:
        source = await client.subscribe("orders")
        database["orders"].insert_one({"_id": 1})
        database["orders"].rename("archive")
        database["orders"].insert_one({"_id": 2})
        events = await client.events(4)
    assert told(client, source["topic"]) == [
        ("insert", 1), ("rename", None), ("invalidate", None), ("insert", 2),
    ]  # fmt: skip
    assert not any("archive" in text for text in client.raw)
    await everywhere(service, fresh_database, "orders", source["token"], events)


@wide_scopes
async def test_a_rename_onto_a_watched_name_resyncs_its_watcher(
    service: Service, database: Documents, fresh_database: str
) -> None:
    seed(database["orders"], {"_id": 0})
    async with client_of(service, fresh_database) as client:
        target = await client.subscribe("archive")
        database["orders"].rename("archive")
        resync = await client.until("resync")
        database["archive"].insert_one({"_id": 3})
        await client.events(1)
    assert told(client, target["topic"]) == [("resync", "event_unavailable"), ("insert", 3)]
    async with client_of(service, fresh_database) as client:
        await client.subscribe("archive", resumeAfter=resync["token"])
        assert told(client, target["topic"]) == [("insert", 3)]
    async with client_of(service, fresh_database) as client:
        await client.subscribe("archive", resumeAfter=target["token"], expect="")
        await client.until("resync")
        database["archive"].insert_one({"_id": 4})
        await client.until(lambda frame: told(client, target["topic"])[-1:] == [("insert", 4)])
        assert told(client, target["topic"])[0] == ("resync", "event_unavailable")


@wide_scopes
async def test_a_rename_over_a_watched_collection_resyncs_its_watcher(
    service: Service, database: Documents, fresh_database: str
) -> None:
    seed(database["staging"], {"_id": "new"})
    seed(database["orders"], {"_id": "old"})
    async with client_of(service, fresh_database) as client:
        topic = (await client.subscribe("orders"))["topic"]
        database["staging"].rename("orders", dropTarget=True)
        database["orders"].insert_one({"_id": 1})
        await client.until(lambda frame: told(client, topic)[-1:] == [("insert", 1)])
    assert ("resync", "event_unavailable") in told(client, topic)


async def test_dropping_the_database_ends_each_collection_once(
    service: Service, database: Documents, fresh_database: str
) -> None:
    seed(database["orders"], {"_id": 0})
    async with client_of(service, fresh_database) as client:
        before = await client.subscribe("orders")
        database["orders"].insert_one({"_id": 1})
        database.client.drop_database(fresh_database)
        database["orders"].insert_one({"_id": 2})
        await client.until(lambda frame: told(client, before["topic"])[-1:] == [("insert", 2)])
    operations = [operation for operation, _ in told(client, before["topic"])]
    assert operations[0] == "insert" and operations[-2:] == ["invalidate", "insert"]
    assert set(operations[1:-1]) <= {"drop", "dropDatabase", "invalidate"}
    assert operations.count("drop") == 1
    await everywhere(service, fresh_database, "orders", before["token"], events_of(client, before["topic"]))
