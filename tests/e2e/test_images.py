"""A collection's images are switched on and off, or it is dropped and made anew, while clients hold topics of it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from feedsvc.runtime.image_modes import IMAGES_FRESH_S
from feedsvc.runtime.pulse import BEAT_S
from tests.e2e.conftest import Documents, StartService, seed
from tests.support.service import Client, Frame, Service, client_of

NOTICED_S = IMAGES_FRESH_S + BEAT_S + 4
"""The promise, and some patience for a busy machine."""

EXACT = {"membership": "exact", "deletes": True}
PARTIAL = {"membership": "partial", "deletes": True}
OPEN = {"status": "open"}


@pytest.fixture(scope="module")
def service(start_for_module: StartService) -> Service:
    return start_for_module()


def create(database: Documents, collection: str, *, images: bool) -> None:
    database.create_collection(collection, changeStreamPreAndPostImages={"enabled": images})


def switch(database: Documents, collection: str, *, images: bool) -> None:
    database.command({"collMod": collection, "changeStreamPreAndPostImages": {"enabled": images}})


def told(client: Client, *topics: str) -> list[tuple[Any, ...]]:
    """What a client was told of the documents of these topics, in order."""
    return [
        (
            frame["event"]["operationType"],
            frame["event"]["documentKey"]["_id"],
            frame["event"].get("membership"),
        )
        if frame["type"] == "event"
        else ("resync", frame["reason"])
        for frame in client.seen
        if (frame["type"] == "resync" or (frame["type"] == "event" and "documentKey" in frame["event"]))
        and frame["topic"] in topics
    ]


async def ends(client: Client, count: int) -> dict[str, Frame]:
    """The `unsubscribed` frames so far by topic, once there are `count`."""
    async with asyncio.timeout(NOTICED_S):
        while (
            len(found := {each["topic"]: each for each in client.seen if each["type"] == "unsubscribed"})
            < count
        ):
            await client.receive(NOTICED_S)
    return found


async def test_every_kind_of_switch_is_noticed_and_nothing_is_lost(
    service: Service, database: Documents, fresh_database: str
) -> None:
    """On, off, made anew without images, made for the first time with them: ended within ten seconds and a beat, at the
    place where the token stands. Whoever holds what is as it was hears nothing."""
    before = {"on": False, "off": True, "anew": True, "again": True, "kept": True, "later": None}
    after = {"on": True, "off": False, "anew": False, "again": True, "kept": True, "later": True}
    for name, images in before.items():
        if images is not None:
            create(database, name, images=images)
            seed(database[name], *({"_id": number, "status": "open"} for number in range(3)))
    async with client_of(service, fresh_database) as client:
        first = {name: await client.subscribe(name, request_id=name, filter=OPEN) for name in before}
        assert {name: each["fidelity"] for name, each in first.items()} == {
            name: EXACT if images else PARTIAL for name, images in before.items()
        }
        for name in before:
            database[name].insert_one(
                {"_id": "before", "status": "open"} if name != "later" else {"_id": "none"}
            )
        database["later"].drop()
        switched = time.monotonic()
        switch(database, "on", images=True)
        switch(database, "off", images=False)
        for name, images in (("anew", False), ("again", True)):
            database[name].drop()
            create(database, name, images=images)
        create(database, "later", images=True)
        database["on"].update_one({"_id": 0}, {"$set": {"status": "closed"}})
        changed = {first[name]["topic"]: name for name in before if bool(before[name]) != after[name]}
        found = await ends(client, len(changed))
        assert time.monotonic() - switched < NOTICED_S
        assert {changed.get(topic) for topic in found} == {"on", "off", "anew", "later"}
        assert all((each["code"], each["resubscribe"]) == ("topic_changed", True) for each in found.values())
        # Written while nobody listens to these topics.
        for name in before:
            database[name].insert_one({"_id": "between", "status": "open"})
        database["on"].delete_one({"_id": 1})
        second = {}
        for topic, name in changed.items():
            second[name] = await client.subscribe(
                name, request_id=f"{name} again", filter=OPEN, resumeAfter=client.tokens[topic]
            )
            assert second[name]["resumed"]
            assert second[name]["topic"] != topic
            assert second[name]["fidelity"] == (EXACT if after[name] else PARTIAL)
        for name in before:
            database[name].update_one({"_id": "between"}, {"$set": {"status": "closed"}})
        topics = {name: {first[name]["topic"], second.get(name, first[name])["topic"]} for name in before}
        for name in before:
            while ("update", "between", "left") not in told(client, *topics[name]):
                await client.until("event")
    inserted = [
        ("insert", "before", "entered"),
        ("insert", "between", "entered"),
        ("update", "between", "left"),
    ]
    assert told(client, *topics["on"]) == [
        inserted[0], ("update", 0, "left"), inserted[1], ("delete", 1, "left"), inserted[2],
    ]  # fmt: skip
    for name in ("off", "kept"):
        assert told(client, *topics[name]) == inserted
    assert told(client, *topics["later"]) == inserted[1:]


async def test_an_image_that_is_missing_is_a_resync_and_the_switch_is_noticed_at_once(
    service: Service, database: Documents, fresh_database: str
) -> None:
    """Not in its turn. The token of the resync goes on as partial, behind the change that could not be told."""
    create(database, "orders", images=True)
    seed(database["orders"], {"_id": 1, "status": "open"}, {"_id": 2, "status": "open"})
    async with client_of(service, fresh_database) as client:
        first = await client.subscribe("orders", filter=OPEN)
        assert first["fidelity"] == EXACT
        database["orders"].update_one({"_id": 1}, {"$set": {"total": 5}})
        assert (await client.until("event"))["event"]["membership"] == "stayed"
        switched = time.monotonic()
        switch(database, "orders", images=False)
        database["orders"].update_one({"_id": 1}, {"$set": {"status": "closed"}})
        assert (await client.until("resync"))["reason"] == "images_lost"
        end = await client.until("unsubscribed")
        assert time.monotonic() - switched < IMAGES_FRESH_S / 2
        assert (end["topic"], end["code"], end["resubscribe"]) == (first["topic"], "topic_changed", True)
        token = client.tokens[first["topic"]]
        database["orders"].delete_one({"_id": 2})
        second = await client.subscribe("orders", request_id="again", filter=OPEN, resumeAfter=token)
        assert (second["resumed"], second["fidelity"]) == (True, PARTIAL)
        while ("delete", 2, "left") not in told(client, second["topic"]):
            await client.until("event")
    assert told(client, first["topic"]) == [("update", 1, "stayed"), ("resync", "images_lost")]
    assert told(client, second["topic"]) == [("delete", 2, "left")]


async def test_a_partial_topic_is_right_where_images_are_there_and_nobody_knows(
    service: Service, database: Documents, fresh_database: str
) -> None:
    """Offline across the switch, and back while the last answer about the collection is still used."""
    create(database, "orders", images=False)
    seed(database["orders"], {"_id": 1, "status": "open"})
    async with client_of(service, fresh_database) as client:
        token = (await client.subscribe("orders", filter={"total": 5}))["token"]
    database["orders"].insert_one({"_id": 2, "total": 5})
    database["orders"].update_one({"_id": 1}, {"$set": {"total": 5}})
    switch(database, "orders", images=True)
    database["orders"].delete_one({"_id": 2})
    async with client_of(service, fresh_database) as client:
        partial = await client.subscribe("orders", filter={"total": 5}, resumeAfter=token)
        assert partial["fidelity"] == PARTIAL
        while ("delete", 2, "left") not in told(client, partial["topic"]):
            await client.until("event")
        assert told(client, partial["topic"]) == [
            ("insert", 2, "entered"), ("update", 1, None), ("delete", 2, "left"),
        ]  # fmt: skip


async def test_a_token_of_a_partial_topic_resumes_as_exact_on_another_instance(
    start_service: StartService, service: Service, database: Documents, fresh_database: str
) -> None:
    """The same token, where the images are known to be there: the change without one is a resync, the rest is told."""
    create(database, "orders", images=False)
    seed(database["orders"], {"_id": 1, "status": "open"})
    async with client_of(service, fresh_database) as client:
        token = (await client.subscribe("orders", filter={"total": 5}))["token"]
    database["orders"].insert_one({"_id": 2, "total": 5})
    database["orders"].update_one({"_id": 1}, {"$set": {"total": 5}})
    switch(database, "orders", images=True)
    database["orders"].delete_one({"_id": 2})
    other = start_service(token_keys=service.token_keys)
    async with client_of(other, fresh_database) as client:
        exact = await client.subscribe("orders", filter={"total": 5}, resumeAfter=token)
        assert (exact["resumed"], exact["fidelity"]) == (True, EXACT)
        while ("resync", "images_lost") not in told(client, exact["topic"]):
            await client.receive()
        database["orders"].update_one({"_id": 1}, {"$set": {"total": 6}})
        while ("update", 1, "left") not in told(client, exact["topic"]):
            await client.until("event")
    assert told(client, exact["topic"]) == [
        ("insert", 2, "entered"), ("resync", "images_lost"), ("update", 1, "left"),
    ]  # fmt: skip
