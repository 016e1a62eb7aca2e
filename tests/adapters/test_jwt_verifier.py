from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

import jwt as pyjwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from feedsvc.adapters.jwt import JwtKey, JwtKeyError, JwtVerifier, jwt_key_problems, sign_development_jwt
from feedsvc.ports import AuthError, Claims

NOW = 1_700_000_000.0
SECRET = "an HMAC secret of thirty-two bytes or more"
ISSUER = "https://issuer.example"
AUDIENCE = "feedsvc"
GOOD: Mapping[str, Any] = {"sub": "u1", "iss": ISSUER, "aud": AUDIENCE, "tenant": "t1", "exp": NOW + 60}

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey

RSA_PRIVATE = rsa.generate_private_key(public_exponent=65537, key_size=2048)
RSA_OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_PRIVATE = ec.generate_private_key(ec.SECP256R1())
ED_PRIVATE = ed25519.Ed25519PrivateKey.generate()
PRIVATE_KEYS: dict[str, PrivateKey] = {"RS256": RSA_PRIVATE, "ES256": EC_PRIVATE, "EdDSA": ED_PRIVATE}


def public_pem(key: PrivateKey) -> str:
    return (
        key.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode()
    )


def private_pem(key: PrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def encodings(key: PrivateKey) -> dict[str, bytes]:
    """The public key as an attacker, or a mistaken operator, could use it for a secret."""
    public = key.public_key()
    der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    pem = public_pem(key)
    algorithm = next(name for name, candidate in PRIVATE_KEYS.items() if candidate is key)
    jwk = pyjwt.get_algorithm_by_name(algorithm).to_jwk(public, as_dict=True)
    return {
        "pem": pem.encode(),
        "pem without end": pem.strip().encode(),
        "pem, escaped": pem.strip().replace("\n", "\\n").encode(),
        "der, base64": base64.b64encode(der),
        "der, base64 lines": base64.encodebytes(der),
        "der": der,
        "ssh": public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH),
        "jwk": json.dumps(jwk).encode(),
        "jwks": json.dumps({"keys": [jwk]}).encode(),
    }


def encoded(part: object) -> bytes:
    raw = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


def hmac_jwt(payload: object, secret: bytes = SECRET.encode(), **header: object) -> str:
    """A JWT signed by hand: PyJWT would refuse to make most of these."""
    signing_input = encoded({"alg": "HS256", "typ": "JWT", **header}) + b"." + encoded(payload)
    return (signing_input + b"." + encoded(hmac.digest(secret, signing_input, hashlib.sha256))).decode()


def verifier(key: JwtKey | None = None, **options: Any) -> JwtVerifier:
    options.setdefault("clock_wall", lambda: NOW)
    return JwtVerifier(key or JwtKey.from_secret(SECRET), **options)


def strict() -> JwtVerifier:
    return verifier(issuer=ISSUER, audiences=[AUDIENCE])


async def refusal(check: JwtVerifier, jwt: str) -> AuthError:
    with pytest.raises(AuthError) as caught:
        await check.verify(jwt)
    assert caught.value.__context__ is None, "an exception in the chain could show the JWT in a log"
    return caught.value


async def test_the_claims_of_a_valid_jwt() -> None:
    """Subject, end, scopes and the whole payload come back."""
    claims = await strict().verify(hmac_jwt({**GOOD, "scope": "orders:read  a"}))
    assert claims == Claims(
        "u1", NOW + 60, frozenset({"orders:read", "a"}), {**GOOD, "scope": "orders:read  a"}
    )


@pytest.mark.parametrize("algorithm", PRIVATE_KEYS)
async def test_public_keys_verify(algorithm: str) -> None:
    """RSA, elliptic curve and Edwards keys verify their own algorithm, PEM line breaks may be escaped."""
    key = PRIVATE_KEYS[algorithm]
    jwt = pyjwt.encode(dict(GOOD), key, algorithm=algorithm)
    for pem in (public_pem(key), public_pem(key).replace("\n", "\\n")):
        assert (await verifier(JwtKey.from_public_key(pem)).verify(jwt)).subject == "u1"


