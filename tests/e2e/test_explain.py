"""`POST /v1/topics/explain` of a served process: the answer of a subscribe, without a change stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Documents, StartService
from tests.support.engine import Engine
from tests.support.proxy import EngineProxy
from tests.support.service import Service, client_of, make_jwt

POLICY = {
    "tenant": {"claim": "tenant", "database": "{tenant}"},
    "collections": {
        "orders": {"filter": {"region": {"$in": "{claims.regions}"}}, "fields": {"cost": 0}},
        "*": {},
    },
}


@pytest.fixture(scope="module")
def proxy(engine: Engine) -> Iterator[EngineProxy]:
    with EngineProxy(engine.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def service(proxy: EngineProxy, start_for_module: StartService) -> Iterator[Service]:
    service = start_for_module(uri=proxy.uri, policy=POLICY, allowed_origins="https://app.example")
    yield service
    service.kill()


async def ask(service: Service, tenant: str, topic: Any = None, **arguments: Any) -> httpx.Response:
    """As user of the regions `north` and `south`; a JWT of None is left out."""
    jwt = arguments.pop("jwt", make_jwt(tenant, regions=["north", "south"]))
    headers = {**({} if jwt is None else {"Authorization": f"Bearer {jwt}"}), **arguments.pop("headers", {})}
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:
        return await client.post(
            f"http://127.0.0.1:{service.port}/v1/topics/explain",
            headers=headers,
            **({"json": topic} if topic is not None else {}),
            **arguments,
        )


async def test_the_answer_is_that_of_a_subscribe_and_opens_no_change_stream(
    service: Service, proxy: EngineProxy, database: Documents, fresh_database: str
) -> None:
    await asyncio.to_thread(
        database.create_collection, "orders", changeStreamPreAndPostImages={"enabled": True}
    )
    topic: dict[str, Any] = {
        "filter": {"status": {"$in": ["b", "a"]}, "cost": {"$gt": 5}},
        "fields": {"status": 1},
    }
    opened = len(proxy.opened)
    response = await ask(service, fresh_database, {"collection": "orders", **topic})
    assert response.status_code == 200
    found = response.json()
    assert found["canonical"] == {
        "collection": "orders",
        "filter": {"cost": {"$gt": 5}, "status": {"$in": ["a", "b"]}},
        "policyFilter": True,
        "operations": ["insert", "update", "replace", "delete"],
        "fields": {"status": 1},
        "membership": "exact",
    }
    assert found["index"]["lookups"] == [["status"]]
    assert found["snapshot"] == {"available": True}
    for hidden in ("region", "north", "south"):
        assert hidden not in response.text
    figures = service.get("/metrics")[1].splitlines()
    assert 'feedsvc_explains_total{outcome="explained"} 1.0' in figures
    assert "feedsvc_tails 0.0" in figures
    assert len(proxy.opened) == opened
    async with client_of(service, fresh_database, regions=["south", "north"]) as client:
        subscribed = await client.subscribe("orders", **topic)
    assert (subscribed["topic"], subscribed["fidelity"]) == (found["topic"], found["fidelity"])
    assert len(proxy.opened) == opened + 1


async def test_refusals_are_answers_and_problems_are_not(service: Service, fresh_database: str) -> None:
    """The collection keeps no images, so its policy filter cannot be kept; the rest is no question."""
    found = (await ask(service, fresh_database, {"collection": "orders"})).json()
    assert found["refused"]["code"] == "images_required"
    found = (await ask(service, fresh_database, {"collection": "notes", "filter": {"$expr": 1}})).json()
    assert found["refused"]["code"] == "filter_unsupported"
    problems = [
        (await ask(service, fresh_database, {"collection": "notes"}, jwt=None), 401, "auth_invalid"),
        (await ask(service, fresh_database, {"collection": "notes"}, jwt="junk"), 401, "auth_invalid"),
        (await ask(service, fresh_database, {"collection": 5}), 400, "bad_request"),
        (await ask(service, fresh_database, content=b"{}"), 400, "bad_request"),
        (
            await ask(
                service, fresh_database, {"collection": "notes"}, headers={"Origin": "https://evil.example"}
            ),
            403,
            "forbidden",
        ),
    ]
    for response, status, code in problems:
        assert response.headers["content-type"] == "application/problem+json"
        assert (response.status_code, response.json()["code"]) == (status, code)


@pytest.mark.parametrize("size", [70_000, 5_000_000])
async def test_a_body_over_the_bound_gets_an_answer(service: Service, fresh_database: str, size: int) -> None:
    """Also where the peer is still sending when it is refused."""
    response = await ask(
        service, fresh_database, content=b" " * size, headers={"Content-Type": "application/json"}
    )
    assert (response.status_code, response.json()["code"]) == (400, "bad_request")
