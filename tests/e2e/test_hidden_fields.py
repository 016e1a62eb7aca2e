"""Nothing hidden gets out of a served process, whatever operator wrote it (protocol.md section 7).

Two documents differ in hidden fields only. Every operator is applied to both, with other hidden values: their events
must be the same, but for the tokens, times and keys.
"""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import msgspec
import pytest
from pymongo.collection import Collection

from tests.e2e.conftest import Documents, StartService
from tests.support.service import Client, Service, client_of

POLICY = {
    "tenant": {"claim": "tenant", "database": "{tenant}"},
    "collections": {"*": {"fields": {"cost": 0, "lines.cost": 0, "a.b.c": 0}}},
}
HIDDEN = "<HIDDEN>"
"""Stands for a value of the twin's own. All that is written in its place holds the word SECRET or is a number of its
own."""
Rows = Collection[dict[str, Any]]


class Write(msgspec.Struct, frozen=True):
    """`told`: something visible changes. `parents`: it may be described as the write of a parent, so without images it
    cannot be known that nothing does."""

    name: str
    update: Any
    told: bool = True
    parents: bool = False
    filters: list[dict[str, Any]] | None = None


@pytest.fixture(scope="module")
def service(start_for_module: StartService) -> Service:
    return start_for_module(policy=POLICY)


def fresh(twin: int) -> dict[str, Any]:
    return {
        "_id": twin,
        "v": 1,
        "cost": own(twin, 0),
        "n": {"of": 1},
        "a": {"b": {"c": own(twin, 0), "d": 1}, "e": 1},
        "lines": [
            {"x": 1, "cost": own(twin, 0)},
            {"x": 2, "cost": twin * 1000},
            7,
            [{"x": 3, "cost": own(twin, 1)}],
        ],
    }


def own(twin: int, number: int) -> str:
    """Of different lengths: how a pipeline update is described depends on sizes."""
    return f"SECRET-{twin}-{number}-" + "s" * (200 if twin == 2 else 0)


def filled(value: Any, secret: str) -> Any:
    if isinstance(value, dict):
        return {name: filled(item, secret) for name, item in value.items()}
    if isinstance(value, list):
        return [filled(item, secret) for item in value]
    return secret if value == HIDDEN else value


