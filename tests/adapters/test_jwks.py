"""`JwksVerifier` and `JwksFetch` against a key server that rotates, fails, hangs and lies."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given, settings
from hypothesis import strategies as st

from feedsvc.adapters.jwt import JwksFetch, JwksVerifier, JwtVerifier
from feedsvc.adapters.jwt.jwk import KeySetError, parse_key_set
from feedsvc.adapters.jwt.jwks_fetch import FetchError
from feedsvc.core.limits import Limits
from feedsvc.ports import AuthError
from tests.support.certificates import self_signed
from tests.support.key_server import Answer, IssuerKey, KeyServer, key_set

LIMITS = Limits()
RSA = IssuerKey("rsa", "RS256")
K1, K2, K3 = IssuerKey("k1"), IssuerKey("k2"), IssuerKey("k3")


class Clock:
    """Monotonic seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def server() -> Iterator[KeyServer]:
    with KeyServer() as server:
        server.publish(K1, RSA)
        yield server


@asynccontextmanager
async def verifying(
    source: KeyServer | Callable[[], Awaitable[bytes]],
    clock: Callable[[], float] = time.monotonic,
    *,
    limits: Limits = LIMITS,
    **options: Any,
) -> AsyncIterator[JwksVerifier]:
    fetch = (
        JwksFetch(source.url, timeout_s=limits.jwks_timeout_s, max_bytes=limits.jwks_bytes)
        if isinstance(source, KeyServer)
        else source
    )
    verifier = JwksVerifier(
        fetch,
        lambda key: JwtVerifier(key, clock_wall=time.time),
        limits=limits,
        clock_monotonic=clock,
        random=lambda: 0.999,
        **options,
    )
    try:
        yield verifier
    finally:
        await verifier.aclose()


def limited(**changes: Any) -> Limits:
    return msgspec.structs.replace(LIMITS, **changes)


async def refusal(verifier: JwksVerifier, jwt: str) -> AuthError:
    with pytest.raises(AuthError) as caught:
        await verifier.verify(jwt)
    return caught.value


async def code(verifier: JwksVerifier, jwt: str) -> str:
    """`ok`, or the code of the refusal; `retryable` must be said of an outage and of nothing else."""
    refused: AuthError | None = None
    try:
        await verifier.verify(jwt)
    except AuthError as error:
        refused = error
    if refused is None:
        return "ok"
    assert refused.retryable == (refused.code == "source_unavailable")
    return refused.code


# -- which key, which algorithm ---------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256", "ES384", "EdDSA"])
@pytest.mark.parametrize("named", [True, False], ids=["alg in the key", "no alg in the key"])
async def test_published_keys_verify(server: KeyServer, algorithm: str, named: bool) -> None:
    """Each kind of key verifies its JWTs; without `alg` by the first algorithm of its family."""
    key = IssuerKey("k", algorithm)
    if not named:
        del key.published["alg"]
    server.publish(key)
    async with verifying(server) as verifier:
        expected = "ok" if named or algorithm != "PS256" else "auth_invalid"
        assert await code(verifier, key.sign()) == expected


@pytest.mark.parametrize("key", [RSA, K1], ids=["RSA", "EC"])
async def test_a_public_key_is_no_hmac_secret(server: KeyServer, key: IssuerKey) -> None:
    """AUT-03: a JWT signed HS256 with any encoding of the public key is refused, and `none` too, without a request."""
    public = key.private.public_key()
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    pem = public.public_bytes(serialization.Encoding.PEM, spki)
    secrets = {
        "pem": pem,
        "pem without end": pem.strip(),
        "der": public.public_bytes(serialization.Encoding.DER, spki),
        "ssh": public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH),
        "jwk": json.dumps(key.published).encode(),
        "jwks": key_set(key),
        "empty": b"",
    }
    async with verifying(server) as verifier:
        assert await code(verifier, key.sign()) == "ok"
        asked = len(server.requests)
        for algorithm in ("HS256", "none", "None", ""):
            for secret in secrets.values():
                assert (
                    await code(verifier, hand_made({"alg": algorithm, "kid": key.kid}, secret))
                    == "auth_invalid"
                )
        assert len(server.requests) == asked


