"""A connection lives as long as its JWT, and its rights are those of the current claims (P5, AUT-01)."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.e2e.conftest import Documents, StartService
from tests.support.service import Service, client_of, make_jwt, tail_open


@pytest.fixture(scope="module")
def service(start_for_module: StartService) -> Service:
    return start_for_module()


async def test_a_connection_ends_with_its_jwt_and_no_event_comes_after(
    service: Service, database: Documents, fresh_database: str
) -> None:
    async with client_of(service, fresh_database, ttl_s=1.5) as client:
        await client.subscribe("orders")
        expires_ms = client.seen[0]["authExpiresAt"]
        writing = asyncio.create_task(write_until(database, expires_ms / 1000 + 0.5))
        code, _ = await client.closed()
        ended = time.time()
        await writing
    assert code == 4101
    assert expires_ms / 1000 <= ended < expires_ms / 1000 + 0.5
    events = [frame["event"] for frame in client.seen if frame["type"] == "event"]
    assert events
    assert all(event["fullDocument"]["at"] <= expires_ms / 1000 for event in events)


async def write_until(database: Documents, end: float) -> None:
    while (now := time.time()) < end:
        await asyncio.to_thread(database["orders"].insert_one, {"at": now})


async def test_a_refresh_in_band_extends_the_connection_without_losing_an_event(
    service: Service, database: Documents, fresh_database: str
) -> None:
    async with client_of(service, fresh_database, ttl_s=1.5) as client:
        await client.subscribe("orders")
        first = client.seen[0]["authExpiresAt"] / 1000
        writing = asyncio.create_task(write_until(database, first + 0.5))
        await client.send({"type": "auth", "jwt": make_jwt(fresh_database, ttl_s=60)})
        answer = await client.until("authenticated")
        assert answer["authExpiresAt"] / 1000 > first + 30
        await writing
        database["orders"].insert_one({"_id": "last", "at": 0})
        await client.until(lambda frame: frame.get("event", {}).get("documentKey") == {"_id": "last"})
        received = [frame["event"]["documentKey"]["_id"] for frame in client.seen if frame["type"] == "event"]
        written = [document["_id"] for document in database["orders"].find({}, {"_id": 1})]
        assert received == [*({"$oid": str(each)} for each in written[:-1]), "last"]


@pytest.mark.parametrize("change", ["tenant", "subject", "expired", "nonsense"])
async def test_a_refresh_that_is_not_the_same_principal_is_refused_and_the_old_expiry_stays(
    service: Service, database: Documents, fresh_database: str, change: str
) -> None:
    jwt = {
        "tenant": make_jwt(f"{fresh_database}x"),
        "subject": make_jwt(fresh_database, sub="mallory"),
        "expired": make_jwt(fresh_database, ttl_s=-5),
        "nonsense": "a.b.c",
    }[change]
    await tail_open(service, fresh_database)
    async with client_of(service, fresh_database, ttl_s=1.5) as client:
        await client.subscribe("orders")
        await client.send({"type": "auth", "jwt": jwt})
        assert (await client.until("error"))["code"] == "auth_invalid"
        database["orders"].insert_one({"_id": 1})
        await client.events(1)
        code, _ = await client.closed()
        assert code == 4101
        assert abs(time.time() - client.seen[0]["authExpiresAt"] / 1000) < 0.5


async def test_a_refresh_with_fewer_rights_ends_what_they_no_longer_allow(
    start_service: StartService, database: Documents, fresh_database: str
) -> None:
    """P5: rights are those of the current claims."""
    policy = {
        "tenant": {"claim": "tenant", "database": "{tenant}"},
        "collections": {
            "orders": {"scopes": ["orders:read"]},
            "tasks": {"filter": {"team": "{claims.team}"}, "allowPartial": True},
            "notes": {},
        },
    }
    service = start_service(policy=policy)
    claims = {"scope": "orders:read other", "team": "red"}
    async with client_of(service, fresh_database, **claims) as client:
        orders = (await client.subscribe("orders"))["topic"]
        tasks = (await client.subscribe("tasks"))["topic"]
        await client.subscribe("notes")
        await client.send({"type": "auth", "jwt": make_jwt(fresh_database, scope="other", team="blue")})
        await client.until("authenticated")
        ended = {
            frame["topic"]: (frame["code"], frame["resubscribe"])
            for frame in client.seen
            if frame["type"] == "unsubscribed"
        }
        assert ended == {orders: ("forbidden", False), tasks: ("topic_changed", True)}
        database["orders"].insert_one({"_id": 1})
        database["tasks"].insert_one({"_id": 2, "team": "red"})
        database["notes"].insert_one({"_id": 3})
        assert (await client.events(1))[0]["documentKey"] == {"_id": 3}
        await client.send(
            {
                "type": "subscribe",
                "id": "o",
                "topic": {"collection": "orders"},
                "resumeAfter": client.tokens[orders],
            }
        )
        assert (await client.until("error"))["code"] == "forbidden"
