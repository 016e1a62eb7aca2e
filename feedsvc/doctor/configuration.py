"""What can be said without asking anybody: the configuration, part by part, and this machine."""

from __future__ import annotations

import resource
from collections.abc import Mapping

from feedsvc.adapters.jwt import JwtKey
from feedsvc.adapters.mongo.probe import pool_sizes
from feedsvc.adapters.mongo.uri import ignored_options
from feedsvc.core.limits import Limits
from feedsvc.doctor.catalogue import FEWEST_CLIENTS
from feedsvc.doctor.findings import Findings
from feedsvc.settings import JwtSettings, Part, Reading

_NAMES: Mapping[Part, str] = {
    "service": "service",
    "policy": "policy",
    "jwt": "jwt_keys",
    "token_keys": "token_keys",
    "mongodb": "mongodb_uri",
}
_WHERE_WARNED: Mapping[Part, str] = {
    "service": "Take it out, or correct it: docs/configuration.md has all names.",
    "policy": "If that is not meant: docs/configuration.md, Policy file.",
    "jwt": "Set it to what your issuer puts into its JWTs.",
    "token_keys": "",
    "mongodb": "",
}
_OWN_FILES = 64
"""Of the process itself: libraries, logs, the listening socket, the driver's monitors."""
_FEW_CHARACTERS = 10


def configuration_findings(findings: Findings, reading: Reading) -> None:
    """One finding for each problem and each warning that `feedsvc check` has, else what is there."""
    for part, text in reading.problems:
        findings.add(_NAMES[part], "error", text)
    for part, text in reading.warnings:
        findings.add(_NAMES[part], "warning", text.removeprefix("policy: "), remedy=_WHERE_WARNED[part])
    if reading.jwt is not None:
        _jwt_keys(findings, reading.jwt)
    if reading.policy is not None:
        names = ", ".join(reading.policy.rules)
        findings.add("policy", "ok", f"database {reading.policy.database}, collections {names}")
    if reading.token_keys is not None:
        findings.add("token_keys", "ok", f"{len(reading.token_keys)} of 32 bytes; the first seals, all open")
    if reading.mongodb_uri is not None:
        for name in ignored_options(reading.mongodb_uri.reveal()):
            findings.add("mongodb_uri", "warning", f"the driver passes over the option {name}, or its value")
        findings.add("mongodb_uri", "ok", "can be read")
    if not findings.has_error("service"):
        findings.add("service", "ok", f"scope {reading.tail_scope}, driver {reading.mongo_driver}")


def file_limit_findings(findings: Findings, limits: Limits, hard: int | None = None) -> None:
    """`hard`: the limit instead of this process's own."""
    if hard is None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        findings.add("open_files", "ok", "no limit")
        return
    taken = sum(pool_sizes(limits.max_tails + limits.catch_up_tails)) + limits.waiting_sockets + _OWN_FILES
    room = max(0, hard - taken)
    found = f"{hard:,} files: room for {room:,} clients"
    wanted = limits.connections_per_tenant
    if room < FEWEST_CLIENTS:
        findings.add("open_files", "error", found)
    elif room < wanted:
        findings.add(
            "open_files", "warning", f"{found}, and one tenant may have {wanted:,} (connectionsPerTenant)"
        )
    else:
        findings.add("open_files", "ok", found)


def _jwt_keys(findings: Findings, jwt: JwtSettings) -> None:
    if jwt.secret is not None:
        secret = jwt.secret.reveal()
        key = JwtKey.from_secret(secret, jwt.algorithms)
        if len(set(secret)) < _FEW_CHARACTERS:
            findings.add(
                "jwt_keys",
                "warning",
                f"the JWT secret has fewer than {_FEW_CHARACTERS} different characters: it can be guessed",
            )
        findings.add("jwt_keys", "ok", f"a secret, pinned to {', '.join(key.algorithms)}")
    elif jwt.public_key is not None:
        key = JwtKey.from_public_key(jwt.public_key.reveal(), jwt.algorithms)
        findings.add("jwt_keys", "ok", f"a public key, pinned to {', '.join(key.algorithms)}")
    else:
        pinned = ", ".join(jwt.algorithms) or "each key's own algorithm"
        findings.add("jwt_keys", "ok", f"keys from a key server, pinned to {pinned}")
