"""Verifies client JWTs with one configured key (`ports.Verifier`).

PyJWT checks the form and the signature; which algorithm may have made it is pinned by the key (`keys.py`). The header's
`jwk`, `jku`, `x5u` and `kid` choose nothing and are never fetched, a `crit` header is refused. The claims are
checked here, because the clock is an argument and because "is one of" must not become "is part of": issuer and
audience compare as whole strings.

`exp` is required and has no leeway: a clock that runs ahead ends a connection a little early and the client sends
a new JWT, while a leeway would let every JWT outlive its end. `nbf` and `iat` have it, since there a clock that
runs behind would refuse a JWT fresh from its issuer.

No message of an `AuthError` holds any part of the JWT, and none is chained to an exception that does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from jwt import PyJWS
from jwt.exceptions import InvalidAlgorithmError, InvalidSignatureError, PyJWTError

from feedsvc.adapters.jwt.keys import JwtKey
from feedsvc.core.limits import LIMITS
from feedsvc.ports import AuthError, Claims


class JwtVerifier:
    """`issuer` None and no `audiences` accept any; `leeway_s` is for `nbf` and `iat`; `clock_wall` is epoch seconds."""

    def __init__(
        self,
        key: JwtKey,
        *,
        issuer: str | None = None,
        audiences: Sequence[str] = (),
        leeway_s: float = float(LIMITS["jwt_leeway_s"].default),
        clock_wall: Callable[[], float],
        max_bytes: int = int(LIMITS["jwt_bytes"].default),
    ) -> None:
        self._key = key
        self._issuer = issuer
        self._audiences = frozenset(audiences)
        self._leeway_s = leeway_s
        self._clock_wall = clock_wall
        self._max_bytes = max_bytes
        self._signatures = PyJWS(algorithms=key.algorithms)

    async def verify(self, jwt: str) -> Claims:
        """The claims of a valid JWT. Raises `AuthError`: `auth_invalid`, or `auth_expired` if only `exp` is past."""
        payload = _decode_payload(self._signed_payload(jwt))
        subject = payload.get("sub")
        if "sub" in payload and not (isinstance(subject, str) and subject):
            raise _invalid("sub must be a non-empty string")
        scopes = _scopes(payload.get("scope"))
        self._check_issuer(payload.get("iss"))
        self._check_audience(payload.get("aud"))
        expires_at = self._check_times(payload)
        return Claims(subject, expires_at, scopes, payload)

    def _signed_payload(self, jwt: str) -> bytes:
        if len(jwt) > self._max_bytes:
            raise _invalid(f"the JWT is larger than {self._max_bytes} bytes")
        failure = "the JWT is malformed"
        try:
            parts = self._signatures.decode_complete(jwt, self._key.material, list(self._key.algorithms))
        except InvalidAlgorithmError:
            failure = f"the JWT's algorithm is not accepted here ({', '.join(self._key.algorithms)})"
        except InvalidSignatureError:
            failure = "the JWT's signature does not verify"
        except (PyJWTError, ValueError, TypeError, RecursionError):
            pass  # a peer can send anything; the answer is one and the same
        else:
            if "crit" in parts["header"]:
                raise _invalid("the JWT's header has critical extensions, none is supported")
            signed: bytes = parts["payload"]
            return signed
        raise _invalid(failure)

    def _check_issuer(self, issuer: object) -> None:
        if self._issuer is not None and (not isinstance(issuer, str) or issuer != self._issuer):
            raise _invalid("iss is not the issuer configured here")

    def _check_audience(self, audience: object) -> None:
        if not self._audiences:
            return
        named = [audience] if isinstance(audience, str) else audience
        if (
            not isinstance(named, list)
            or not all(isinstance(name, str) for name in named)
            or self._audiences.isdisjoint(named)
        ):
            raise _invalid("aud does not name an audience configured here")

    def _check_times(self, payload: Mapping[str, Any]) -> float:
        """`exp`, after all three times were checked."""
        now = self._clock_wall()
        for name in ("nbf", "iat"):
            if name in payload and _numeric_date(payload, name) > now + self._leeway_s:
                raise _invalid(f"{name} is in the future")
        if "exp" not in payload:
            raise _invalid("exp is missing")
        expires_at = _numeric_date(payload, "exp")
        if expires_at <= now:
            raise AuthError("auth_expired", "the JWT has expired")
        return expires_at


def _invalid(message: str) -> AuthError:
    return AuthError("auth_invalid", message)


def _decode_payload(signed: bytes) -> Mapping[str, Any]:
    try:
        payload = msgspec.json.decode(signed)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        payload = None
    if not isinstance(payload, dict):
        raise _invalid("the JWT's payload is not a JSON object")
    return payload


def _numeric_date(payload: Mapping[str, Any], name: str) -> float:
    """Epoch seconds (RFC 7519 section 2)."""
    value = payload[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= 2**53:
        raise _invalid(f"{name} must be a number of seconds")
    return float(value)


def _scopes(scope: object) -> frozenset[str]:
    """`scope` as RFC 8693 section 4.2 has it, or an array of strings; none if it is absent."""
    if scope is None:
        return frozenset()
    if isinstance(scope, str):
        return frozenset(part for part in scope.split(" ") if part)
    if isinstance(scope, list) and all(isinstance(part, str) for part in scope):
        return frozenset(scope)
    raise _invalid("scope must be a string or an array of strings")
