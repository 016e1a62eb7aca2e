"""Signs a JWT for development (`feedsvc jwt`, `feedsvc demo` and tests). Production JWTs come from your issuer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import jwt

from feedsvc.adapters.jwt.keys import load_signing_key


def sign_development_jwt(
    key: str,
    claims: Mapping[str, Any],
    ttl_s: float,
    *,
    algorithm: str | None = None,
    now_s: float | None = None,
) -> str:
    """A JWT of `claims` plus `iat` and `exp`, unless these are given.

    `key` is an HMAC secret or a PEM private key and decides the algorithm, if none is named. `now_s` is epoch
    seconds, by default the clock's. Raises `JwtKeyError` where the key is unusable, PyJWT's errors where the
    claims cannot be encoded.
    """
    signing_key, default_algorithm = load_signing_key(key)
    issued_at = int(time.time() if now_s is None else now_s)
    payload = {"iat": issued_at, "exp": issued_at + ttl_s, **claims}
    return jwt.encode(payload, signing_key, algorithm=algorithm or default_algorithm)
