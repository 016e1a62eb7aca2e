"""`POST /v1/tickets` and what a ticket opens: the claims of its JWT, for a while, on any instance, and feeds only."""

from __future__ import annotations

import httpx
import pytest
from starlette.datastructures import Headers

from feedsvc.core.errors import Refusal
from feedsvc.core.limits import Limits
from feedsvc.ports import Claims
from tests.runtime.world import WALL, claims
from tests.web.asking import Application, application, code

URL = "/v1/tickets"
OLD, NEW = b"o" * 32, b"n" * 32


async def ticket(asked: Application, jwt: str = "alice") -> str:
    response = await asked.request("POST", URL, jwt=jwt)
    assert response.status_code == 200
    found: str = response.json()["ticket"]
    return found


async def opened(asked: Application, value: str, **headers: str) -> Claims | str:
    """The claims of an upgrade with this ticket, or the code of its refusal."""
    try:
        return await asked.authentication.stream(Headers(headers), f"v=1&ticket={value}")
    except Refusal as refusal:
        return refusal.code


async def test_a_ticket_carries_the_claims_of_its_jwt() -> None:
    """Whole, with their expiry; any number of times; nobody keeps the answer."""
    async with application() as asked:
        response = await asked.request("POST", URL)
        assert response.headers["cache-control"] == "no-store"
        assert response.json().keys() == {"ticket", "expiresInMs"}
        assert response.json()["expiresInMs"] == 30_000
        value = response.json()["ticket"]
        for _ in range(3):
            assert await opened(asked, value) == claims(owner="a")
        assert asked.counted("feedsvc_tickets_issued_total") == 1


async def test_a_ticket_ends() -> None:
    async with application() as asked:
        value = await ticket(asked)
        asked.world.clock.advance(29.9)
        assert isinstance(await opened(asked, value), Claims)
        asked.world.clock.advance(0.2)
        assert await opened(asked, value) == "auth_expired"


async def test_a_ticket_never_outlives_its_jwt() -> None:
    """It lasts as long as the rest of the JWT, and its claims end with that."""
    async with application() as asked:
        asked.world.clock.advance(100_000 - 5)
        response = await asked.request("POST", URL)
        assert response.json()["expiresInMs"] == 5_000
        found = await opened(asked, response.json()["ticket"])
        assert isinstance(found, Claims) and found.expires_at == WALL + 100_000
        asked.world.clock.advance(5)
        assert await opened(asked, response.json()["ticket"]) == "auth_expired"


async def test_other_instances_take_it_while_keys_rotate() -> None:
    async with application() as asked:
        before = Application(asked.world, keys=(OLD,))
        between = Application(asked.world, keys=(OLD, NEW))
        after = Application(asked.world, keys=(NEW, OLD))
        at_last = Application(asked.world, keys=(NEW,))
        by_old, by_new = await ticket(before), await ticket(after)
        for other in (before, between, after):
            assert isinstance(await opened(other, by_old), Claims)
        for other in (between, after, at_last):
            assert isinstance(await opened(other, by_new), Claims)
        assert await opened(at_last, by_old) == "auth_invalid"


@pytest.mark.parametrize("value", ["", "junk", "a" * 7_000])
async def test_what_is_no_ticket_is_invalid(value: str) -> None:
    async with application() as asked:
        assert await opened(asked, value) == "auth_invalid"


async def test_a_ticket_beside_a_jwt_is_one_too_many() -> None:
    async with application() as asked:
        value = await ticket(asked)
        assert await opened(asked, value, authorization="Bearer alice") == "bad_request"
        assert await opened(asked, f"{value}&ticket={value}") == "bad_request"


async def test_a_ticket_of_a_foreign_page_is_refused() -> None:
    async with application() as asked:
        assert await opened(asked, await ticket(asked), origin="https://evil.example") == "forbidden"


@pytest.mark.parametrize(
    ("method", "path"), [("POST", URL), ("POST", "/v1/topics/explain"), ("GET", "/v1/status")]
)
async def test_a_ticket_opens_feeds_only(method: str, path: str) -> None:
    """With another ticket for each, a stolen one would last for ever."""
    async with application() as asked:
        response = await asked.request(method, f"{path}?ticket={await ticket(asked)}", jwt=None)
        assert (response.status_code, code(response)) == (401, "auth_invalid")


@pytest.mark.parametrize(
    ("jwt", "status", "expected"),
    [
        (None, 401, "auth_invalid"),
        ("nobody", 401, "auth_invalid"),
        ("expired", 401, "auth_expired"),
        ("past", 401, "auth_expired"),
        ("no-tenant", 401, "auth_invalid"),
        ("keys-away", 503, "source_unavailable"),
    ],
)
async def test_who_gets_none(jwt: str | None, status: int, expected: str) -> None:
    async with application() as asked:
        response = await asked.request("POST", URL, jwt=jwt)
        assert (response.status_code, code(response)) == (status, expected)
        assert ("www-authenticate" in response.headers) is (status == 401)
        assert asked.counted("feedsvc_requests_refused_total", code=expected) == 1


async def test_a_jwt_in_the_url_is_refused() -> None:
    async with application() as asked:
        response = await asked.request("POST", f"{URL}?access_token=x")
        assert (response.status_code, code(response)) == (400, "auth_in_url")


async def test_a_tenant_that_asks_too_often_waits() -> None:
    """And no other with it; the answer says for how long, and that is enough."""
    async with application(Limits(tickets_per_minute=3)) as asked:
        answers = [await asked.request("POST", URL) for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
        assert code(answers[-1]) == "rate_limited"
        assert answers[-1].headers["retry-after"] == "20"
        assert asked.counted("feedsvc_requests_refused_total", code="rate_limited") == 2
        await ticket(asked, "other-tenant")
        asked.world.clock.advance(20)
        await ticket(asked)


async def test_who_is_refused_costs_the_tenant_nothing() -> None:
    async with application(Limits(tickets_per_minute=1)) as asked:
        for jwt in ("nobody", "expired", "no-tenant"):
            await asked.request("POST", URL, jwt=jwt)
        await ticket(asked)


async def test_other_methods_get_405() -> None:
    async with application() as asked:
        responses: list[httpx.Response] = [
            await asked.request(method, URL) for method in ("GET", "PUT", "DELETE", "PATCH")
        ]
        for response in responses:
            assert (response.status_code, code(response)) == (405, "method_not_allowed")
            assert set(response.headers["allow"].split(", ")) == {"POST", "OPTIONS"}
