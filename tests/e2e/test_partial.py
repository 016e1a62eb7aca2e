"""With and without images: what clients are told when documents leave their filter, and what is refused.

The reported cases FIL-01, FIL-03 and FIL-10, each in both modes.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.collection import Collection

from tests.e2e.conftest import StartService, seed
from tests.support.service import Client, Frame, Service, client_of

Rows = Collection[dict[str, Any]]
NUMBER = itertools.count()
DATABASE = f"partial_{secrets.token_hex(4)}"
OWNED = {"filter": {"owner": "{sub}"}, "fields": {"cost": 0}, "allowPartial": True}
POLICY = {
    "tenant": {"claim": "tenant", "database": DATABASE},
    "collections": {
        "strict": {"filter": {"owner": "{sub}"}},
        **{f"open{number}": {} for number in range(100)},
        "*": OWNED,
    },
}
KEPT = pytest.mark.parametrize("images", [True, False], ids=["images", "no images"])


@pytest.fixture(scope="module")
def service(start_for_module: StartService, mongodb: MongoClient[dict[str, Any]]) -> Iterator[Service]:
    yield start_for_module(policy=POLICY)
    mongodb.drop_database(DATABASE)


def make(mongodb: MongoClient[dict[str, Any]], name: str, *, images: bool) -> Rows:
    """A new collection, in which somebody has written before anybody subscribes."""
    rows = mongodb[DATABASE].create_collection(name, changeStreamPreAndPostImages={"enabled": images})
    seed(rows, {"_id": "seed", "owner": "nobody", "status": "none"})
    return rows


def owned(mongodb: MongoClient[dict[str, Any]], *, images: bool) -> Rows:
    """Whose documents have owners."""
    return make(mongodb, f"owned{next(NUMBER)}", images=images)


def unowned(mongodb: MongoClient[dict[str, Any]], *, images: bool) -> Rows:
    """Of which everybody may see all."""
    return make(mongodb, f"open{next(NUMBER)}", images=images)


def shape(event: Frame) -> tuple[Any, ...]:
    return (event["operationType"], event["documentKey"]["_id"], event.get("membership"))


def told(client: Client) -> list[Frame]:
    return [frame["event"] for frame in client.seen if frame["type"] == "event"]


async def until_end(client: Client, rows: Rows, **fields: Any) -> list[Frame]:
    """All events up to one that is written now and that this client sees."""
    rows.insert_one({"_id": "end", **fields})
    while not told(client) or told(client)[-1]["documentKey"]["_id"] != "end":
        await client.until("event")
    return told(client)[:-1]


# What is refused, and what is said of the rest


async def test_without_images_a_policy_filter_needs_allow_partial(
    service: Service, mongodb: MongoClient[dict[str, Any]]
) -> None:
    """`images_required` says what to do; it is refused for a collection that does not exist yet as well."""
    async with client_of(service, "t") as client:
        for make_it in (None, False):
            if make_it is not None:
                make(mongodb, "strict", images=make_it)
            await client.send({"type": "subscribe", "id": "s", "topic": {"collection": "strict"}})
            error = await client.until("error")
            assert (error["code"], error["id"], error["retryable"]) == ("images_required", "s", False)
            assert "changeStreamPreAndPostImages" in error["message"]
            assert "owner" not in error["message"]


@pytest.mark.parametrize(
    "whose, images, fidelity",
    [
        ("owned", True, ("exact", True)),
        ("owned", False, ("partial", False)),
        ("open", True, ("exact", True)),
        ("open", False, ("partial", True)),
        ("owned", None, ("partial", False)),
        ("open", None, ("partial", True)),
    ],
)
async def test_subscribed_tells_the_fidelity(
    service: Service,
    mongodb: MongoClient[dict[str, Any]],
    whose: str,
    images: bool | None,
    fidelity: tuple[str, bool],
) -> None:
    """By images and policy filter, whatever the client's own filter; None is a collection that does not exist."""
    name = f"{whose}{next(NUMBER)}"
    if images is not None:
        make(mongodb, name, images=images)
    async with client_of(service, "t") as client:
        for request_id, own in (("a", {}), ("b", {"status": "open"})):
            subscribed = await client.subscribe(name, request_id=request_id, filter=own)
            assert subscribed["fidelity"] == {"membership": fidelity[0], "deletes": fidelity[1]}
            assert subscribed["oplogWindowSeconds"] >= 0