WRITES = [
    # hidden fields alone
    Write("set", {"$set": {"cost": HIDDEN}}, told=False),
    Write("set below", {"$set": {"a.b.c": HIDDEN}}, told=False),
    Write("set by index", {"$set": {"lines.0.cost": HIDDEN}}, told=False),
    Write("set deep", {"$set": {"cost": {"x": {"y": HIDDEN}}}}, told=False),
    Write("set in what is hidden", {"$set": {"cost.x.y": HIDDEN, "cost.z": [HIDDEN]}}, told=False),
    Write("push to what is hidden", {"$push": {"cost.z": HIDDEN}}, told=False),
    Write("unset", {"$unset": {"cost": 1, "lines.0.cost": 1}}, told=False),
    Write("set by filter", {"$set": {"lines.$[l].cost": HIDDEN}}, told=False, filters=[{"l.x": 1}]),
    Write("inc", {"$inc": {"lines.1.cost": 1}}, told=False),
    Write("mul", {"$mul": {"lines.1.cost": 2}}, told=False),
    Write("min and max", {"$min": {"lines.1.cost": -1}, "$max": {"cost": 5}}, told=False),
    Write("current date", {"$currentDate": {"a.b.c": True}}, told=False),
    Write("pipeline", [{"$set": {"cost": HIDDEN}}], told=False),
    Write("pipeline below", [{"$set": {"cost": HIDDEN, "a.b.c": HIDDEN}}], told=False, parents=True),
    Write("pipeline unset", [{"$unset": ["cost"]}], told=False),
    # both
    Write("set both", {"$set": {"cost": HIDDEN, "v": 2, "a.b.c": HIDDEN, "a.b.d": 2}}),
    Write("set a parent", {"$set": {"a.b": {"c": HIDDEN, "d": 3}}}),
    Write("set a parent's parent", {"$set": {"a": {"b": {"d": 4, "c": HIDDEN}, "e": 2}}}),
    Write("set an element", {"$set": {"lines.0": {"cost": HIDDEN, "x": 5}}}),
    Write("set an array", {"$set": {"lines": [{"x": 1, "cost": HIDDEN}, {"x": 2, "cost": 5}, {"x": 9}]}}),
    Write("inc both", {"$inc": {"v": 1, "lines.1.cost": 1}}),
    Write("push", {"$push": {"lines": {"x": 6, "cost": HIDDEN}}}),
    Write(
        "push at a place",
        {"$push": {"lines": {"$each": [{"x": 7, "cost": HIDDEN}], "$position": 0, "$slice": 4}}},
    ),
    Write("pull by what is hidden", {"$pull": {"lines": {"cost": HIDDEN}}}),
    Write("add to set", {"$addToSet": {"lines": {"x": 8, "cost": HIDDEN}}}),
    Write("pop", {"$pop": {"lines": 1}}),
    Write("rename to a hidden name", {"$rename": {"n": "cost"}}),
    Write("rename from a hidden name", {"$rename": {"cost": "n"}}),
    Write("unset both", {"$unset": {"a.b.c": 1, "a.e": 1}}),
    Write("unset a parent", {"$unset": {"a.b": 1}}),
    Write("pipeline both", [{"$set": {"cost": HIDDEN, "v": 20, "a": {"b": {"c": HIDDEN, "d": 5}, "e": 7}}}]),
    Write("pipeline array", [{"$set": {"lines": [{"x": 1, "cost": HIDDEN}, {"x": 4, "cost": HIDDEN}]}}]),
    Write("pipeline cut", [{"$set": {"lines": [{"x": 1, "cost": HIDDEN}]}}]),
    Write("pipeline unset both", [{"$unset": ["a.b.c", "v"]}]),
    Write("replace", {"v": 5, "cost": HIDDEN, "lines": [{"cost": HIDDEN}], "a": {"b": {"c": HIDDEN}}}),
]


def apply(rows: Rows, write: Write, twin: int, number: int) -> None:
    document = filled(write.update, own(twin, number))
    if write.name == "replace":
        rows.replace_one({"_id": twin}, document)
        return
    if write.name == "pull by what is hidden":
        rows.update_one({"_id": twin}, {"$set": {"lines.0.cost": own(twin, number)}})
    rows.update_one({"_id": twin}, document, array_filters=write.filters)


async def told(client: Client, rows: Rows, topic: str, ticks: int) -> dict[int, list[Any]]:
    """What was said of each twin until a last write of another document."""
    await asyncio.to_thread(rows.update_one, {"_id": "end"}, {"$set": {"ticks": ticks}}, upsert=True)
    seen: dict[int, list[Any]] = {1: [], 2: []}
    while True:
        frame = await client.until(lambda frame: frame["type"] == "event" and frame["topic"] == topic)
        event = copy.deepcopy(frame["event"])
        key = event["documentKey"]["_id"]
        if key == "end":
            return seen
        assert set(event["documentKey"]) == {"_id"}
        for name in ("_id", "clusterTime", "wallTime", "documentKey"):
            del event[name]
        event.get("fullDocument", {}).pop("_id", None)
        seen[key].append(event)


