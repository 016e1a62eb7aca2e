"""Tenants see nothing of each other, hidden fields appear nowhere (P5, protocol.md section 7).

Every value of an owner carries a marker, and all bytes that a client received are searched for those of others.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pymongo import MongoClient

from tests.e2e.conftest import StartService, seed
from tests.support.service import Client, Service, client_of
from tests.support.tenant_writes import NUMBER, OWNERS, PRINCIPALS, Database, Owner, Rows, topics, writes

SHARED = "shared"
SHARED_POLICY = {
    "tenant": {"claim": "tenant", "database": SHARED},
    "collections": {
        "strict": {"filter": {"tenantId": "{tenant}"}},
        "*": {
            "filter": {"tenantId": "{tenant}", "team": {"$in": "{claims.teams}"}},
            "fields": {"cost": 0, "deep.cost": 0},
            "allowPartial": True,
        },
    },
}
DATABASE_POLICY = {
    "tenant": {"claim": "tenant", "database": "own_{tenant}"},
    "collections": {"*": {"fields": {"cost": 0, "deep.cost": 0}}},
}


@pytest.fixture(scope="module")
def shared(start_for_module: StartService) -> tuple[Service, Service]:
    """Two instances, so that a replay on the second comes from the oplog."""
    first = start_for_module(policy=SHARED_POLICY)
    return first, start_for_module(policy=SHARED_POLICY, token_keys=first.token_keys)


@pytest.fixture(scope="module")
def separate(start_for_module: StartService) -> tuple[Service, Service]:
    first = start_for_module(policy=DATABASE_POLICY)
    return first, start_for_module(policy=DATABASE_POLICY, token_keys=first.token_keys)


def allowed(tenant: str, teams: Sequence[str], by_database: bool) -> list[Owner]:
    return [owner for owner in OWNERS if owner.tenant == tenant and (by_database or owner.team in teams)]


def check(client: Client, mine: Sequence[Owner], written: Database, where: str) -> None:
    """No byte of another owner, no byte of a hidden field, no key of a document that was never mine."""
    for text in client.raw:
        for owner in OWNERS:
            assert owner in mine or owner.mark(0)[:-2] not in text, (where, text)
        assert "HIDDEN" not in text and '"cost' not in text and ".cost" not in text, (where, text)
    keys = {
        frame["event"]["documentKey"]["_id"]
        for frame in client.seen
        if frame["type"] == "event" and "documentKey" in frame["event"]
    }
    assert keys <= set().union(*(written.known[owner] for owner in mine)), where


class Case(msgspec.Struct, frozen=True):
    """A live client, and what it may see; `token` is from before the writes."""

    client: Client
    tenant: str
    teams: list[str]
    mine: list[Owner]
    topic: dict[str, Any]
    token: str


async def run_scenario(
    services: tuple[Service, Service],
    rows: dict[str, Rows],
    sentinel: Rows,
    collection: str,
    wanted: list[dict[str, Any]],
    batch: list[tuple[str, int, Owner]],
    *,
    by_database: bool,
    exact: bool = True,
) -> int:
    """Live, replayed on both instances, and after a resync: the number of events that were checked."""
    written = Database(rows)
    async with contextlib.AsyncExitStack() as stack:
        cases: list[Case] = []
        for number, (tenant, teams) in enumerate(PRINCIPALS):
            client = await stack.enter_async_context(client_of(services[0], tenant, teams=teams))
            topic = wanted[number % len(wanted)]
            held = await client.subscribe(collection, **topic)
            mine = allowed(tenant, teams, by_database)
            cases.append(Case(client, tenant, teams, mine, topic, held["token"]))
        for what, key, owner in batch:
            await asyncio.to_thread(written.write, what, key, owner)
        await everything_was_read(services[0], sentinel, rows, collection)
        for case in cases:
            await case.client.send({"type": "ping"})
            await case.client.until("pong")
            check(case.client, case.mine, written, "live")
        seen = sum(len(events_of(case.client)) for case in cases)

        async def replay(service: Service, token: str, case: Case) -> Client:
            async with client_of(service, case.tenant, teams=case.teams) as client:
                await client.subscribe(collection, **case.topic, resumeAfter=token)
                return client

        async def replayed(case: Case, service: Service) -> None:
            again = await replay(service, case.token, case)
            check(again, case.mine, written, "replay")
            if exact:  # without images a replayed update shows a later state
                assert events_of(again) == events_of(case.client)

        async def crossed(case: Case, other: Case) -> None:
            again = await replay(services[0], other.token, case)
            check(again, case.mine, written, "resync")
            reasons = [frame["reason"] for frame in again.seen if frame["type"] == "resync"]
            assert set(reasons) <= {"topic_changed"}

        await asyncio.gather(
            *(replayed(case, service) for case in cases for service in services),
            *(
                crossed(case, other)
                for case in cases
                for other in cases
                if case.tenant == other.tenant and case is not other
            ),
        )
    return seen


def events_of(client: Client) -> list[Any]:
    return [frame["event"] for frame in client.seen if frame["type"] == "event"]


async def everything_was_read(
    service: Service, sentinel: Rows, rows: dict[str, Rows], collection: str
) -> None:
    """A last write behind all others, seen by a watcher: on one tail, what was written before has been sent."""
    async with client_of(service, "watcher", teams=["red"]) as watcher:
        place = collection if rows["alpha"] is rows["beta"] else sentinel.name
        await watcher.subscribe(place)
        last = {"tenantId": "watcher", "team": "red", "text": next(NUMBER)}
        await asyncio.to_thread(sentinel.database[place].insert_one, last)
        await watcher.events(1)


bounded = settings(
    max_examples=4,
    deadline=None,
    # An example takes about two seconds: one that fails is shown as it is.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.parametrize(
    "images", [True, pytest.param(False, marks=pytest.mark.verify)], ids=["exact", "partial"]
)
@bounded
@given(wanted=st.lists(topics, min_size=3, max_size=5), batch=st.lists(writes, min_size=5, max_size=25))
def test_no_byte_of_another_tenant_or_team_in_a_shared_collection(
    shared: tuple[Service, Service],
    mongodb: MongoClient[dict[str, Any]],
    images: bool,
    wanted: list[dict[str, Any]],
    batch: list[tuple[str, int, Owner]],
) -> None:
    collection = f"rows{next(NUMBER)}"
    rows = mongodb[SHARED].create_collection(collection, changeStreamPreAndPostImages={"enabled": images})
    asyncio.run(
        run_scenario(
            shared,
            {"alpha": rows, "beta": rows},
            mongodb[SHARED]["sentinel"],
            collection,
            wanted,
            batch,
            by_database=False,
            exact=images,
        )
    )


@bounded
@given(wanted=st.lists(topics, min_size=3, max_size=5), batch=st.lists(writes, min_size=5, max_size=25))
def test_no_byte_of_another_tenant_with_a_database_each(
    separate: tuple[Service, Service],
    mongodb: MongoClient[dict[str, Any]],
    wanted: list[dict[str, Any]],
    batch: list[tuple[str, int, Owner]],
) -> None:
    collection = f"rows{next(NUMBER)}"
    rows = {
        tenant: mongodb[f"own_{tenant}"].create_collection(
            collection, changeStreamPreAndPostImages={"enabled": True}
        )
        for tenant in ("alpha", "beta")
    }
    asyncio.run(
        run_scenario(
            separate,
            rows,
            mongodb["own_watcher"]["sentinel"],
            collection,
            wanted,
            batch,
            by_database=True,
        )
    )


@pytest.mark.parametrize(
    "images", [True, pytest.param(False, marks=pytest.mark.verify)], ids=["exact", "partial"]
)
def test_the_search_would_find_what_it_looks_for(
    shared: tuple[Service, Service], mongodb: MongoClient[dict[str, Any]], images: bool
) -> None:
    """The same scenario with a topic that sees everything delivers events, and its owner's markers are in them."""
    collection = f"rows{next(NUMBER)}"
    rows = mongodb[SHARED].create_collection(collection, changeStreamPreAndPostImages={"enabled": images})
    batch = [("put", key, owner) for key, owner in enumerate(OWNERS)]
    batch += [("change", key, OWNERS[0]) for key in range(3)]
    seen = asyncio.run(
        run_scenario(
            shared,
            {"alpha": rows, "beta": rows},
            mongodb[SHARED]["sentinel"],
            collection,
            [{}],
            batch,
            by_database=False,
            exact=images,
        )
    )
    assert seen == 2 + 4 + 2


