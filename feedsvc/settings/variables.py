"""The names of the environment, for the documentation and for finding misspelt ones.

Numbers are in `core/limits.py`; here are the rest. `load.py` reads them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

import msgspec

from feedsvc.core.limits import LIMITS

PREFIX = "FEEDSVC_"
FILE_SUFFIX = "_FILE"
_SERVICE_LINK = re.compile(r"FEEDSVC_(SERVICE|PORT)_[A-Z0-9_]+")
"""What Kubernetes adds to pods beside a Service that is named `feedsvc`."""


class Variable(msgspec.Struct, frozen=True):
    """`secret` ones also exist as `NAME_FILE`. `default` is text for the reader."""

    name: str
    default: str
    meaning: str
    secret: bool = False


VARIABLES: tuple[Variable, ...] = (
    Variable(
        "FEEDSVC_MONGODB_URI",
        "required",
        "Replica set or sharded cluster, MongoDB 6.0 or later.",
        secret=True,
    ),
    Variable("FEEDSVC_HOST", "`127.0.0.1`", "Address to listen on; `0.0.0.0` in a container."),
    Variable("FEEDSVC_PORT", "`8080`", "Port to listen on; 0 takes a free one."),
    Variable("FEEDSVC_POLICY", "required", "Path of the policy file (YAML)."),
    Variable(
        "FEEDSVC_JWT_SECRET",
        "one of these",
        "HMAC secret for HS256: at least 32 bytes (48 for HS384, 64 for HS512).",
        secret=True,
    ),
    Variable(
        "FEEDSVC_JWT_PUBLIC_KEY",
        "one of these",
        "Public key in PEM: RSA (RS256), elliptic curve (ES256, ...) or Edwards (EdDSA). Line breaks may be "
        "written `\\n`; for a path use `_FILE`.",
        secret=True,
    ),
    Variable(
        "FEEDSVC_JWKS_URL",
        "one of these",
        "Where the issuer publishes its keys as a JWK set: `https://`, or `http://` on this machine (`localhost`, "
        "`127.0.0.1`, `[::1]`).",
    ),
    Variable("FEEDSVC_JWT_ISSUER", "any", "`iss` must be exactly this."),
    Variable("FEEDSVC_JWT_AUDIENCE", "any", "Comma-separated; `aud` must be or hold one of them."),
    Variable(
        "FEEDSVC_JWT_ALGORITHMS",
        "the key's first",
        "Comma-separated, all of the key's family; with `FEEDSVC_JWKS_URL` of any public key. The key decides the "
        "family, never the JWT.",
    ),
    Variable(
        "FEEDSVC_TOKEN_KEYS",
        "required",
        "Comma-separated base64url 32-byte keys (padding optional); the first seals, all open. To rotate: add the "
        "new key last everywhere, then move it first, remove the old one after the oplog window.",
        secret=True,
    ),
    Variable(
        "FEEDSVC_SOURCE_EPOCH",
        "empty",
        "Change it after a restore from backup: positions from before are refused (`source_changed`).",
    ),
    Variable(
        "FEEDSVC_ALLOWED_ORIGINS",
        "none",
        "Comma-separated browser origins, exactly as sent: `https://app.example`, no path, no default port.",
    ),
    Variable(
        "FEEDSVC_READY_NEEDS_SOURCE",
        "`false`",
        "Whether readiness fails during an outage of MongoDB.",
    ),
    Variable(
        "FEEDSVC_TAIL_SCOPE",
        "see meaning",
        "`collection`, `database` or `deployment`; by default `deployment` where the policy's database holds "
        "`{tenant}`, else `collection`.",
    ),
    Variable(
        "FEEDSVC_MONGO_DRIVER",
        "`pymongo`",
        "`pymongo` or `motor`, which must be installed (extra `motor`). See below.",
    ),
)


def unknown_name_warnings(names: Iterable[str]) -> list[str]:
    """A warning for each `FEEDSVC_` name that means nothing, with what it may have been meant to be."""
    known = {variable.name for variable in VARIABLES}
    known |= {variable.name + FILE_SUFFIX for variable in VARIABLES if variable.secret}
    known |= {limit.environment_variable for limit in LIMITS.values() if limit.environment_variable}
    warnings: list[str] = []
    linked = False
    for name in sorted(names):
        if not name.startswith(PREFIX) or name.startswith("FEEDSVC_TEST_") or name in known:
            continue
        if _SERVICE_LINK.fullmatch(name):
            linked = True
            continue
        close = difflib.get_close_matches(name, known, n=1)
        warnings.append(f"{name} is not a setting" + (f"; did you mean {close[0]}?" if close else ""))
    if linked:
        warnings.append(f"{PREFIX}SERVICE_* are Kubernetes service links; set enableServiceLinks: false")
    return warnings


def variables_table() -> str:
    """The table as Markdown, as `docs/configuration.md` shows it. Ends without a newline."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for variable in VARIABLES:
        name = f"`{variable.name}`" + (" or `_FILE`" if variable.secret else "")
        rows.append(f"| {name} | {variable.default} | {variable.meaning} |")
    return "\n".join(rows)