@pytest.mark.parametrize("images", [True, False], ids=["exact", "partial"])
async def test_every_operator_says_the_same_of_two_documents_that_differ_in_hidden_fields(
    service: Service, database: Documents, fresh_database: str, images: bool
) -> None:
    """And nothing where it wrote hidden fields alone; no byte of a hidden value or name anywhere."""
    rows = database.create_collection("rows", changeStreamPreAndPostImages={"enabled": images})
    async with client_of(service, fresh_database) as client:
        topic = (await client.subscribe("rows"))["topic"]
        # A filter on a hidden field is one on a missing field: it changes nothing.
        probing = {"cost": {"$exists": False}, "lines.cost": None, "$nor": [{"a.b.c": {"$gt": ""}}]}
        probe = (await client.subscribe("rows", request_id="probe", filter=probing))["topic"]
        await asyncio.to_thread(rows.insert_many, [fresh(1), fresh(2)])
        inserted = await told(client, rows, topic, -1)
        assert inserted[1] == inserted[2] and len(inserted[1]) == 1
        for number, write in enumerate(WRITES, 1):
            for twin in (1, 2):
                await asyncio.to_thread(apply, rows, write, twin, number)
            seen = await told(client, rows, topic, number)
            assert seen[1] == seen[2], write.name
            if images or not write.parents:
                assert len(seen[1]) == write.told, (write.name, seen)
        await asyncio.to_thread(rows.delete_many, {"_id": {"$in": [1, 2]}})
        deleted = await told(client, rows, topic, len(WRITES) + 1)
        assert (
            deleted[1]
            == deleted[2]
            == [{"operationType": "delete", "membership": "left", "ns": {"coll": "rows"}}]
        )
        await asyncio.to_thread(rows.rename, "SECRET_name")
        await client.until(
            lambda frame: frame["type"] == "event" and frame["event"]["operationType"] == "invalidate"
        )
        await client.send({"type": "ping"})
        await client.until("pong")
    for text in client.raw:
        assert "SECRET" not in text and '"cost' not in text and ".cost" not in text and '"c"' not in text, (
            text
        )
    stories: dict[str, list[Any]] = {topic: [], probe: []}
    for frame in client.seen:
        if frame["type"] == "event":
            event = frame["event"]
            stories[frame["topic"]].append(
                {name: event[name] for name in event if name not in ("_id", "membership")}
            )
    assert stories[topic] == stories[probe]


REFUSED: list[Any] = [
    {"@": {"$bad": "VALUE"}},
    {"@": {"$where": "VALUE"}},
    {"@": {"$in": "VALUE"}},
    {"@": {"$gt": 1, "x": "VALUE"}},
    {"@": {"$not": "VALUE"}},
    {"$or": [{"@": {"$in": ["VALUE"] * 201}}]},
    {"@": {"$regex": "(?<=VALUE)x"}},
    {"@.$x": "VALUE"},
    {"@": {"$numberInt": "VALUE"}},
]


def _named(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {key.replace("@", name): _named(item, name) for key, item in value.items()}
    return [_named(item, name) for item in value] if isinstance(value, list) else value


async def test_a_hidden_field_and_one_that_does_not_exist_are_answered_alike(
    service: Service, database: Documents, fresh_database: str
) -> None:
    """What is refused and what is not; no message carries a value."""
    database.create_collection("rows", changeStreamPreAndPostImages={"enabled": True})

    async def answer(client: Client, number: int, topic: dict[str, Any]) -> dict[str, Any]:
        await client.send({"type": "subscribe", "id": f"r{number}", "topic": {"collection": "rows", **topic}})
        return await client.until(lambda frame: frame.get("id") == f"r{number}")

    # The names have the same length and stand in one order, so only the name may differ.
    async with client_of(service, fresh_database) as client:
        number = 0
        for shape in REFUSED:
            told = []
            for name in ("cost", "nope"):
                number += 1
                error = await answer(client, number, {"filter": _named(shape, name)})
                assert error["type"] == "error" and "VALUE" not in error["message"]
                told.append((error["code"], error["message"].replace(name, "@")))
            assert told[0] == told[1], shape
        for fields in ({"@": 1, "v": 0}, {"@": "VALUE"}, {"@": 1, "@.x": 1}):
            told = []
            for name in ("cost", "nope"):
                number += 1
                error = await answer(client, number, {"fields": _named(fields, name)})
                assert "VALUE" not in error["message"]
                told.append((error["code"], error["message"].replace(name, "@")))
            assert told[0] == told[1], fields
        for accepted in ({"filter": {"@": {"$gt": 1}}}, {"fields": {"@": 1}}, {"fields": {"@": 0}}):
            answers = []
            for name in ("cost", "nope"):
                number += 1
                subscribed = await answer(client, number, _named(accepted, name))
                assert subscribed["type"] == "subscribed"
                answers.append((set(subscribed), subscribed["fidelity"], subscribed["resumed"]))
            assert answers[0] == answers[1]
