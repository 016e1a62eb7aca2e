"""`GET /v1/status` of a served process agrees with `/metrics`; what else is served, and what is not, in one place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Documents, StartService
from tests.support.service import Service, client_of, make_jwt

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def service(start_for_module: StartService) -> Iterator[Service]:
    service = start_for_module(tail_scope="collection")
    yield service
    service.kill()


async def request(service: Service, path: str, method: str = "GET", **claims: Any) -> httpx.Response:
    """With a JWT of these claims, if there are any."""
    headers = {"Authorization": f"Bearer {make_jwt(**claims)}"} if claims else {}
    async with httpx.AsyncClient(trust_env=False, verify=False) as http:
        return await http.request(method, f"http://127.0.0.1:{service.port}{path}", headers=headers)


async def test_the_status_is_that_of_the_metrics(
    service: Service, database: Documents, fresh_database: str
) -> None:
    async with client_of(service, fresh_database) as client:
        await client.subscribe("orders")
        await client.subscribe("users", filter={"a": 1})
        await client.send(
            {
                "type": "subscribe",
                "id": "r",
                "topic": {"collection": "users"},
                "resumeAfter": client.tokens.popitem()[1],
            }
        )
        await client.until("resync")
        response = await request(service, "/v1/status", tenant="ops", scope="feedsvc:admin")
        found = response.json()
        figures = dict(
            line.rsplit(" ", 1) for line in service.get("/metrics")[1].splitlines() if line[0] != "#"
        )
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    for name in ("connections", "subscriptions", "topics"):
        assert found[name] == float(figures[f"feedsvc_{name}"]) > 0
    assert len(found["tails"]) == float(figures["feedsvc_tails"]) == 2
    assert {tail["scope"]["collection"] for tail in found["tails"]} == {"orders", "users"}
    assert all(not tail["stalled"] and tail["lagMs"] < 5_000 for tail in found["tails"])
    assert found["resyncs"]["topic_changed"] == 1
    for reason, count in found["resyncs"].items():
        assert count == float(figures[f'feedsvc_resyncs_total{{reason="{reason}"}}'])
    assert found["oplog"]["windowSeconds"] == float(figures["feedsvc_oplog_window_seconds"])
    assert found["tenants"] == [{"tenant": fresh_database, "connections": 1, "subscriptions": 3, "topics": 3}]
    assert (found["state"], found["sourceError"]) == ("serving", None)


async def test_only_the_scope_opens_it(service: Service, fresh_database: str) -> None:
    for claims, status, code in (
        ({}, 401, "auth_invalid"),
        ({"tenant": fresh_database}, 403, "forbidden"),
        ({"tenant": fresh_database, "scope": "feedsvc:administrator"}, 403, "forbidden"),
    ):
        response = await request(service, "/v1/status", **claims)
        assert (response.status_code, response.json()["code"]) == (status, code)


async def test_the_description_is_that_of_the_repository(service: Service) -> None:
    response = await request(service, "/openapi.yaml")
    assert response.status_code == 200
    assert response.content == (ROOT / "openapi.yaml").read_bytes()


async def test_where_nothing_is_a_problem_document_says_so(service: Service) -> None:
    for method, path, status, code in (
        ("GET", "/", 404, "not_found"),
        ("GET", "/v1/tickets/", 404, "not_found"),
        ("POST", "/v2/ws", 404, "not_found"),
        ("DELETE", "/v1/tickets", 405, "method_not_allowed"),
        ("POST", "/metrics", 405, "method_not_allowed"),
    ):
        response = await request(service, path, method)
        assert response.headers["content-type"] == "application/problem+json"
        assert (response.status_code, response.json()["code"]) == (status, code)
        assert ("allow" in response.headers) is (status == 405)