@pytest.mark.parametrize("kid", ["k1", "unknown", None])
async def test_keys_that_the_header_brings_are_not_used(server: KeyServer, kid: str | None) -> None:
    """AUT-03: `jwk`, `jku`, `x5u` and `x5c` in the header choose nothing and nothing is fetched from them."""
    server.publish(K1)
    server.paths["/evil"] = Answer(body=key_set(K2))
    evil = server.url.replace("/keys", "/evil")
    header = {"kid": kid, "jwk": K2.published, "jku": evil, "x5u": evil, "x5c": ["MAo="]}
    async with verifying(server) as verifier:
        assert await code(verifier, K2.sign(header=header)) == "auth_invalid"
        assert await code(verifier, K1.sign(header={**header, "kid": "k1"})) == "ok"
    assert "/evil" not in server.requests


async def test_a_key_verifies_its_own_algorithm_only(server: KeyServer) -> None:
    """The key pins the algorithm: PS256 with an RS256 key is refused, though the key could."""
    async with verifying(server) as verifier:
        other = IssuerKey("rsa", "RS256")
        other.private, other.algorithm = RSA.private, "PS256"
        assert await code(verifier, RSA.sign()) == "ok"
        assert await code(verifier, other.sign()) == "auth_invalid"
        assert len(server.requests) == 1


async def test_configured_algorithms_narrow_what_is_published(server: KeyServer) -> None:
    """A key whose algorithm is not configured is left out; one that names none takes the configured of its family."""
    unnamed = IssuerKey("ps", "PS256")
    del unnamed.published["alg"]
    server.publish(K1, RSA, unnamed)
    async with verifying(server, algorithms=("ES256", "PS256")) as verifier:
        assert await code(verifier, K1.sign()) == "ok"
        assert await code(verifier, unnamed.sign()) == "ok"
        assert await code(verifier, RSA.sign()) == "auth_invalid"


async def test_the_kid_selects(server: KeyServer) -> None:
    """The named key verifies or nothing does; without a name exactly one key must fit."""
    server.publish(K1, RSA)
    async with verifying(server) as verifier:
        assert await code(verifier, K1.sign(header={"kid": None})) == "ok"
        assert await code(verifier, K1.sign(header={"kid": "rsa"})) == "auth_invalid"
        assert await code(verifier, K2.sign(header={"kid": "k1"})) == "auth_invalid"
        server.publish(K1, K2, RSA)
        assert await verifier.refresh() is None
        assert await code(verifier, RSA.sign(header={"kid": None})) == "ok"
        assert "several keys" in (await refusal(verifier, K1.sign(header={"kid": None}))).message


@pytest.mark.parametrize("kid", ["", "x" * 257, 5, ["k1"], {"k1": 1}])
async def test_odd_kids_are_malformed(server: KeyServer, kid: object) -> None:
    """A kid that is no short string is refused without a request."""
    async with verifying(server) as verifier:
        assert await code(verifier, hand_made({"alg": "ES256", "kid": kid}, b"x")) == "auth_invalid"
    assert server.requests == []


@given(
    st.text(max_size=60)
    | st.binary(max_size=40).map(lambda raw: base64.urlsafe_b64encode(raw).decode() + ".a.b")
)
async def test_garbage_is_refused_without_a_request(jwt: str) -> None:
    """What has no header of a JWT is `auth_invalid`, whatever it is."""

    async def fetch() -> bytes:
        raise AssertionError("fetched")

    async with verifying(fetch) as verifier:
        assert await code(verifier, jwt) == "auth_invalid"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"use": "enc"}, "use"),
        ({"use": None}, "use"),
        ({"key_ops": ["sign"]}, "key_ops"),
        ({"key_ops": "verify"}, "key_ops"),
        ({"kty": "oct", "k": "c2VjcmV0"}, "symmetric"),
        ({"kty": "XYZ"}, "kty"),
        ({"kty": ["RSA"]}, "kty"),
        ({"d": "AQAB"}, "private"),
        ({"crv": "P-999"}, "numbers"),
        ({"x": "AAAA"}, "numbers"),
        ({"x": 5}, "numbers"),
        ({"alg": "HS256"}, "alg"),
        ({"alg": "RS256"}, "alg"),
        ({"alg": ["ES256"]}, "alg"),
        ({"kid": 5}, "kid"),
        ({"kid": ""}, "kid"),
        ({"kid": "k1"}, "kid is there before"),
    ],
)
def test_keys_that_are_left_out(change: dict[str, Any], reason: str) -> None:
    """A key that is not for verifying JWTs is left out with its reason, and the others stay."""
    odd = IssuerKey("odd")
    odd.published |= change
    keys = parse_key_set(key_set(K1, odd, K2), (), max_keys=10)
    assert [published.kid for published in keys.keys] == ["k1", "k2"]
    (ignored,) = keys.ignored
    assert ignored.startswith("key 2: ") and reason in ignored


