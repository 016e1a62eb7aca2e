"""Every error of the application is a problem document, also where no route exists and where we fail."""

from __future__ import annotations

import pytest

from feedsvc.testing import MemoryVerifier
from tests.runtime.world import claims
from tests.web.asking import application, code


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/nowhere", "/v1/tickets/", "//v1/tickets", "/healthz", "/%00", "/é"]
)
async def test_where_nothing_is_a_problem_says_so(path: str) -> None:
    """Without repeating the path; no redirect to something like it."""
    async with application() as asked:
        response = await asked.request("GET", path)
        assert (response.status_code, code(response)) == (404, "not_found")
        assert path == "/" or path not in response.text
        assert asked.counted("feedsvc_requests_refused_total", code="not_found") == 1


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/v1/ws", {"GET", "HEAD"}),
        ("GET", "/v1/topics/explain", {"POST", "OPTIONS"}),
        ("POST", "/v1/status", {"GET", "HEAD"}),
        ("DELETE", "/metrics", {"GET", "HEAD"}),
        ("PUT", "/healthz/live", {"GET", "HEAD"}),
        ("TRACE", "/v1/tickets", {"POST", "OPTIONS"}),
    ],
)
async def test_another_method_is_told_which_there_are(method: str, path: str, allowed: set[str]) -> None:
    async with application() as asked:
        response = await asked.request(method, path)
        assert (response.status_code, code(response)) == (405, "method_not_allowed")
        assert set(response.headers["allow"].split(", ")) == allowed
        assert asked.counted("feedsvc_requests_refused_total", code="method_not_allowed") == 1


async def test_a_request_without_an_upgrade_is_told_what_the_address_is_for() -> None:
    async with application() as asked:
        response = await asked.request("GET", "/v1/ws")
        assert (response.status_code, code(response)) == (400, "bad_request")
        assert response.headers["upgrade"] == "websocket"


async def test_the_description_is_served_to_anybody() -> None:
    async with application() as asked:
        response = await asked.request("GET", "/openapi.yaml", jwt=None)
        assert (response.status_code, response.content) == (200, b"openapi: 3.1.0\n")
        assert response.headers["content-type"] == "application/yaml"


async def test_a_fault_of_ours_is_logged_and_tells_nothing_but_where() -> None:
    """The peer gets a reference, and the log what happened."""
    check = MemoryVerifier({"operator": claims(scopes="feedsvc:admin")})
    async with application(check=check) as asked:

        def fail() -> None:
            raise ZeroDivisionError("a secret")

        asked.status = fail  # type: ignore[assignment]
        response = await asked.request("GET", "/v1/status", jwt="operator")
        assert (response.status_code, code(response)) == (500, "internal")
        assert "secret" not in response.text and "ZeroDivisionError" not in response.text
        ((_, fields),) = [report for report in asked.world.reports if report[0] == "request.failed"]
        assert str(fields["reference"]) in response.json()["detail"]
        assert fields["error"] == "ZeroDivisionError: a secret"
