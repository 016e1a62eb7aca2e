"""`GET /v1/status`: for the scope `feedsvc:admin` only, equal to what is there, and nothing of what is inside it."""

from __future__ import annotations

import msgspec
import pytest

from feedsvc.core.status import MOST_TENANTS, Status, TenantStatus
from feedsvc.testing import MemoryVerifier
from tests.runtime.world import claims, running
from tests.web.asking import Application, application, code

URL = "/v1/status"
VERIFIER = MemoryVerifier(
    {
        "alice": claims(owner="a-value-of-a-claim"),
        "other-tenant": claims("globex"),
        "operator": claims("acme", subject="ops", scopes="feedsvc:admin orders:read"),
        "operator-of-none": msgspec.structs.replace(
            claims(scopes="feedsvc:admin"), claims={"scope": "feedsvc:admin"}
        ),
        "nearly": claims(scopes="feedsvc:admins feedsvc admin"),
        **{f"tenant-{number}": claims(f"tenant-{number}") for number in range(MOST_TENANTS + 5)},
    }
)


async def status(asked: Application, jwt: str = "operator") -> Status:
    response = await asked.request("GET", URL, jwt=jwt)
    assert response.status_code == 200
    assert response.headers["cache-control"] == "no-store"
    return msgspec.json.decode(response.content, type=Status)


@pytest.mark.parametrize(
    ("jwt", "refused", "expected"),
    [
        (None, 401, "auth_invalid"),
        ("nobody", 401, "auth_invalid"),
        ("alice", 403, "forbidden"),
        ("nearly", 403, "forbidden"),
    ],
)
async def test_only_operators_are_told(jwt: str | None, refused: int, expected: str) -> None:
    """The refusal tells nothing of what it hides."""
    async with application(check=VERIFIER) as asked:
        response = await asked.request("GET", URL, jwt=jwt)
        assert (response.status_code, code(response)) == (refused, expected)
        assert response.json().keys() == {"type", "title", "status", "code", "detail", "retryable"}
        assert asked.counted("feedsvc_requests_refused_total", code=expected) == 1


async def test_an_operator_needs_no_tenant() -> None:
    async with application(check=VERIFIER) as asked:
        assert (await status(asked, "operator-of-none")).version == "1.2.3"


async def test_it_counts_what_is_there() -> None:
    async with application(check=VERIFIER, level="collection") as asked:
        world = asked.world
        one, two = await world.signed_in("alice"), await world.signed_in("other-tenant")
        for topic in ({}, {"filter": {"n": 1}}):
            await one.subscribed("orders", topic=topic)
        await two.subscribed("users")
        waiting = world.peer()
        waiting.client.start(None)
        world.clock.advance(42)
        found = await status(asked)
        assert found.uptime_seconds == 42
        assert found.started_at_ms == int((world.clock.wall() - 42) * 1000)
        assert (found.state, found.source_error) == ("serving", None)
        assert (found.connections, found.waiting_sockets) == (2, 1)
        assert (found.subscriptions, found.topics, found.max_tails) == (3, 3, 64)
        tails = {(tail.scope.database, tail.scope.collection): tail for tail in found.tails}
        assert {names: tail.subscriptions for names, tail in tails.items()} == {
            ("app_acme", "orders"): 2,
            ("app_globex", "users"): 1,
        }
        assert all(tail.opened and tail.error is None and tail.idle_seconds is None for tail in found.tails)
        assert found.tenants == [TenantStatus("acme", 1, 2, 2), TenantStatus("globex", 1, 1, 1)]
        window = found.oplog.window_seconds
        assert window == world.hub.window_seconds()


async def test_a_tail_that_is_left_tells_for_how_long() -> None:
    async with application(check=VERIFIER, level="collection") as asked:
        peer = await asked.world.signed_in("alice")
        await peer.subscribed("orders")
        peer.client.transport_closed()
        asked.world.clock.advance(3)
        (tail,) = (await status(asked)).tails
        assert (tail.subscriptions, tail.idle_seconds) == (0, 3)


async def test_counts_since_the_start_are_those_of_the_metrics() -> None:
    async with application(check=VERIFIER) as asked:
        asked.metrics.count("resyncs", 3, reason="overflow")
        asked.metrics.count("tail_errors", kind="SourceUnavailable")
        asked.metrics.count("closes", 2, code="4201")
        asked.metrics.count("catch_ups_opened", 4, level="collection")
        asked.metrics.count("catch_ups_opened", level="deployment")
        found = await status(asked)
        assert (found.closes, found.catch_ups_opened) == ({"4201": 2}, 5)
        assert found.resyncs["overflow"] == 3 and sum(found.resyncs.values()) == 3
        assert found.tail_errors["SourceUnavailable"] == 1


async def test_the_oldest_position_and_the_last_errors_are_told() -> None:
    async with application(check=VERIFIER) as asked:
        assert (await status(asked)).oldest_position is None
        peer = await asked.world.signed_in("alice")
        await peer.subscribed("users")
        asked.errors.report("tail.failed", {"error": "SourceUnavailable: no answer"})
        found = await status(asked)
        assert found.oldest_position == asked.world.hub.oldest_position() is not None
        assert [(error.event, error.kind, error.text) for error in found.recent_errors] == [
            ("tail.failed", "SourceUnavailable", "no answer")
        ]


async def test_a_drain_shows() -> None:
    async with application(check=VERIFIER) as asked:
        asked.lifecycle.draining = True
        assert (await status(asked)).state == "draining"


async def test_a_failure_is_told_by_its_kind() -> None:
    """What MongoDB said may hold more than an operator of tenants may see."""
    async with application(check=VERIFIER) as asked:
        peer = await asked.world.signed_in("alice")
        await peer.subscribed("users")
        (feed,) = asked.world.hub.feeds.values()
        feed.live.health.error = "SourceUnavailable: host-1:27017 said a secret"
        asked.world.hub.deployment.failure = "TimeoutError: secret"
        response = await asked.request("GET", URL, jwt="operator")
        found = msgspec.json.decode(response.content, type=Status)
        assert found.tails[0].error == "SourceUnavailable"
        assert found.source_error == "TimeoutError"
        assert "secret" not in response.text


async def test_nothing_that_a_client_wrote_is_in_it() -> None:
    async with application(check=VERIFIER) as asked:
        peer = await asked.world.signed_in("alice")
        await peer.subscribed("users", topic={"filter": {"a-path": "a-value"}, "fields": {"a-field": 1}})
        text = (await asked.request("GET", URL, jwt="operator")).text
        for written in ("a-path", "a-value", "a-field", "a-value-of-a-claim", "alice"):
            assert written not in text


async def test_the_tenants_with_the_most_connections_are_named() -> None:
    async with application(check=VERIFIER) as asked:
        for number in range(MOST_TENANTS + 5):
            await asked.world.signed_in(f"tenant-{number}")
        await asked.world.signed_in("tenant-7")
        found = await status(asked)
        assert (found.tenant_count, len(found.tenants)) == (MOST_TENANTS + 5, MOST_TENANTS)
        assert (found.tenants[0].tenant, found.tenants[0].connections) == ("tenant-7", 2)


async def test_before_mongodb_has_answered_it_says_so() -> None:
    async with running(check=VERIFIER) as world:
        asked = Application(world)
        world.hub.deployment.identified.clear()
        assert (await status(asked)).state == "starting"
        world.hub.deployment.identified.set()