def test_small_rsa_keys_are_left_out() -> None:
    """An RSA key of fewer than 2048 bits is no key."""
    odd = IssuerKey("odd", "RS256")
    odd.published["n"] = base64.urlsafe_b64encode(b"\xff" * 128).decode().rstrip("=")
    assert parse_key_set(key_set(odd), (), max_keys=10).keys == ()


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["keys", "kty", "crv", "x", "y", "n", "e", "kid", "alg", "use"]), inner
        )
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.binary(max_size=40) | _JSON.map(lambda value: json.dumps(value).encode()))
def test_any_document_is_a_key_set_or_an_error(document: bytes) -> None:
    """Nothing that a key server sends raises anything else than `KeySetError`."""
    try:
        parse_key_set(document, (), max_keys=3)
    except KeySetError:
        pass


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted({*K1.published, *RSA.published, "d", "key_ops"})), _JSON))
def test_any_change_of_a_key_leaves_it_out_or_usable(change: dict[str, Any]) -> None:
    """A key with wrong parts never takes the set away."""
    for good in (K1, RSA):
        odd = {**good.published, **change}
        document = json.dumps({"keys": [odd, K2.published]}).encode()
        keys = parse_key_set(document, (), max_keys=2)
        assert len(keys.keys) + len(keys.ignored) == 2 and keys.keys


# -- the cache --------------------------------------------------------------------------------------------


async def test_clients_share_one_fetch(server: KeyServer) -> None:
    """Whoever comes while the keys are fetched waits for that fetch, and a later one needs none."""
    server.hold()
    async with verifying(server) as verifier:
        clients = [asyncio.create_task(code(verifier, K1.sign())) for _ in range(50)]
        await asyncio.to_thread(server.wait_for_requests, 1)
        server.release()
        assert await asyncio.gather(*clients) == ["ok"] * 50
        assert await code(verifier, RSA.sign()) == "ok"
    assert len(server.requests) == 1
    assert "jwk-set+json" in server.headers[0]["Accept"]


async def test_there_is_one_fetch_at_a_time(server: KeyServer) -> None:
    """Start, clients and an operator who asks share the fetch under way."""
    server.hold()
    async with verifying(server) as verifier:
        verifier.start()
        others = [asyncio.create_task(verifier.refresh()) for _ in range(5)]
        await asyncio.to_thread(server.wait_for_requests, 1)
        verifier.start()
        clients = [asyncio.create_task(code(verifier, K1.sign())) for _ in range(5)]
        server.release()
        assert await asyncio.gather(*others) == [None] * 5
        assert await asyncio.gather(*clients) == ["ok"] * 5
    assert len(server.requests) == 1


async def test_a_client_that_leaves_does_not_end_the_fetch(server: KeyServer) -> None:
    """Cancelling one waiter, even the first, leaves the fetch to the others."""
    server.hold()
    async with verifying(server) as verifier:
        first = asyncio.create_task(verifier.verify(K1.sign()))
        await asyncio.to_thread(server.wait_for_requests, 1)
        second = asyncio.create_task(code(verifier, K1.sign()))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        server.release()
        assert await second == "ok"
    assert len(server.requests) == 1


async def test_keys_are_refreshed_in_time_without_anybody_asking(server: KeyServer) -> None:
    """The set is fetched again before `jwks_refresh_s` are over, so that a removed key is refused in time."""
    async with verifying(server, limits=limited(jwks_refresh_s=0.2)) as verifier:
        verifier.start()
        began = time.monotonic()
        await asyncio.to_thread(server.wait_for_requests, 4)
        assert time.monotonic() - began >= 3 * 0.2 * 0.7
        server.publish(RSA)
        await asyncio.to_thread(server.wait_for_requests, len(server.requests) + 2)
        assert await code(verifier, K1.sign()) == "auth_invalid"
        assert await code(verifier, RSA.sign()) == "ok"


async def test_known_clients_do_not_wait_for_a_refresh(server: KeyServer) -> None:
    """While a refresh hangs, a JWT of a known key is verified at once."""
    async with verifying(server, limits=limited(jwks_refresh_s=0.1)) as verifier:
        assert await verifier.refresh() is None
        server.hold()
        await asyncio.to_thread(server.wait_for_requests, 2)
        async with asyncio.timeout(1):
            assert await code(verifier, K1.sign()) == "ok"
        assert len(server.requests) == 2