async def test_a_snapshot_is_refused_where_deletes_cannot_be_told(
    service: Service, mongodb: MongoClient[dict[str, Any]]
) -> None:
    """What it shows could never be taken back."""
    rows = owned(mongodb, images=False)
    async with client_of(service, "t") as client:
        for snapshot in ("always", "onResync"):
            topic = {"collection": rows.name}
            await client.send({"type": "subscribe", "id": snapshot, "topic": topic, "snapshot": snapshot})
            assert (await client.until("error"))["code"] == "snapshot_unavailable"


# FIL-01: a document leaves the filter


@KEPT
async def test_a_document_that_leaves_the_filter_is_told_however_it_leaves(
    service: Service, mongodb: MongoClient[dict[str, Any]], images: bool
) -> None:
    """By update, replace, unset or delete: with its key only. One that was never in is told without images only, as
    `left`, which means: remove it if you hold it."""
    rows = unowned(mongodb, images=images)
    seed(rows, {"_id": "other", "status": "closed"})
    async with client_of(service, "t") as client:
        await client.subscribe(rows.name, filter={"status": "open"})
        rows.insert_many([{"_id": number, "status": "open", "text": "<secret>"} for number in range(5)])
        rows.insert_one({"_id": "never", "status": "closed"})
        await client.events(5)
        rows.update_one({"_id": 0}, {"$set": {"status": "closed"}})
        rows.replace_one({"_id": 1}, {"status": "closed"})
        rows.update_one({"_id": 2}, {"$unset": {"status": 1}})
        rows.delete_one({"_id": 3})
        rows.update_one({"_id": 4}, {"$set": {"total": 5}})
        rows.update_one({"_id": "never"}, {"$set": {"total": 5}})
        rows.update_one({"_id": "other"}, {"$set": {"status": "open"}})
        events = await until_end(client, rows, status="open")
    assert [shape(event) for event in events[:5]] == [("insert", number, "entered") for number in range(5)]
    left = [event for event in events if event.get("membership") == "left"]
    gone = [("update", 0, "left"), ("replace", 1, "left"), ("update", 2, "left"), ("delete", 3, "left")]
    assert [shape(event) for event in left] == gone + [("update", "never", "left")] * (not images)
    assert not any({"fullDocument", "updateDescription"} & event.keys() for event in left)
    inside = [event for event in events[5:] if event not in left]
    assert [shape(event) for event in inside] == [
        ("update", 4, "stayed" if images else None), ("update", "other", "entered" if images else None),
    ]  # fmt: skip
    assert inside[0]["updateDescription"]["updatedFields"] == {"total": 5}
    assert inside[0]["fullDocument"] == {"_id": 4, "status": "open", "text": "<secret>", "total": 5}
    assert ("updateDescription" in inside[1]) != images
    held: dict[Any, Any] = {}
    for event in events:
        if event.get("membership") == "left":
            held.pop(event["documentKey"]["_id"], None)
        else:
            held[event["documentKey"]["_id"]] = event["fullDocument"]
    assert held == {row["_id"]: row for row in rows.find({"status": "open"}) if row["_id"] != "end"}


# FIL-03: deletes under a filter


@KEPT
async def test_a_delete_is_told_under_a_filter_of_the_client(
    service: Service, mongodb: MongoClient[dict[str, Any]], images: bool
) -> None:
    """In both modes. Without images that of a document outside is told too: the client may see the collection."""
    rows = unowned(mongodb, images=images)
    async with client_of(service, "t") as client:
        await client.subscribe(rows.name, filter={"user": 1})
        rows.insert_many([{"_id": "mine", "user": 1}, {"_id": "theirs", "user": 2}])
        rows.delete_many({"_id": {"$in": ["mine", "theirs"]}})
        events = await until_end(client, rows, user=1)
    entered, mine, theirs = (
        ("insert", "mine", "entered"),
        ("delete", "mine", "left"),
        ("delete", "theirs", "left"),
    )
    assert sorted(map(shape, events)) == sorted([entered, mine] if images else [entered, mine, theirs])