@pytest.mark.parametrize("algorithm", PRIVATE_KEYS)
async def test_public_key_as_hmac_secret_is_refused(algorithm: str) -> None:
    """AUT-03: an HS256 signature made with any encoding of the public key does not verify."""
    key = PRIVATE_KEYS[algorithm]
    check = verifier(JwtKey.from_public_key(public_pem(key)))
    for secret in encodings(key).values():
        error = await refusal(check, hmac_jwt(GOOD, secret))
        assert (error.code, error.retryable) == ("auth_invalid", False)
        assert (await refusal(check, hmac_jwt(GOOD, secret, alg=algorithm))).code == "auth_invalid"


@pytest.mark.parametrize("algorithm", PRIVATE_KEYS)
def test_public_key_configured_as_secret_is_refused(algorithm: str) -> None:
    """AUT-03: a secret that is a public key in any text encoding stops the service at start."""
    for name, secret in encodings(PRIVATE_KEYS[algorithm]).items():
        problems = jwt_key_problems(secret.decode("latin-1"), None, [])
        assert any("public key" in problem for problem in problems), name


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "", None, "hs256", "HS384", "HS512", "RS256", 5])
@pytest.mark.parametrize("signed", [True, False])
async def test_other_algorithms_are_refused(alg: object, signed: bool) -> None:
    """AUT-03: only the pinned algorithm is accepted, `none` in no spelling, with or without a signature."""
    jwt = hmac_jwt(GOOD, alg=alg)
    error = await refusal(verifier(), jwt if signed else jwt.rpartition(".")[0] + ".")
    assert error.code == "auth_invalid"


@pytest.mark.parametrize("header", ["jwk", "jku", "x5u", "kid"])
async def test_keys_named_by_the_header_are_not_used(header: str) -> None:
    """AUT-03: a JWT signed with a key that its own header brings or points at is refused."""
    jwk = pyjwt.get_algorithm_by_name("RS256").to_jwk(RSA_OTHER.public_key(), as_dict=True)
    value = jwk if header == "jwk" else "http://127.0.0.1:9/attacker"
    jwt = pyjwt.encode(dict(GOOD), RSA_OTHER, algorithm="RS256", headers={header: value})
    error = await refusal(verifier(JwtKey.from_public_key(public_pem(RSA_PRIVATE))), jwt)
    assert "signature" in error.message


@pytest.mark.parametrize(
    "header", [{"crit": ["b64"], "b64": True}, {"crit": ["exp"]}, {"crit": []}, {"b64": False}]
)
async def test_critical_extensions_are_refused(header: dict[str, Any]) -> None:
    """RFC 7515 section 4.1.11: an extension that is not understood makes the JWT invalid."""
    assert (await refusal(verifier(), hmac_jwt(GOOD, **header))).code == "auth_invalid"


@pytest.mark.parametrize(
    "audience",
    [
        pytest.param([AUDIENCE, "other"], id="list with ours"),
        pytest.param(AUDIENCE, id="exact"),
    ],
)
async def test_audience_matches(audience: object) -> None:
    """AUT-07: the exact string, or a list that has it."""
    assert (await strict().verify(hmac_jwt({**GOOD, "aud": audience}))).subject == "u1"


@pytest.mark.parametrize(
    "audience",
    [
        ["other"],
        "feedsvc2",
        "feed",
        "my feedsvc",
        "FEEDSVC",
        "",
        [],
        None,
        5,
        {"feedsvc": 1},
        [AUDIENCE, 5],
        [[AUDIENCE]],
    ],
)
async def test_audience_does_not_match(audience: object) -> None:
    """AUT-07: neither a part nor an extension of the audience, nor another type."""
    error = await refusal(strict(), hmac_jwt({**GOOD, "aud": audience}))
    assert error.code == "auth_invalid"
    assert "aud" in error.message


@pytest.mark.parametrize(
    "issuer", ["https://issuer.exampl", ISSUER + "/", "https", "", [ISSUER], None, 5, {ISSUER: 1}]
)
async def test_issuer_does_not_match(issuer: object) -> None:
    """AUT-07: the issuer is one exact string."""
    error = await refusal(strict(), hmac_jwt({**GOOD, "iss": issuer}))
    assert error.code == "auth_invalid"
    assert "iss" in error.message


@pytest.mark.parametrize("missing", ["iss", "aud", "exp"])
async def test_missing_claims_are_refused(missing: str) -> None:
    """AUT-07: a claim that is checked must be there."""
    payload = {name: value for name, value in GOOD.items() if name != missing}
    error = await refusal(strict(), hmac_jwt(payload))
    assert error.code == "auth_invalid"
    assert missing in error.message


