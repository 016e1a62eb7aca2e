"""Instances without shared state: equal bytes everywhere, and keys that rotate (P3, P4, protocol.md section 5)."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.conftest import Documents, StartService
from tests.support.service import Client, Service, client_of, token_key

SCOPES = [pytest.param("collection", marks=pytest.mark.verify), "deployment"]


def events_of(client: Client) -> list[object]:
    return [frame["event"] for frame in client.seen if frame["type"] == "event"]


@pytest.fixture(scope="module", params=SCOPES)
def pair(request: pytest.FixtureRequest, start_for_module: StartService) -> tuple[Service, Service]:
    """Two processes of one configuration."""
    first = start_for_module(tail_scope=request.param)
    return first, start_for_module(tail_scope=request.param, token_keys=first.token_keys)


async def test_the_same_events_have_the_same_bytes_on_two_instances_and_in_a_replay(
    pair: tuple[Service, Service], database: Documents, fresh_database: str
) -> None:
    first, second = pair
    async with client_of(first, fresh_database) as one, client_of(second, fresh_database) as two:
        start = await one.subscribe("orders", filter={"n": {"$gte": 1}})
        other = await two.subscribe("orders", filter={"$and": [{"n": {"$gte": 1}}]})
        assert start["topic"] == other["topic"]
        database["orders"].insert_many([{"_id": number, "n": number % 3} for number in range(30)])
        database["orders"].update_many({}, {"$set": {"n": 5}})
        await one.events(50)
        await two.events(50)
        assert events_of(one) == events_of(two)
    async with client_of(second, fresh_database) as replayed:
        again = await replayed.subscribe("orders", filter={"n": {"$gte": 1}}, resumeAfter=start["token"])
        assert again["resumed"] is True
        assert events_of(replayed) == events_of(one)


async def test_an_instance_that_never_had_the_topic_open_resumes_every_token_of_another(
    pair: tuple[Service, Service], database: Documents, fresh_database: str
) -> None:
    first, second = pair
    async with client_of(first, fresh_database) as client:
        await client.subscribe("orders")
        database["orders"].insert_many([{"_id": number} for number in range(5)])
        events = await client.events(5)

    async def resume(number: int) -> None:
        async with client_of(second, fresh_database) as client:
            subscribed = await client.subscribe("orders", resumeAfter=events[number]["_id"])
            assert subscribed["resumed"] is True
            assert events_of(client) == events[number + 1 :]

    await asyncio.gather(*map(resume, range(5)))


async def test_tokens_of_the_old_key_resume_behind_a_new_first_key_in_the_ring_and_by_catch_up(
    pair: tuple[Service, Service], start_service: StartService, database: Documents, fresh_database: str
) -> None:
    old = pair[0]
    new_key = token_key()
    scope = {"tail_scope": old.environment["FEEDSVC_TAIL_SCOPE"]}
    rotated = start_service(token_keys=f"{new_key},{old.token_keys}", **scope)
    async with client_of(old, fresh_database) as client, client_of(rotated, fresh_database) as watching:
        await client.subscribe("orders")
        await watching.subscribe("orders")
        database["orders"].insert_many([{"_id": number} for number in range(3)])
        old_events = await client.events(3)
        new_events = await watching.events(3)
        async with client_of(rotated, fresh_database) as resumed:
            subscribed = await resumed.subscribe("orders", resumeAfter=old_events[0]["_id"])
            assert subscribed["resumed"] is True
            assert events_of(resumed) == new_events[1:]
    assert {event["_id"] for event in old_events}.isdisjoint(event["_id"] for event in new_events)
    rotated.kill()
    rotated.start()
    async with client_of(rotated, fresh_database) as resumed:
        subscribed = await resumed.subscribe("orders", resumeAfter=old_events[0]["_id"])
        assert subscribed["resumed"] is True
        assert events_of(resumed) == new_events[1:]


async def test_an_instance_that_has_the_new_key_last_already_opens_its_tokens(
    pair: tuple[Service, Service], start_service: StartService, database: Documents, fresh_database: str
) -> None:
    old, new_key = pair[0], token_key()
    scope = {"tail_scope": old.environment["FEEDSVC_TAIL_SCOPE"]}
    before = start_service(token_keys=f"{old.token_keys},{new_key}", **scope)
    after = start_service(token_keys=f"{new_key},{old.token_keys}", **scope)
    async with client_of(after, fresh_database) as client:
        token = (await client.subscribe("orders"))["token"]
    database["orders"].insert_one({"_id": 1})
    async with client_of(before, fresh_database) as client:
        assert (await client.subscribe("orders", resumeAfter=token))["resumed"] is True
        assert [event["documentKey"] for event in events_of(client)] == [{"_id": 1}]  # type: ignore[index]