@pytest.fixture
def rows(mongodb: MongoClient[dict[str, Any]]) -> Rows:
    """A collection with images that the tenants share."""
    return mongodb[SHARED].create_collection(
        f"rows{next(NUMBER)}", changeStreamPreAndPostImages={"enabled": True}
    )


PROBES: list[dict[str, Any]] = [
    {"cost": {"$exists": True}},
    {"cost": {"$gt": 5}},
    {"cost": {"$lte": 5}},
    {"cost": {"$in": [1, 7]}},
    {"cost": {"$nin": [1, 7]}},
    {"cost": 7},
    {"cost": {"$ne": 7}},
    {"cost": None},
    {"cost": {"$not": {"$gte": 2, "$lt": 8}}},
    {"$nor": [{"cost": {"$gt": 5}}]},
    {"$nor": [{"cost": {"$exists": True}}]},
    {"deep.cost": {"$gt": 5}},
    {"deep": {"cost": 7}},
    {"$or": [{"cost": {"$gte": 7}}, {"deep.cost": {"$gte": 7}}]},
]


@pytest.mark.parametrize("images", [True, False], ids=["exact", "partial"])
async def test_a_hidden_field_cannot_be_probed_by_a_filter(
    shared: tuple[Service, Service], mongodb: MongoClient[dict[str, Any]], images: bool
) -> None:
    """Documents that differ in hidden fields only, and changes of those alone, look alike to every filter."""
    rows = mongodb[SHARED].create_collection(
        f"rows{next(NUMBER)}", changeStreamPreAndPostImages={"enabled": images}
    )
    hidden: list[dict[str, Any]] = [
        {"cost": 1, "deep": {"cost": 1}},
        {"cost": 7, "deep": {"cost": 7}},
        {"cost": None, "deep": {"cost": [7]}},
        {"cost": "x", "deep": {}},
    ]
    async with client_of(shared[0], "alpha", teams=["red"]) as client:
        names = {}
        for number, probe in enumerate(PROBES):
            names[(await client.subscribe(rows.name, request_id=f"p{number}", filter=probe))["topic"]] = (
                number
            )
        everything = (await client.subscribe(rows.name))["topic"]
        for number, values in enumerate(hidden):
            rows.insert_one({"_id": number, "tenantId": "alpha", "team": "red", **values})
        for number in range(len(hidden)):
            for cost in (9, 1, None):
                rows.update_one({"_id": number}, {"$set": {"cost": cost, "deep.cost": cost}})
        rows.insert_one({"_id": "end", "tenantId": "alpha", "team": "red", "deep": {}})
        await client.until(
            lambda frame: frame.get("topic") == everything and frame["event"]["documentKey"] == {"_id": "end"}
        )
        await client.send({"type": "ping"})
        await client.until("pong")
    answers: dict[int, dict[Any, list[Any]]] = {number: {} for number in names.values()}
    for frame in client.seen:
        if frame["type"] == "event" and frame["topic"] in names:
            event = frame["event"]
            answers[names[frame["topic"]]].setdefault(event["documentKey"]["_id"], []).append(
                [event["operationType"], event.get("membership"), event.get("fullDocument", {}).get("deep")]
            )
    for number, by_key in answers.items():
        told = [by_key.get(key, []) for key in range(len(hidden))]
        assert told == [told[0]] * len(hidden), PROBES[number]
    for text in client.raw:
        assert '"cost' not in text and ".cost" not in text, text


