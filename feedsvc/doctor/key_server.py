"""Asks the key server once, with what the service asks with."""

from __future__ import annotations

from feedsvc.adapters.jwt.jwk import KeySetError, parse_key_set
from feedsvc.adapters.jwt.jwks_fetch import FetchError, JwksFetch
from feedsvc.core.limits import Limits
from feedsvc.doctor.findings import Findings
from feedsvc.settings import JwtSettings


async def key_server_findings(findings: Findings, jwt: JwtSettings | None, limits: Limits) -> None:
    """Bounded by `jwks_timeout_s`. The settings have been checked: their algorithms fit public keys."""
    if jwt is None or jwt.jwks_url is None:
        reason = "the JWT keys have a problem" if jwt is None else "no key server is configured"
        findings.skip(("jwks",), reason)
        return
    fetch = JwksFetch(jwt.jwks_url, timeout_s=limits.jwks_timeout_s, max_bytes=limits.jwks_bytes)
    try:
        keys = parse_key_set(await fetch(), jwt.algorithms, max_keys=limits.jwks_keys)
    except FetchError as error:
        findings.add("jwks", "error", f"the key server gives no keys: {error}")
        return
    except KeySetError as error:
        findings.add(
            "jwks",
            "error",
            str(error),
            remedy="FEEDSVC_JWKS_URL is the address of the JWK set itself: `jwks_uri` in the issuer's metadata.",
        )
        return
    for reason in keys.ignored:
        findings.add(
            "jwks",
            "warning",
            f"left out: {reason}",
            remedy="Nothing, if another service uses it; else publish a public key for signatures.",
        )
    if not keys.keys:
        findings.add(
            "jwks",
            "error",
            "the key server publishes no usable key",
            remedy="Publish an RSA, elliptic curve or Edwards public key for signatures, of an algorithm in "
            "FEEDSVC_JWT_ALGORITHMS.",
        )
        return
    algorithms = sorted({algorithm for published in keys.keys for algorithm in published.key.algorithms})
    findings.add("jwks", "ok", f"{len(keys.keys)} usable keys, pinned to {', '.join(algorithms)}")