async def test_an_unknown_kid_flood_costs_two_requests_and_delays_nobody(server: KeyServer) -> None:
    """AUT-04: 200 random kids beside 5 valid clients."""
    async with verifying(server) as verifier:
        assert await verifier.refresh() is None
        valid = [K1.sign() for _ in range(5)]
        flood = [K2.sign(header={"kid": f"random-{number}"}) for number in range(200)]
        server.hold()
        attackers = [asyncio.create_task(code(verifier, jwt)) for jwt in flood[:100]]
        await asyncio.to_thread(server.wait_for_requests, 2)
        for jwt in valid:
            began = time.monotonic()
            assert await code(verifier, jwt) == "ok"
            assert time.monotonic() - began < 0.2
        server.release()
        attackers += [asyncio.create_task(code(verifier, jwt)) for jwt in flood[100:]]
        assert set(await asyncio.gather(*attackers)) == {"auth_invalid"}
        assert await code(verifier, valid[0]) == "ok"
    assert len(server.requests) - 1 <= 2


async def test_the_cooldown_of_unknown_kids_ends(server: KeyServer) -> None:
    """In the cooldown an unknown kid is refused without a request; after it the next one asks."""
    clock = Clock()
    async with verifying(server, clock) as verifier:
        assert await verifier.refresh() is None
        assert await code(verifier, K3.sign()) == "auth_invalid"
        server.publish(K1, K2)
        assert await code(verifier, K2.sign()) == "auth_invalid"
        assert len(server.requests) == 2
        clock.now += LIMITS.jwks_unknown_kid_cooldown_s
        assert await code(verifier, K2.sign()) == "ok"
        assert len(server.requests) == 3


async def test_rotation_and_outage(server: KeyServer) -> None:
    """AUT-05: a new key is accepted after one fetch, an outage uses the old set, a removed key is refused after it."""
    server.publish(K1)
    async with verifying(server) as verifier:
        assert await code(verifier, K1.sign()) == "ok"
        server.publish(K1, K2)
        assert await code(verifier, K2.sign()) == "ok"
        assert len(server.requests) == 2
        server.answer = Answer(status=500)
        assert "500" in str(await verifier.refresh())
        assert [await code(verifier, key.sign()) for key in (K1, K2)] == ["ok", "ok"]
        assert await code(verifier, K3.sign()) == "source_unavailable"
        server.publish(K2)
        assert await verifier.refresh() is None
        assert [await code(verifier, key.sign()) for key in (K1, K2)] == ["auth_invalid", "ok"]


async def test_without_any_keys_the_outage_is_told_as_such(server: KeyServer) -> None:
    """AUT-05: no set yet and no answer is retryable; attempts follow the backoff, and the service recovers."""
    clock = Clock()
    server.answer = Answer(status=503)
    async with verifying(server, clock) as verifier:
        codes = [await code(verifier, K1.sign()) for _ in range(50)]
        assert set(codes) == {"source_unavailable"}
        assert len(server.requests) <= 2
        server.publish(K1)
        clock.now += 60
        assert await code(verifier, K1.sign()) == "ok"


async def test_the_service_recovers_from_an_outage_by_itself(server: KeyServer) -> None:
    """After a failure the next attempt comes without a client."""
    server.answer = Answer(status=503)
    async with verifying(server) as verifier:
        assert "503" in str(await verifier.refresh())
        server.publish(K1)
        await asyncio.to_thread(server.wait_for_requests, 2)
        assert await code(verifier, K1.sign()) == "ok"


async def test_an_old_set_ends(server: KeyServer) -> None:
    """Keys that were not confirmed for `jwks_stale_s` let nobody in: that is an outage, not a wrong JWT."""
    clock = Clock()
    async with verifying(server, clock) as verifier:
        assert await verifier.refresh() is None
        server.answer = Answer(status=500)
        clock.now += LIMITS.jwks_stale_s - 1
        assert await verifier.refresh() is not None
        assert await code(verifier, K1.sign()) == "ok"
        clock.now += 1
        assert await code(verifier, K1.sign()) == "source_unavailable"


async def test_an_empty_set_removes_all_keys(server: KeyServer) -> None:
    """A set without a usable key is taken at its word, and as nobody could be let in it is an outage."""
    async with verifying(server) as verifier:
        assert await code(verifier, K1.sign()) == "ok"
        server.publish()
        assert "no usable key" in str(await verifier.refresh())
        assert await code(verifier, K1.sign()) == "source_unavailable"
        server.publish(K1)
        assert await verifier.refresh() is None
        assert await code(verifier, K1.sign()) == "ok"


