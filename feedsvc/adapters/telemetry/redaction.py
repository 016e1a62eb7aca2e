"""No credential in a log line, whoever wrote it.

Two nets: a value under a telling name is replaced whole, and whatever looks like a credential inside any other text
is cut out of it (a URL with a ticket, a URI with a password, a header, a JWT in the message of a library).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from functools import lru_cache

import msgspec

REDACTED = "***"
_MAX_DEPTH = 8
_MAX_CHARS = 8 << 10

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_TELLING = frozenset(
    {
        *(
            "jwt",
            "jwts",
            "token",
            "tokens",
            "ticket",
            "tickets",
            "authorization",
            "cookie",
            "cookies",
            "bearer",
        ),
        *("secret", "secrets", "password", "passwords", "passwd", "pwd", "credential", "credentials"),
    }
)
_TELLING_PAIRS = frozenset({("api", "key"), ("private", "key"), ("jwt", "key")})

_IN_TEXT = (
    # JWS compact form (RFC 7515): a header that is a JSON object starts with eyJ. Cut off ones too.
    (re.compile(r"eyJ[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*){0,4}"), REDACTED),
    (re.compile(r"(?i)\b(bearer|basic)([ .]|%20)+[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {REDACTED}"),
    # Up to the last @: passwords with an unescaped @ or / are common, and wrong. Bounded, so that no text takes long.
    (re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,20}://)[^\s\"'<>]*@"), rf"\1{REDACTED}@"),
    (
        re.compile(
            r"(?i)\b((?:ticket|jwt|[a-z_-]{0,20}token|[a-z_-]{0,20}secret|password|passwd|authorization)[\"']?\s*[=:]\s*[\"']?)"
            r"[^\s&\"',;}#]+"
        ),
        rf"\1{REDACTED}",
    ),
    # Sealed tokens, tickets and keys stand bare where a peer puts them. Ids are shorter, names are of one case.
    (
        re.compile(
            r"(?<![\w-])(?=[A-Za-z_-]*[0-9])(?=[a-z0-9_-]*[A-Z])(?=[A-Z0-9_-]*[a-z])[A-Za-z0-9_-]{40,}={0,2}"
        ),
        REDACTED,
    ),
)

_SUSPICIOUS = re.compile(
    r"(?i)eyJ|bearer|basic|@|ticket|jwt|token|secret|password|passwd|authorization|[a-z0-9_-]{40}"
)
"""What every pattern of `_IN_TEXT` needs: most texts hold none of it, and one search tells."""


def redacted(value: object, depth: int = 0) -> object:
    """The value with nothing secret in it: texts cleaned, structs and mappings as dicts, the rest as text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return redacted_text(value)
    if depth >= _MAX_DEPTH:
        return "..."
    if isinstance(value, msgspec.Struct):
        value = {name: getattr(value, name) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {
            _name(str(key)): REDACTED if is_telling(str(key)) else redacted(item, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [redacted(item, depth + 1) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value)} bytes"
    return redacted_text(str(value))


def redacted_text(text: str) -> str:
    """The text with credentials cut out, at most 8 KiB of it."""
    text = text[:_MAX_CHARS]
    if _SUSPICIOUS.search(text) is None:
        return text
    for pattern, replacement in _IN_TEXT:
        text = pattern.sub(replacement, text)
    return text


@lru_cache(maxsize=512)
def _name(key: str) -> str:
    return redacted_text(key)


@lru_cache(maxsize=512)
def is_telling(key: str) -> bool:
    """Whether what stands under this name is a credential: `resumeToken`, `FEEDSVC_JWT_SECRET`, `authorization`."""
    words = [word.lower() for word in _WORDS.findall(key)]
    return not _TELLING.isdisjoint(words) or not _TELLING_PAIRS.isdisjoint(itertools.pairwise(words))
