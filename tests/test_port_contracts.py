"""The promises of the ports `Connection`, `Verifier`, `Clock` and `Metrics`, on every implementation.

`ChangeSource` has contract tests of its own: tests/adapters/test_source_contract.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import pytest

from feedsvc.adapters.jwt import JwtKey, JwtVerifier, sign_development_jwt
from feedsvc.adapters.telemetry.metrics import PrometheusMetrics
from feedsvc.app import SystemClock
from feedsvc.core.burst import Burst
from feedsvc.ports import AuthError, Claims, Clock, Metrics, NoMetrics, Verifier
from feedsvc.testing import ManualClock, MemoryVerifier
from tests.support.transports import (
    ROOM_FRAMES,
    AsgiTransport,
    CarriedTransport,
    MemoryTransport,
    StreamTransport,
    Transport,
    event,
)

SECRET = "a secret of at least thirty-two bytes"


@pytest.fixture(params=["memory", "asgi", "carried", "stream"])
async def transport(request: pytest.FixtureRequest) -> AsyncIterator[Transport]:
    if request.param == "memory":
        yield MemoryTransport()
    elif request.param != "asgi":
        opened = CarriedTransport() if request.param == "carried" else StreamTransport()
        await opened.open()
        yield opened
        await opened.close()
    else:
        asgi = AsgiTransport()
        yield asgi
        asgi.writer.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asgi.writer


async def test_frames_arrive_whole_and_in_order(transport: Transport) -> None:
    frames = [event(number, size) for number, size in enumerate((60, 61, 62, 125, 126, 70_000))]
    transport.connection.write(frames[:2])
    transport.connection.write(frames[2:3])
    transport.connection.write_burst(Burst(frames[3:]))
    assert await transport.read_all() == frames


async def test_a_peer_that_does_not_read_ends_writable_and_its_reading_brings_it_back(
    transport: Transport,
) -> None:
    """`writable` turns false by writing alone, and the callback runs each time it turns."""
    turned: list[bool] = []
    connection = transport.connection
    connection.on_room(lambda: turned.append(connection.writable))
    assert connection.writable
    for rounds in (1, 2):
        await transport.stop_reading()
        written = 0
        while connection.writable:
            connection.write([event(written)])
            written += 1
            assert written <= 2 * ROOM_FRAMES  # the kernel takes a few, too
        assert turned[-1] is False
        await transport.read_all()
        assert connection.writable
        assert turned == [False, True] * rounds


async def test_what_is_written_to_a_full_connection_is_not_lost(transport: Transport) -> None:
    """Answers may be written although it is full: it is for the runtime to stop."""
    await transport.stop_reading()
    frames = [event(number) for number in range(ROOM_FRAMES * 2)]
    for frame in frames:
        transport.connection.write([frame])
    assert await transport.read_all() == frames


async def test_the_first_close_wins_and_ends_writing(transport: Transport) -> None:
    connection = transport.connection
    connection.write([event(1)])
    connection.close(4200, "going_away")
    connection.close(4000, "another")
    connection.write([event(2)])
    connection.write_burst(Burst([event(3)]))
    assert not connection.writable
    assert await transport.closed_with() == (4200, "going_away")
    assert await transport.read_all() == [event(1)]


async def test_a_closed_connection_does_not_ask_for_more(transport: Transport) -> None:
    """Nobody may be told that there is room in a connection that is closing."""
    turned: list[bool] = []
    transport.connection.on_room(lambda: turned.append(transport.connection.writable))
    await transport.stop_reading()
    while transport.connection.writable:
        transport.connection.write([event(1)])
    transport.connection.close(4201)
    await transport.read_all()
    assert turned == [False]


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