SMALL = limited(jwks_bytes=20_000, jwks_keys=10, jwks_timeout_s=0.3)
BIG = key_set(K1) + b" " * 30_000
BAD_ANSWERS = {
    "500": Answer(status=500, body=key_set(K2)),
    "404": Answer(status=404),
    "204": Answer(status=204, length=None),
    "garbage": Answer(body=b"<html>"),
    "not a set": Answer(body=b"[]"),
    "no list": Answer(body=b'{"keys": {}}'),
    "empty": Answer(),
    "deep": Answer(body=b'{"keys":' + b"[" * 9_000),
    "truncated": Answer(body=key_set(K2), length=len(key_set(K2)) + 1),
    "truncated, no length": Answer(body=key_set(K2)[:-1], length=None),
    "too large": Answer(body=BIG),
    "too large, no length": Answer(body=BIG, length=None),
    "too many keys": Answer(body=json.dumps({"keys": [{}] * 11}).encode()),
    "slow body": Answer(body=key_set(K2), length=10_000, drip_s=0.05),
    "other scheme": Answer(status=302, headers={"Location": "file:///etc/hostname"}),
    "loop": Answer(status=302, headers={"Location": "/keys"}),
    "redirect to nowhere": Answer(status=302),
    "bad redirect": Answer(status=302, headers={"Location": "http://[::1"}),
}


