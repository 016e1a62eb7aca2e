"""CORS of a served process, as a browser goes about it: preflight, then the request (AUT-09 for HTTP)."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.conftest import StartService
from tests.support.service import Service, make_jwt

ALLOWED = ("https://app.example", "http://localhost:3000")
TOPIC = '{"collection":"orders"}'


@pytest.fixture(scope="module")
def service(start_for_module: StartService) -> Iterator[Service]:
    service = start_for_module(allowed_origins=",".join(ALLOWED))
    yield service
    service.kill()


def client_of_page(service: Service, origin: str) -> httpx.AsyncClient:
    url = f"http://127.0.0.1:{service.port}"
    return httpx.AsyncClient(
        base_url=url, trust_env=False, verify=False, headers={"Origin": origin, "Cookie": "a=b"}
    )


def may_read(response: httpx.Response, origin: str) -> bool:
    """Whether a browser shows the answer to a page of this origin; it must be this one and no other's in a cache."""
    assert response.headers["vary"].lower() == "origin"
    assert "access-control-allow-credentials" not in response.headers
    return bool(response.headers.get("access-control-allow-origin") == origin)


@pytest.mark.parametrize("origin", ALLOWED)
async def test_a_page_of_an_allowed_origin_gets_a_ticket_and_a_stream(
    service: Service, fresh_database: str, origin: str
) -> None:
    async with client_of_page(service, origin) as page:
        preflight = {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization",
        }
        answer = await page.options("/v1/tickets", headers=preflight)
        assert (answer.status_code, may_read(answer, origin)) == (204, True)
        assert "Authorization" in answer.headers["access-control-allow-headers"]
        bearer = {"Authorization": f"Bearer {make_jwt(fresh_database)}"}
        answer = await page.post("/v1/tickets", headers=bearer)
        assert (answer.status_code, may_read(answer, origin)) == (200, True)
        query = {"ticket": answer.json()["ticket"], "topic": TOPIC}
        async with page.stream("GET", "/v1/sse", params=query) as stream:
            assert (stream.status_code, may_read(stream, origin)) == (200, True)
        answer = await page.post("/v1/topics/explain", headers=bearer, json={"collection": "orders"})
        assert (answer.status_code, may_read(answer, origin)) == (200, True)
        answer = await page.get("/v1/sse", params={"ticket": "junk", "topic": TOPIC})
        assert (answer.status_code, may_read(answer, origin)) == (401, True)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "https://app.example.evil.example"])
async def test_a_page_of_another_origin_gets_403_whatever_it_brings(
    service: Service, fresh_database: str, origin: str
) -> None:
    async with client_of_page(service, origin) as page:
        bearer = {"Authorization": f"Bearer {make_jwt(fresh_database)}"}
        answers = [
            await page.options("/v1/tickets", headers={"Access-Control-Request-Method": "POST"}),
            await page.post("/v1/tickets", headers=bearer),
            await page.post("/v1/topics/explain", headers=bearer, json={"collection": "orders"}),
            await page.get("/v1/sse", headers=bearer, params={"topic": TOPIC}),
            await page.post("/v1/sse", headers=bearer, json={"topics": [{"collection": "orders"}]}),
        ]
        for answer in answers:
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
            assert not may_read(answer, origin)
            assert "access-control-allow-origin" not in answer.headers