async def test_issuer_and_audience_are_optional_in_the_configuration() -> None:
    """Without a configured issuer and audience, both claims may be anything."""
    assert (await verifier().verify(hmac_jwt({**GOOD, "iss": 1, "aud": ["x"]}))).subject == "u1"


@pytest.mark.parametrize("expiry", [NOW, NOW - 1, 0, -5, NOW - 0.001])
async def test_expired(expiry: float) -> None:
    """`exp` is the first second in which the JWT is not accepted; leeway does not move it."""
    assert (await refusal(verifier(leeway_s=300), hmac_jwt({**GOOD, "exp": expiry}))).code == "auth_expired"


async def test_an_expired_and_wrong_jwt_is_invalid() -> None:
    """A JWT that is both expired and wrong is `auth_invalid`: a new one of that kind would not help."""
    error = await refusal(strict(), hmac_jwt({**GOOD, "exp": NOW - 9, "aud": "other"}))
    assert error.code == "auth_invalid"


@pytest.mark.parametrize("name", ["exp", "nbf", "iat"])
@pytest.mark.parametrize("value", ["1700000060", True, None, [], {}, 2**60, -(2**70)])
async def test_times_must_be_numbers(name: str, value: object) -> None:
    """A NumericDate is a number of a sensible size and nothing else."""
    error = await refusal(verifier(), hmac_jwt({**GOOD, name: value}))
    assert error.code == "auth_invalid"
    assert name in error.message


@pytest.mark.parametrize("name", ["nbf", "iat"])
async def test_leeway(name: str) -> None:
    """`nbf` and `iat` may lie ahead by the leeway and no more."""
    check = verifier(leeway_s=30)
    assert (await check.verify(hmac_jwt({**GOOD, name: NOW + 30}))).subject == "u1"
    assert (await refusal(check, hmac_jwt({**GOOD, name: NOW + 31}))).code == "auth_invalid"


@pytest.mark.parametrize("subject", [None, "", 5, ["u1"], {"id": "u1"}])
async def test_subject_must_be_a_string(subject: object) -> None:
    """`sub` may be absent, but not be anything else than a non-empty string."""
    assert (await refusal(verifier(), hmac_jwt({**GOOD, "sub": subject}))).code == "auth_invalid"
    without = {name: value for name, value in GOOD.items() if name != "sub"}
    assert (await verifier().verify(hmac_jwt(without))).subject is None


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ("a b", {"a", "b"}),
        (["a", "b c"], {"a", "b c"}),
        ("", set()),
        ([], set()),
        (None, set()),
        ("a\tb", {"a\tb"}),
    ],
)
async def test_scopes(scope: object, expected: set[str]) -> None:
    """`scope` is a string split at spaces, or an array; `scp` is another product's claim."""
    claims = await verifier().verify(hmac_jwt({**GOOD, "scope": scope, "scp": "admin"}))
    assert claims.scopes == expected


@pytest.mark.parametrize("scope", [5, {"a": 1}, ["a", 5], True])
async def test_malformed_scope(scope: object) -> None:
    """A scope of another type refuses the JWT; it is not read as no scope."""
    assert (await refusal(verifier(), hmac_jwt({**GOOD, "scope": scope}))).code == "auth_invalid"


@pytest.mark.parametrize(
    "payload", [[], "text", 5, None, b"", b"{", b"\xff\xfe", b'{"exp": NaN}', b'{"exp": 1e999}', b"[" * 5000]
)
async def test_payload_must_be_an_object(payload: object) -> None:
    """A signed payload that is not a JSON object is refused like any other."""
    assert (await refusal(verifier(), hmac_jwt(payload))).code == "auth_invalid"


async def test_size_is_bounded() -> None:
    """A JWT over 8 KiB is refused before anything is parsed, one below is accepted."""
    assert (await verifier().verify(hmac_jwt({**GOOD, "pad": "x" * 5000}))).subject == "u1"
    error = await refusal(verifier(), hmac_jwt({**GOOD, "pad": "x" * 8192}))
    assert "8192" in error.message


@given(
    st.text(max_size=200) | st.from_regex(r"[A-Za-z0-9_-]{0,40}(\.[A-Za-z0-9_=-]{0,40}){1,4}", fullmatch=True)
)
async def test_garbage_is_refused(jwt: str) -> None:
    """Whatever a peer sends ends in `auth_invalid`."""
    assert (await refusal(verifier(), jwt)).code == "auth_invalid"