@pytest.mark.parametrize("answer", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
async def test_a_bad_answer_changes_nothing(server: KeyServer, answer: Answer) -> None:
    """Whatever is wrong with an answer: the old keys stay, no key of it is used, and a cold start is an outage."""
    reports: list[tuple[str, Any]] = []
    async with verifying(server, limits=SMALL, report=lambda *seen: reports.append(seen)) as verifier:
        assert await verifier.refresh() is None
        server.answer = answer
        assert await verifier.refresh() is not None
        assert [name for name, _ in reports] == ["jwks.changed", "jwks.failed"]
        assert await code(verifier, K1.sign()) == "ok"
        assert await code(verifier, K2.sign()) == "source_unavailable"
    async with verifying(server, limits=SMALL) as cold:
        assert await code(cold, K1.sign()) == "source_unavailable"


async def test_a_server_that_hangs_is_given_up(server: KeyServer) -> None:
    """No answer within `jwks_timeout_s` is a failure; the clients that waited for it are told to come back."""
    server.hold()
    async with verifying(server, limits=SMALL) as verifier:
        async with asyncio.timeout(3):
            codes = await asyncio.gather(*(code(verifier, K1.sign()) for _ in range(20)))
        assert set(codes) == {"source_unavailable"}
        assert len(server.requests) == 1


async def test_a_server_that_is_not_there(server: KeyServer) -> None:
    """A refused connection is an outage."""
    async with verifying(JwksFetch("http://127.0.0.1:1/keys")) as verifier:
        assert await code(verifier, K1.sign()) == "source_unavailable"


async def test_only_a_trusted_key_server_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over TLS the certificate must verify; one of an own authority is trusted by OpenSSL's `SSL_CERT_FILE`."""
    pem = self_signed(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pem)
    with KeyServer(tls) as server:
        server.publish(K1)
        async with verifying(server) as verifier:
            assert "SSLCertVerificationError" in str(await verifier.refresh())
            assert await code(verifier, K1.sign()) == "source_unavailable"
        assert server.requests == []
        monkeypatch.setenv("SSL_CERT_FILE", str(pem))
        async with verifying(server) as verifier:
            assert await code(verifier, K1.sign()) == "ok"
        for name in ("localhost", "127.0.0.2"):
            with pytest.raises(FetchError):
                await JwksFetch(f"https://{name}:{server.port}/keys", timeout_s=2)()


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_peer_that_never_speaks_is_given_up(scheme: str) -> None:
    """The time is bounded in every phase: here the connection stands and nothing comes, not even a handshake."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        fetch = JwksFetch(f"{scheme}://127.0.0.1:{silent.getsockname()[1]}/keys", timeout_s=0.3)
        async with asyncio.timeout(3):
            with pytest.raises(FetchError, match="no answer within"):
                await fetch()


@pytest.mark.parametrize("host", ["localhost:{port}", "127.0.0.2:{port}", "user@127.0.0.1:{other}"])
async def test_a_redirect_to_another_host_is_refused(server: KeyServer, host: str) -> None:
    """A redirect to another name or port is not followed, though good keys are there."""
    with KeyServer() as elsewhere:
        elsewhere.publish(K2)
        server.paths["/good"] = elsewhere.paths["/good"] = Answer(body=key_set(K2))
        location = f"http://{host.format(port=server.port, other=elsewhere.port)}/good"
        server.answer = Answer(status=302, headers={"Location": location})
        with pytest.raises(FetchError, match="another host"):
            await JwksFetch(server.url)()
        assert (server.requests, elsewhere.requests) == (["/keys"], [])


async def test_a_redirect_on_the_same_host_is_followed(server: KeyServer) -> None:
    """Issuers move documents; where scheme, host and port stay, that is followed."""
    server.paths["/moved?v=2"] = server.answer
    server.answer = Answer(status=308, headers={"Location": "/moved?v=2"})
    async with verifying(server) as verifier:
        assert await code(verifier, K1.sign()) == "ok"
    assert server.requests == ["/keys", "/moved?v=2"]


async def test_proxies_of_the_environment_are_not_used(
    server: KeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys come from the configured server, whatever the environment says about proxies."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert await JwksFetch(server.url)() == server.answer.body


async def test_closing_ends_a_fetch_and_its_thread(server: KeyServer) -> None:
    """`aclose` does not wait for the key server, and nothing is fetched afterwards."""
    server.hold()
    async with verifying(server, limits=limited(jwks_timeout_s=60)) as verifier:
        waiting = asyncio.create_task(code(verifier, K1.sign()))
        await asyncio.to_thread(server.wait_for_requests, 1)
        async with asyncio.timeout(5):
            await verifier.aclose()
            assert await waiting == "source_unavailable"
            await asyncio.get_running_loop().shutdown_default_executor()
        assert await code(verifier, K1.sign()) == "source_unavailable"
    assert len(server.requests) == 1


async def test_an_unexpected_error_is_an_outage_too() -> None:
    """A mistake in fetching must not let the next fetch wait for ever."""

    async def fetch() -> bytes:
        raise RuntimeError("secret detail")

    reports: list[tuple[str, Any]] = []
    async with verifying(fetch, report=lambda *seen: reports.append(seen)) as verifier:
        error = await refusal(verifier, K1.sign())
        assert error.code == "source_unavailable" and "secret" not in error.message
        assert "secret" not in str(reports)


STEPS = st.lists(
    st.sampled_from(["add", "refresh", "switch", "remove", "outage", "back", "flood", "wait"]), max_size=40
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
async def test_rotation_in_the_documented_order_refuses_no_valid_client(steps: list[str]) -> None:
    """Publish, wait for a refresh, sign with it, remove the old one: whatever happens in between, valid JWTs pass."""
    pool = [IssuerKey(f"p{number}") for number in range(2)]
    published, signing, seen, working = [K1], K1, {"k1"}, True
    clock = Clock()

    async def fetch() -> bytes:
        if not working:
            raise FetchError("out")
        return key_set(*published)

    async with verifying(fetch, clock) as verifier:
        assert await verifier.refresh() is None
        for step in steps:
            if step == "add" and len(published) == 1 and pool:
                published = [signing, pool.pop()]
            elif step == "refresh" and await verifier.refresh() is None:
                seen = {str(key.kid) for key in published}
            elif step == "switch" and published[-1].kid in seen:
                signing = published[-1]
            elif step == "remove" and signing is not published[0]:
                published = [signing]
            elif step in ("outage", "back"):
                working = step == "back"
            elif step == "flood":
                assert await code(verifier, K3.sign()) in ("auth_invalid", "source_unavailable")
            elif step == "wait":
                clock.now += LIMITS.jwks_refresh_s
            assert await code(verifier, signing.sign()) == "ok"


def hand_made(header: dict[str, Any], secret: bytes) -> str:
    """A JWT that no library would sign: HMAC, under whatever header."""

    def encoded(raw: bytes) -> bytes:
        return base64.urlsafe_b64encode(raw).rstrip(b"=")

    payload = json.dumps({"sub": "alice", "exp": time.time() + 60}).encode()
    signed = encoded(json.dumps(header).encode()) + b"." + encoded(payload)
    return (signed + b"." + encoded(hmac.digest(secret, signed, hashlib.sha256))).decode()
