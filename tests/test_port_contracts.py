"""The promises of the ports `Verifier`, `Clock` and `Metrics`, on every implementation.

Those of `Connection` are in tests/web/test_connection_contract.py, of `ChangeSource` in
tests/adapters/test_source_contract.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from feedsvc.adapters.jwt import JwtKey, JwtVerifier, sign_development_jwt
from feedsvc.adapters.telemetry.metrics import PrometheusMetrics
from feedsvc.app import SystemClock
from feedsvc.ports import AuthError, Claims, Clock, Metrics, NoMetrics, Verifier
from feedsvc.testing import ManualClock, MemoryVerifier

SECRET = "a secret of at least thirty-two bytes"
Known = tuple[Verifier, str, str]
"""A verifier, a JWT that it accepts for alice of acme, and one that has expired."""


def memory_verifier() -> Known:
    claims = Claims("alice", time.time() + 600, frozenset({"orders:read"}), {"tenant": "acme"})
    expired = AuthError("auth_expired", "The JWT has expired.")
    return MemoryVerifier({"good": claims, "old": expired}), "good", "old"


def jwt_verifier() -> Known:
    key = JwtKey.from_secret(SECRET, ["HS256"])
    payload = {"tenant": "acme", "sub": "alice", "scope": "orders:read"}
    good = sign_development_jwt(SECRET, payload, 600)
    old = sign_development_jwt(SECRET, payload, 600, now_s=time.time() - 3600)
    return JwtVerifier(key, clock_wall=time.time), good, old


@pytest.mark.parametrize("make", [memory_verifier, jwt_verifier])
async def test_a_verifier_gives_claims_or_a_registry_code(make: Callable[[], Known]) -> None:
    """A good JWT gives its claims; every other one raises `AuthError` with a code, and a message without the JWT."""
    verifier, good, old = make()
    claims = await verifier.verify(good)
    assert (claims.subject, claims.scopes, claims.claims["tenant"]) == (
        "alice",
        frozenset({"orders:read"}),
        "acme",
    )
    assert claims.expires_at > time.time()
    for jwt, code in ((old, "auth_expired"), ("never-signed", "auth_invalid"), ("", "auth_invalid")):
        with pytest.raises(AuthError) as refused:
            await verifier.verify(jwt)
        assert refused.value.code == code
        assert not jwt or jwt not in refused.value.message


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()], ids=["system", "manual"])
def test_a_clock_never_goes_back_and_tells_both_times(clock: Clock) -> None:
    readings = [clock.monotonic() for _ in range(3)]
    assert readings == sorted(readings)
    assert clock.wall() > 1_000_000_000


@pytest.mark.parametrize("metrics", [NoMetrics(), PrometheusMetrics("0")], ids=["none", "prometheus"])
def test_metrics_never_fail_their_caller(metrics: Metrics) -> None:
    """A measurement that is not declared, or has wrong labels, must not stop an event on its way."""
    metrics.count("resyncs", reason="overflow")
    metrics.gauge("connections", 3)
    metrics.count("no_such_counter", 2, label="x")
    metrics.gauge("resyncs", 1)
    metrics.observe("no_such_histogram", 0.1)