@given(st.integers(min_value=0), st.integers(min_value=1, max_value=255))
async def test_each_changed_byte_is_refused(index: int, change: int) -> None:
    """No byte of header, payload or signature can change."""
    valid = hmac_jwt(GOOD)
    position = index % len(valid)
    changed = valid[:position] + chr((ord(valid[position]) + change) % 256) + valid[position + 1 :]
    assert (await refusal(verifier(), changed)).code == "auth_invalid"


@pytest.mark.parametrize(
    "payload",
    [
        {**GOOD, "exp": NOW - 5},
        {**GOOD, "aud": "confidential"},
        {**GOOD, "scope": 77123},
        {**GOOD, "sub": {"a": "b"}},
    ],
)
async def test_messages_tell_nothing(payload: dict[str, Any]) -> None:
    """AUT-10: neither the JWT nor a value of its payload is in the message."""
    jwt = hmac_jwt(payload)
    error = await refusal(strict(), jwt)
    assert not any(part in error.message for part in jwt.split("."))
    assert not any(str(value) in error.message for name, value in payload.items() if name != "aud")
    assert "confidential" not in error.message


def test_configured_algorithms_stay_in_the_family() -> None:
    """A list narrows or chooses inside the key's family and never mixes families."""
    rsa_pem, ec_pem = public_pem(RSA_PRIVATE), public_pem(EC_PRIVATE)
    assert JwtKey.from_public_key(rsa_pem).algorithms == ("RS256",)
    assert JwtKey.from_public_key(rsa_pem, ["RS384", "PS256"]).algorithms == ("RS384", "PS256")
    assert JwtKey.from_secret("x" * 64, ["HS512"]).algorithms == ("HS512",)
    for wanted in (["HS256"], ["RS256", "HS256"], ["ES256"], ["none"], ["RS999"]):
        assert jwt_key_problems(None, rsa_pem, wanted)
    assert jwt_key_problems(None, ec_pem, ["ES384"])
    assert jwt_key_problems(SECRET, None, ["RS256"])
    assert jwt_key_problems(SECRET, None, ["HS256"]) == []


@pytest.mark.parametrize(("algorithm", "size"), [("HS256", 32), ("HS384", 48), ("HS512", 64)])
def test_short_secrets_are_refused(algorithm: str, size: int) -> None:
    """RFC 7518 section 3.2: a secret is at least as long as the hash, counted in bytes."""
    assert jwt_key_problems("x" * size, None, [algorithm]) == []
    (problem,) = jwt_key_problems("x" * (size - 1), None, [algorithm])
    assert str(size) in problem
    assert jwt_key_problems("é" * (size // 2), None, [algorithm]) == []


def test_unusable_public_keys() -> None:
    """Private, small, foreign and broken keys are refused, and no problem shows the key."""
    small = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    curve = ec.generate_private_key(ec.SECP224R1())
    for pem in (private_pem(RSA_PRIVATE), public_pem(small), public_pem(curve), "text", "", SECRET):
        with pytest.raises(JwtKeyError) as caught:
            JwtKey.from_public_key(pem)
        body = pem.split("\n")[1] if "\n" in pem else SECRET
        assert body not in str(caught.value)


def test_key_is_not_shown() -> None:
    """The key's `repr` names algorithms only."""
    assert repr(JwtKey.from_secret(SECRET)) == "JwtKey(HS256)"


@pytest.mark.parametrize("kind", ["secret", *PRIVATE_KEYS])
async def test_development_jwt(kind: str) -> None:
    """A signed development JWT verifies with the matching key and lives `ttl_s`."""
    if kind == "secret":
        signing, key = SECRET, JwtKey.from_secret(SECRET)
    else:
        private = PRIVATE_KEYS[kind]
        signing, key = private_pem(private), JwtKey.from_public_key(public_pem(private))
    jwt = sign_development_jwt(signing, {"tenant": "t1"}, 90, now_s=NOW)
    claims = await verifier(key).verify(jwt)
    assert claims.expires_at == NOW + 90
    assert claims.claims == {"tenant": "t1", "iat": NOW, "exp": NOW + 90}


def test_development_jwt_needs_a_usable_key() -> None:
    """The same rules hold for signing: no short secret, no broken private key."""
    for key in ("short", private_pem(RSA_PRIVATE).replace("MII", "XXX", 1)):
        with pytest.raises(JwtKeyError):
            sign_development_jwt(key, {}, 60)