@KEPT
async def test_a_delete_is_never_told_across_the_filter_of_the_policy(
    service: Service, mongodb: MongoClient[dict[str, Any]], images: bool
) -> None:
    """With images to whose document it was, without them to nobody, as `fidelity` says."""
    rows = owned(mongodb, images=images)
    async with client_of(service, "t", sub="alice") as alice, client_of(service, "t", sub="bob") as bob:
        for client in (alice, bob):
            assert (await client.subscribe(rows.name))["fidelity"]["deletes"] == images
        rows.insert_many([{"_id": "of alice", "owner": "alice"}, {"_id": "of bob", "owner": "bob"}])
        rows.delete_many({"owner": {"$in": ["alice", "bob"]}})
        for client, name, other in ((alice, "alice", "bob"), (bob, "bob", "alice")):
            events = await until_end(client, rows, owner=name)
            key = f"of {name}"
            expected = [("insert", key, "entered"), ("delete", key, "left")]
            assert [shape(event) for event in events] == expected[: 1 + images]
            assert not any(f"of {other}" in text for text in client.raw)
            rows.delete_one({"_id": "end"})


# FIL-10: what is told about a document that changes hands


@KEPT
async def test_a_document_that_changes_hands_is_left_without_and_entered_with_its_content(
    service: Service, mongodb: MongoClient[dict[str, Any]], images: bool
) -> None:
    """Owner and content in one write: the old owner gets nothing of the new content, the new one nothing of the old,
    and neither the hidden field. Without images the old owner hears nothing at all."""
    rows = owned(mongodb, images=images)
    old = {"text": "<of alice>", "gone": "<of alice>", "cost": "<hidden>"}
    seed(rows, {"_id": "moves", "owner": "alice", **old})
    async with client_of(service, "t", sub="alice") as alice, client_of(service, "t", sub="bob") as bob:
        for client in (alice, bob):
            await client.subscribe(rows.name)
        rows.update_one(
            {"_id": "moves"},
            {"$set": {"owner": "bob", "text": "<of bob>", "cost": "<hidden>"}, "$unset": {"gone": 1}},
        )
        rows.update_one({"_id": "moves"}, {"$set": {"text": "<of bob> again"}})
        of_bob = await until_end(bob, rows, owner="bob")
        rows.delete_one({"_id": "end"})
        of_alice = await until_end(alice, rows, owner="alice")
    assert [shape(event) for event in of_alice] == [("update", "moves", "left")] * images
    assert not any({"fullDocument", "updateDescription"} & event.keys() for event in of_alice)
    assert not any("<of bob>" in text or "<hidden>" in text for text in alice.raw)
    if not images:
        assert not any("moves" in text for text in alice.raw)
    first, second = of_bob
    assert shape(first) == ("update", "moves", "entered" if images else None)
    assert "updateDescription" not in first
    once = {"_id": "moves", "owner": "bob", "text": "<of bob>"}
    again = {**once, "text": "<of bob> again"}
    # A lookup may show a later state.
    assert first["fullDocument"] in ([once] if images else [once, again])
    assert shape(second) == ("update", "moves", "stayed" if images else None)
    assert second["fullDocument"] == again
    assert ("updateDescription" in second) == images
    assert not any("<of alice>" in text or "gone" in text or "<hidden>" in text for text in bob.raw)


@KEPT
async def test_who_becomes_another_owner_keeps_nothing_of_the_old_one(
    service: Service, mongodb: MongoClient[dict[str, Any]], images: bool
) -> None:
    """A tenant's switch is a new connection: its old token is another topic's, whatever the mode."""
    rows = owned(mongodb, images=images)
    async with client_of(service, "t", sub="alice") as client:
        token = (await client.subscribe(rows.name))["token"]
    rows.insert_one({"_id": "of alice", "owner": "alice"})
    async with client_of(service, "t", sub="bob") as client:
        subscribed = await client.subscribe(rows.name, resumeAfter=token)
        assert not subscribed["resumed"]
        assert [frame["reason"] for frame in client.seen if frame["type"] == "resync"] == ["topic_changed"]
        assert await until_end(client, rows, owner="bob") == []
        assert not any("of alice" in text for text in client.raw)
