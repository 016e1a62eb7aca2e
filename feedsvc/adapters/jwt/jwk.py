"""A JWK set (RFC 7517) as verification keys, each pinned to its algorithms, and the header that selects one.

Only public keys for signatures come in: a symmetric key, a private key, a key for encryption or of an unknown kind is
left out and named in `KeySet.ignored`, because one odd key must not take the others away (RFC 7517 section 5). A
document that is not a key set, or is too large a one, raises `KeySetError`. Certificates (`x5c`, `x5u`) are not read.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from jwt.exceptions import PyJWTError

from feedsvc.adapters.jwt.keys import JwtKey, JwtKeyError, algorithm_family

_LOADERS = {"RSA": RSAAlgorithm.from_jwk, "EC": ECAlgorithm.from_jwk, "OKP": OKPAlgorithm.from_jwk}
_KID_CHARS = 256
"""Key ids are names or digests of tens of characters; longer ones are not looked up."""


class KeySetError(ValueError):
    """The document is no key set. The message is for the operator and holds nothing of the document."""


class JwtHeader(msgspec.Struct, frozen=True):
    """What a JWT says about its own key. It selects among trusted keys and brings none."""

    alg: str
    kid: str | None = None


class PublishedKey(msgspec.Struct, frozen=True):
    kid: str | None
    key: JwtKey


class KeySet(msgspec.Struct, frozen=True):
    """The usable keys in their published order. `ignored` says for each other one why, by its place from 1."""

    keys: tuple[PublishedKey, ...]
    ignored: tuple[str, ...] = ()

    def candidates(self, header: JwtHeader) -> list[int]:
        """Indexes of the keys that the header may mean: at most one where it has a `kid`, else maybe more."""
        return [
            index
            for index, published in enumerate(self.keys)
            if header.alg in published.key.algorithms and header.kid in (None, published.kid)
        ]

    def names(self, kid: str) -> bool:
        """Whether there is a key of that name, for whatever algorithm."""
        return any(published.kid == kid for published in self.keys)


def parse_jwt_header(jwt: str) -> JwtHeader | None:
    """The header of a JWT in compact form; None where it has none that can be read."""
    encoded = jwt.partition(".")[0]
    try:
        header = msgspec.json.decode(
            base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)), type=JwtHeader
        )
    except (ValueError, RecursionError):
        return None
    if header.kid is not None and not 0 < len(header.kid) <= _KID_CHARS:
        return None
    return header


def parse_key_set(document: bytes, algorithms: Collection[str], *, max_keys: int) -> KeySet:
    """The key set in a JSON document. `algorithms` narrow what each key may verify; none means no narrowing.

    Raises `KeySetError`.
    """
    try:
        decoded = msgspec.json.decode(document)
    except (ValueError, RecursionError):
        raise KeySetError("the answer is not JSON") from None
    jwks = decoded.get("keys") if isinstance(decoded, dict) else None
    if not isinstance(jwks, list):
        raise KeySetError("the answer is not a JWK set")
    if len(jwks) > max_keys:
        raise KeySetError(f"the JWK set has more than {max_keys} keys")
    keys: list[PublishedKey] = []
    ignored: list[str] = []
    taken: set[tuple[str | None, str]] = set()
    for number, jwk in enumerate(jwks, start=1):
        try:
            published = _published_key(jwk, algorithms)
            names = {(published.kid, algorithm) for algorithm in published.key.algorithms}
            if published.kid is not None and not names.isdisjoint(taken):
                raise JwtKeyError(["its kid is there before"])
        except JwtKeyError as error:
            ignored.append(f"key {number}: {error}")
        else:
            taken |= names
            keys.append(published)
    return KeySet(tuple(keys), tuple(ignored))


def _published_key(jwk: object, algorithms: Collection[str]) -> PublishedKey:
    """Raises `JwtKeyError` where the key is not for verifying JWTs here."""
    if not isinstance(jwk, dict):
        raise JwtKeyError(["it is not an object"])
    kid = jwk.get("kid")
    if kid is not None and not (isinstance(kid, str) and 0 < len(kid) <= _KID_CHARS):
        raise JwtKeyError([f"its kid is not a string of 1 to {_KID_CHARS} characters"])
    if jwk.get("use", "sig") != "sig":
        raise JwtKeyError(["its use is not sig"])
    operations = jwk.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        raise JwtKeyError(["its key_ops do not hold verify"])
    material, family, kind = algorithm_family(_load(jwk))
    named = jwk.get("alg")
    if named is not None and named not in family:
        raise JwtKeyError([f"its alg does not fit {kind}"])
    return PublishedKey(kid, JwtKey(material, _pinned(family, named, algorithms, kind)))


def _pinned(
    family: Sequence[str], named: str | None, algorithms: Collection[str], kind: str
) -> tuple[str, ...]:
    """What the key may verify: the one it names, else what is configured of its family, else the family's first."""
    candidates = family if named is None else (named,)
    if not algorithms:
        if not candidates:
            raise JwtKeyError([f"{kind} has no JWT algorithm"])
        return (candidates[0],)
    chosen = tuple(algorithm for algorithm in candidates if algorithm in algorithms)
    if not chosen:
        raise JwtKeyError([f"FEEDSVC_JWT_ALGORITHMS has none for {kind}"])
    return chosen


def _load(jwk: Mapping[str, Any]) -> object:
    """A key of `cryptography`."""
    key_type = jwk.get("kty")
    if key_type == "oct":
        raise JwtKeyError(["it is symmetric: who can read it can sign"])
    load = _LOADERS.get(key_type) if isinstance(key_type, str) else None
    if load is None:
        raise JwtKeyError(["its kty is not RSA, EC or OKP"])
    if "d" in jwk:
        raise JwtKeyError(["it is a private key: who can read it can sign"])
    try:
        return load(dict(jwk))
    except (PyJWTError, UnsupportedAlgorithm, ValueError, TypeError, AttributeError, OverflowError):
        raise JwtKeyError(["its numbers make no key"]) from None