async def test_a_document_that_moves_is_left_with_its_key_only_and_entered_without_history(
    shared: tuple[Service, Service], rows: Rows
) -> None:
    seed(rows, {"_id": 1, "tenantId": "alpha", "team": "red", "text": "<old>", "secret": "<of alpha>"})
    async with (
        client_of(shared[0], "alpha", teams=["red"]) as alpha,
        client_of(shared[0], "beta", teams=["red"]) as beta,
    ):
        await alpha.subscribe(rows.name)
        await beta.subscribe(rows.name)
        rows.update_one(
            {"_id": 1}, {"$set": {"tenantId": "beta", "text": "<of beta>"}, "$unset": {"secret": 1}}
        )
        (left,) = await alpha.events(1)
        (entered,) = await beta.events(1)
    assert (left["membership"], left["documentKey"]) == ("left", {"_id": 1})
    assert not {"fullDocument", "updateDescription"} & left.keys()
    assert entered["membership"] == "entered"
    assert entered["fullDocument"] == {"_id": 1, "tenantId": "beta", "team": "red", "text": "<of beta>"}
    assert "updateDescription" not in entered
    assert not any("<of beta>" in text for text in alpha.raw)
    assert not any("<of alpha>" in text or "secret" in text or "<old>" in text for text in beta.raw)


