"""Credentials and origins on a served process: who gets in, for how long, and what is never logged."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import quote

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.e2e.conftest import Documents, StartService
from tests.support.service import JWT_SECRET, Client, Service, client_of, make_jwt

ORIGIN = "https://app.example"
SUBPROTOCOL = "feedsvc.v1"


@pytest.fixture(scope="module")
def service(start_for_module: StartService) -> Service:
    return start_for_module(allowed_origins=f"{ORIGIN},http://localhost:3000")


@contextlib.asynccontextmanager
async def socket_of(
    service: Service,
    *,
    jwt: str | None = None,
    subprotocols: Sequence[str] | None = None,
    query: str = "",
    **headers: str,
) -> AsyncIterator[Client]:
    """A bare connection, with `jwt` as Bearer header where it is given. Raises InvalidStatus."""
    if jwt is not None:
        headers["Authorization"] = f"Bearer {jwt}"
    async with connect(
        service.url + query,
        additional_headers=headers,
        subprotocols=subprotocols,  # type: ignore[arg-type]
        proxy=None,
    ) as socket:
        yield Client(socket)


async def refusal(service: Service, **arguments: Any) -> tuple[int, str, str]:
    """Status, content type and registry code of a refused upgrade."""
    with pytest.raises(InvalidStatus) as refused:
        async with socket_of(service, **arguments):
            pass
    response = refused.value.response
    body = json.loads(response.body or b"{}")
    assert body["status"] == response.status_code
    return response.status_code, response.headers["content-type"], body["code"]


# -- where credentials may stand --------------------------------------------------------------------------------


async def test_a_jwt_in_the_header_is_welcomed(service: Service, fresh_database: str) -> None:
    jwt = make_jwt(fresh_database, ttl_s=100)
    async with socket_of(service, jwt=jwt) as client:
        welcome = await client.receive()
        assert welcome["type"] == "welcome"
        assert welcome["authExpiresAt"] == pytest.approx(1000 * (time.time() + 100), abs=5_000)
        assert client.socket.subprotocol is None


async def test_a_jwt_in_the_subprotocol_is_welcomed_and_never_echoed(
    service: Service, fresh_database: str
) -> None:
    jwt = make_jwt(fresh_database)
    async with socket_of(service, subprotocols=[f"bearer.{jwt}", SUBPROTOCOL]) as client:
        assert (await client.receive())["type"] == "welcome"
        assert client.socket.subprotocol == SUBPROTOCOL
        assert client.socket.response is not None
        assert jwt not in str(client.socket.response.headers)


async def test_a_jwt_in_the_first_frame_is_welcomed_and_frames_behind_it_are_kept_in_order(
    service: Service, fresh_database: str
) -> None:
    async with socket_of(service, subprotocols=[SUBPROTOCOL]) as client:
        await client.send({"type": "auth", "jwt": make_jwt(fresh_database)})
        await client.send({"type": "ping"})
        await client.send({"type": "subscribe", "id": "one", "topic": {"collection": "orders"}})
        await client.send({"type": "ping"})
        types = [(await client.receive())["type"] for _ in range(5)]
        assert types[:3] == ["welcome", "pong", "subscribed"]
        assert sorted(types[3:]) == ["live", "pong"]


async def test_a_subprotocol_without_ours_is_a_bad_request(service: Service, fresh_database: str) -> None:
    assert await refusal(service, subprotocols=["graphql-ws"]) == (
        400,
        "application/problem+json",
        "bad_request",
    )


async def test_no_credentials_for_ten_seconds_close_with_4100_whatever_is_sent_before(
    service: Service,
) -> None:
    began = time.monotonic()
    async with socket_of(service) as client:
        pings = asyncio.create_task(keep_pinging(client))
        code, _ = await client.closed()
        pings.cancel()
        assert code == 4100
        assert 9 < time.monotonic() - began < 12
        assert client.seen == []


async def keep_pinging(client: Client) -> None:
    """WebSocket pings do not extend the time."""
    while True:
        await (await client.socket.ping())


@pytest.mark.parametrize("jwt", ["", "nonsense", "a.b.c"])
async def test_an_invalid_first_auth_closes_with_4102(service: Service, jwt: str) -> None:
    async with socket_of(service) as client:
        await client.send({"type": "auth", "jwt": jwt})
        assert (await client.closed())[0] == 4102
        assert client.seen == []


async def test_an_expired_first_auth_closes_with_4102_as_any_invalid_one(
    service: Service, fresh_database: str
) -> None:
    async with socket_of(service) as client:
        await client.send({"type": "auth", "jwt": make_jwt(fresh_database, ttl_s=-1)})
        assert (await client.closed())[0] == 4102


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"ping"}',
        '{"type":"subscribe","id":"a","topic":{"collection":"c"}}',
        "{}",
        "?",
        '{"type":"auth"}',
    ],
)
async def test_another_first_frame_closes_with_4000(service: Service, text: str) -> None:
    async with socket_of(service) as client:
        await client.socket.send(text)
        assert (await client.closed())[0] == 4000
        assert client.seen == []


async def test_a_frame_over_4_kib_before_welcome_closes_with_1009(
    service: Service, fresh_database: str
) -> None:
    async with socket_of(service) as client:
        await client.send({"type": "auth", "jwt": make_jwt(fresh_database), "more": "x" * 4096})
        assert (await client.closed())[0] == 1009
        assert client.seen == []


@pytest.mark.parametrize(
    ("authorization", "code"),
    [
        ("Bearer nonsense", "auth_invalid"),
        ("Bearer ", "auth_invalid"),
        ("Basic YTpi", "auth_invalid"),
        ("Bearer {expired}", "auth_expired"),
        ("Bearer {other_key}", "auth_invalid"),
        ("Bearer {no_tenant}", "auth_invalid"),
        ("Bearer {unsigned}", "auth_invalid"),
    ],
)
async def test_a_bad_header_is_401_before_the_upgrade(
    service: Service, fresh_database: str, authorization: str, code: str
) -> None:
    jwts = {
        "expired": make_jwt(fresh_database, ttl_s=-1),
        "other_key": make_jwt(fresh_database, key="k" * 40),
        "no_tenant": make_jwt("../x"),
        "unsigned": make_jwt(fresh_database, key=None, algorithm="none"),
    }
    header = authorization.format(**jwts)
    assert await refusal(service, Authorization=header) == (401, "application/problem+json", code)


@pytest.mark.parametrize("name", ["jwt", "token", "access_token", "q"])
async def test_a_jwt_in_the_url_is_refused_and_not_logged(
    service: Service, fresh_database: str, name: str
) -> None:
    jwt = make_jwt(fresh_database)
    assert (await refusal(service, query=f"?{name}={quote(jwt)}"))[::2] == (400, "auth_in_url")
    assert (await refusal(service, query=f"?{name}={jwt}", jwt=jwt))[::2] == (400, "auth_in_url")
    assert jwt not in service.log()
    assert jwt.rpartition(".")[2] not in service.log()


# -- origins ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", [ORIGIN, "http://localhost:3000", None])
async def test_an_allowed_origin_or_none_is_served(
    service: Service, fresh_database: str, origin: str | None
) -> None:
    headers = {} if origin is None else {"Origin": origin}
    async with socket_of(service, jwt=make_jwt(fresh_database), **headers) as client:
        assert (await client.receive())["type"] == "welcome"


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "",
        "https://app.example.evil.example",
        "https://evilapp.example",
        "https://app.example:8443",
        "http://app.example",
        "https://APP.example",
        "https://app.example/",
        "https://app.example, https://evil.example",
    ],
)
@pytest.mark.parametrize("authenticated", [True, False], ids=["with a JWT", "without"])
async def test_any_other_origin_is_refused_before_the_upgrade(
    service: Service, fresh_database: str, origin: str, authenticated: bool
) -> None:
    jwt = make_jwt(fresh_database) if authenticated else None
    assert (await refusal(service, jwt=jwt, Origin=origin))[::2] == (403, "forbidden")


# -- algorithms -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
async def test_a_public_key_service_takes_its_own_algorithm_and_no_other(
    start_service: StartService, database: Documents, fresh_database: str, algorithm: str
) -> None:
    keys: dict[str, Any] = {
        "RS256": lambda: rsa.generate_private_key(public_exponent=65537, key_size=2048),
        "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
        "EdDSA": ed25519.Ed25519PrivateKey.generate,
    }
    private = keys[algorithm]()
    pem = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    service = start_service(jwt_secret="", jwt_public_key=pem.decode())
    async with socket_of(service, jwt=make_jwt(fresh_database, key=private, algorithm=algorithm)) as client:
        assert (await client.receive())["type"] == "welcome"
        await client.subscribe("orders")
        database["orders"].insert_one({"_id": 1})
        await client.events(1)
    for jwt in (
        make_jwt(fresh_database, key=keys[algorithm](), algorithm=algorithm),
        make_jwt(fresh_database),
        make_jwt(fresh_database, key=None, algorithm="none"),
        confused(fresh_database, pem),
    ):
        assert (await refusal(service, jwt=jwt))[::2] == (401, "auth_invalid")


def confused(tenant: str, pem: bytes) -> str:
    """A JWT signed with HMAC and the public key's text as its secret, which PyJWT itself refuses to make."""

    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    signed = f"{part({'alg': 'HS256', 'typ': 'JWT'})}.{part({'tenant': tenant, 'exp': time.time() + 60})}"
    mac = hmac.new(pem, signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


# -- the policy and the log ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ({"collection": "system.views"}, "unknown_collection"),
        ({"collection": "orders", "database": "admin"}, "forbidden"),
        ({"collection": ""}, "unknown_collection"),
    ],
)
async def test_what_the_policy_does_not_name_is_refused(
    service: Service, fresh_database: str, topic: dict[str, Any], code: str
) -> None:
    async with client_of(service, fresh_database) as client:
        await client.send({"type": "subscribe", "id": "x", "topic": topic})
        assert (await client.until("error"))["code"] == code


async def test_neither_a_jwt_nor_a_key_is_logged(service: Service, fresh_database: str) -> None:
    good, bad = make_jwt(fresh_database), make_jwt(fresh_database, key="k" * 40)
    async with socket_of(service, jwt=good) as client:
        await client.send({"type": "auth", "jwt": bad})
        await client.until("error")
    async with socket_of(service, subprotocols=[f"bearer.{good}", SUBPROTOCOL]) as client:
        await client.receive()
    for jwt in (good, bad):
        async with socket_of(service) as client:
            await client.send({"type": "auth", "jwt": jwt})
            await client.send({"type": "unsubscribe", "topic": jwt})
            with contextlib.suppress(ConnectionClosed):
                await client.until("error")
        assert (await refusal(service, query=f"?ticket={jwt}"))[0] in (400, 401)
    assert (await refusal(service, subprotocols=[f"bearer.{bad}", SUBPROTOCOL]))[0] == 401
    log = service.log()
    assert "connection.closed" in log
    for secret in (
        JWT_SECRET,
        service.token_keys.rstrip("="),
        "eyJ",
        good.rpartition(".")[2],
        bad.rpartition(".")[2],
    ):
        assert secret not in log
