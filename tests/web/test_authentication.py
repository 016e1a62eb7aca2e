"""From a request to its claims: origin first, then where credentials stand, then whether they are good."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from feedsvc.core.errors import Refusal
from feedsvc.core.messages import SUBPROTOCOL
from feedsvc.ports import Claims
from tests.runtime.world import claims
from tests.web.asking import ORIGIN, Application, application

ALICE = claims(owner="a")
BEARER = {"authorization": "Bearer alice"}


async def asked_for(
    asked: Application, way: str, headers: dict[str, str], query: str = "", *subprotocols: str
) -> Claims | str | None:
    """What one way in answers: claims, None, or the code of a refusal."""
    authentication, given = asked.authentication, Headers(headers)
    try:
        if way == "upgrade":
            return await authentication.upgrade(given, query, subprotocols)
        if way == "stream":
            return await authentication.stream(given, query)
        return await authentication.bearer(given, query)
    except Refusal as refusal:
        return refusal.code


@pytest.mark.parametrize(
    ("way", "expected"), [("upgrade", None), ("stream", "auth_invalid"), ("bearer", "auth_invalid")]
)
async def test_only_a_websocket_may_come_without_credentials(way: str, expected: str | None) -> None:
    """It can send them in its first frame."""
    async with application() as asked:
        assert await asked_for(asked, way, {}) == expected
        assert await asked_for(asked, way, {"origin": ORIGIN}) == expected


@pytest.mark.parametrize("way", ["upgrade", "stream", "bearer"])
async def test_a_jwt_gives_its_claims_everywhere(way: str) -> None:
    async with application() as asked:
        assert await asked_for(asked, way, BEARER, "v=1") == ALICE
        for jwt, code in (
            ("nobody", "auth_invalid"),
            ("expired", "auth_expired"),
            ("keys-away", "source_unavailable"),
        ):
            assert await asked_for(asked, way, {"authorization": f"Bearer {jwt}"}) == code


@pytest.mark.parametrize("way", ["upgrade", "stream", "bearer"])
async def test_a_foreign_origin_is_refused_before_credentials_are_looked_at(way: str) -> None:
    """Whether they are good is not told to a page that may not ask."""
    async with application() as asked:
        for headers in ({}, BEARER, {"authorization": "junk"}):
            assert await asked_for(asked, way, {**headers, "origin": "https://evil.example"}) == "forbidden"


@pytest.mark.parametrize("way", ["upgrade", "stream", "bearer"])
async def test_a_jwt_in_the_url_is_refused_beside_good_credentials_too(way: str) -> None:
    async with application() as asked:
        assert await asked_for(asked, way, BEARER, "access_token=x") == "auth_in_url"


async def test_a_subprotocol_carries_a_jwt_and_two_jwts_are_one_too_many() -> None:
    async with application() as asked:
        entries = (SUBPROTOCOL, "bearer.alice")
        assert await asked_for(asked, "upgrade", {}, "", *entries) == ALICE
        assert await asked_for(asked, "upgrade", BEARER, "", *entries) == "bad_request"


async def test_a_feed_needs_a_tenant_and_a_request_that_is_none_does_not() -> None:
    async with application() as asked:
        headers = {"authorization": "Bearer no-tenant"}
        assert await asked_for(asked, "upgrade", headers) == "auth_invalid"
        assert await asked_for(asked, "stream", headers) == "auth_invalid"
        found = await asked_for(asked, "bearer", headers)
        assert isinstance(found, Claims)
        with pytest.raises(Refusal, match="tenant"):
            asked.authentication.principal(found)
        assert asked.authentication.principal(ALICE).tenant == "acme"