async def test_a_deleted_document_is_told_to_its_owner_only(
    shared: tuple[Service, Service], rows: Rows
) -> None:
    seed(rows, {"_id": "of alpha", "tenantId": "alpha", "team": "red"})
    seed(rows, {"_id": "of beta", "tenantId": "beta", "team": "red"})
    async with client_of(shared[0], "alpha", teams=["red"]) as alpha:
        subscribed = await alpha.subscribe(rows.name)
        assert subscribed["fidelity"] == {"membership": "exact", "deletes": True}
        rows.delete_many({})
        rows.insert_one({"_id": "end", "tenantId": "alpha", "team": "red"})
        events = await alpha.events(2)
    assert [event["documentKey"]["_id"] for event in events] == ["of alpha", "end"]
    assert not any("of beta" in text for text in alpha.raw)


async def test_without_images_a_policy_filter_is_refused_unless_partial_is_allowed(
    shared: tuple[Service, Service], mongodb: MongoClient[dict[str, Any]]
) -> None:
    rows = mongodb[SHARED][f"rows{next(NUMBER)}"]
    seed(rows, {"_id": 1, "tenantId": "alpha", "team": "red"})
    async with client_of(shared[0], "alpha", teams=["red"]) as client:
        await client.send({"type": "subscribe", "id": "s", "topic": {"collection": "strict"}})
        error = await client.until("error")
        assert (error["code"], error["id"]) == ("images_required", "s")
        subscribed = await client.subscribe(rows.name)
        assert subscribed["fidelity"] == {"membership": "partial", "deletes": False}
        rows.update_one({"_id": 1}, {"$set": {"tenantId": "beta"}})
        rows.update_one({"_id": 1}, {"$set": {"tenantId": "alpha"}})
        rows.delete_one({"_id": 1})
        rows.insert_one({"_id": 2, "tenantId": "alpha", "team": "red"})
        events = [await client.until("event")]
        while events[-1]["event"]["documentKey"] != {"_id": 2}:
            events.append(await client.until("event"))
    assert all(frame["event"]["operationType"] != "delete" for frame in events)
    assert all(frame["event"].get("membership") != "left" for frame in events)
    assert not any("updateDescription" in frame["event"] for frame in events)


async def test_claims_are_values_and_never_operators(shared: tuple[Service, Service], rows: Rows) -> None:
    """A claim that looks like an operator or a path selects nothing but documents with that very value."""
    for teams in ([{"$ne": None}], [{"$regex": ".*"}], ["$team"], [["red"]]):
        async with client_of(shared[0], "alpha", teams=teams) as client:
            await client.send({"type": "subscribe", "id": "s", "topic": {"collection": rows.name}})
            answer = await client.until(lambda frame: frame.get("id") == "s")
            if answer["type"] == "subscribed":
                rows.insert_one({"tenantId": "alpha", "team": "red", "text": "<not yours>"})
                rows.insert_one({"_id": json.dumps(teams), "tenantId": "alpha", "team": teams[0]})
                await client.until("event")
                assert not any("<not yours>" in text for text in client.raw)
            else:
                assert answer["code"] == "forbidden"


async def test_a_claim_that_is_missing_allows_nothing(shared: tuple[Service, Service], rows: Rows) -> None:
    async with client_of(shared[0], "alpha") as client:
        await client.send({"type": "subscribe", "id": "s", "topic": {"collection": rows.name}})
        assert (await client.until("error"))["code"] == "forbidden"
