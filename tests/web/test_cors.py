"""CORS: the allowed origins may use the routes for pages, every other gets 403, and there is no wildcard."""

from __future__ import annotations

import httpx
import pytest
from starlette.routing import Route

from tests.web.asking import ORIGIN, Application, application, code

ROUTES = [("POST", "/v1/tickets"), ("POST", "/v1/topics/explain"), ("GET", "/v1/sse"), ("POST", "/v1/sse")]
FOREIGN = ["https://evil.example", "null", "*", ORIGIN.upper(), ORIGIN + ":443", ORIGIN + ".evil.example", ""]


def cors(response: httpx.Response) -> dict[str, str]:
    """The headers that a browser asks about."""
    return {name: value for name, value in response.headers.items() if name.startswith("access-control-")}


async def preflight(asked: Application, method: str, path: str, origin: str) -> httpx.Response:
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    return await asked.request("OPTIONS", path, jwt=None, headers=headers)


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_a_preflight_of_an_allowed_origin_says_what_may_be_sent(method: str, path: str) -> None:
    """Without credentials, which a preflight never has; and nothing is done."""
    async with application() as asked:
        response = await preflight(asked, method, path, ORIGIN)
        assert (response.status_code, response.content) == (204, b"")
        found = cors(response)
        assert found["access-control-allow-origin"] == ORIGIN
        assert method in found["access-control-allow-methods"].split(", ")
        assert {"Authorization", "Content-Type"} <= set(found["access-control-allow-headers"].split(", "))
        assert int(found["access-control-max-age"]) > 0
        assert response.headers["vary"] == "Origin"
        assert "access-control-allow-credentials" not in found


@pytest.mark.parametrize("origin", FOREIGN)
@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_another_origin_gets_403_and_no_header_that_lets_it_read(
    method: str, path: str, origin: str
) -> None:
    """Its preflight and its request, whatever credentials it has."""
    async with application() as asked:
        for response in (
            await preflight(asked, method, path, origin),
            await asked.request(method, path, headers={"Origin": origin}),
        ):
            assert (response.status_code, code(response)) == (403, "forbidden")
            assert not cors(response)
            assert response.headers["vary"] == "Origin"
        assert asked.counted("feedsvc_requests_refused_total", code="forbidden") == 2
        assert asked.counted("feedsvc_tickets_issued_total") == 0


async def test_an_allowed_origin_reads_answers_and_refusals() -> None:
    """Also how long to wait; and no cache gives one origin's answer to another."""
    async with application() as asked:
        for jwt, status in (("alice", 200), ("nobody", 401)):
            response = await asked.request("POST", "/v1/tickets", jwt=jwt, headers={"Origin": ORIGIN})
            assert response.status_code == status
            assert cors(response) == {
                "access-control-allow-origin": ORIGIN,
                "access-control-expose-headers": "Retry-After",
            }
            assert response.headers["vary"] == "Origin"


async def test_without_an_origin_nothing_is_allowed_and_nothing_refused() -> None:
    """No browser, or a page of our own origin."""
    async with application() as asked:
        response = await asked.request("POST", "/v1/tickets")
        assert response.status_code == 200
        assert not cors(response)
        assert response.headers["vary"] == "Origin"


async def test_options_without_a_preflight_names_the_methods() -> None:
    async with application() as asked:
        response = await asked.request("OPTIONS", "/v1/tickets", jwt=None)
        assert (response.status_code, response.headers["allow"]) == (204, "POST, OPTIONS")
        assert not cors(response)


async def test_no_other_route_answers_pages_of_other_origins() -> None:
    """None of those that there are, and nothing where there is none."""
    async with application() as asked:
        paths = {route.path for route in asked.app.routes if isinstance(route, Route)}
        assert {path for _, path in ROUTES} < paths
        for path in {*paths, "/nowhere"}.difference(path for _, path in ROUTES):
            for method in ("GET", "POST"):
                assert not cors(await preflight(asked, method, path, ORIGIN)), path
                assert not cors(await asked.request(method, path, headers={"Origin": ORIGIN})), path
