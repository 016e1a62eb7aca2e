"""JWTs: verifying those of clients, and signing one for development. The only owner of PyJWT."""

from __future__ import annotations

from feedsvc.adapters.jwt.jwks import JwksVerifier
from feedsvc.adapters.jwt.jwks_fetch import JwksFetch
from feedsvc.adapters.jwt.keys import JwtKey, JwtKeyError, jwt_key_problems
from feedsvc.adapters.jwt.signing import sign_development_jwt
from feedsvc.adapters.jwt.verifier import JwtVerifier

__all__ = [
    "JwksFetch",
    "JwksVerifier",
    "JwtKey",
    "JwtKeyError",
    "JwtVerifier",
    "jwt_key_problems",
    "sign_development_jwt",
]
