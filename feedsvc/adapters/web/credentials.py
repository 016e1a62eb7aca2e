"""Where credentials may stand in an upgrade, and which origins may send one (protocol.md section 2)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import parse_qsl

from feedsvc.core.errors import Refusal
from feedsvc.core.messages import SUBPROTOCOL

_BEARER_ENTRY = "bearer."
_URL_NAMES = frozenset(
    {"jwt", "token", "access_token", "id_token", "auth", "authorization", "bearer", "api_key"}
)
_LOOKS_LIKE_JWT = re.compile(r"eyJ[A-Za-z0-9_-]*\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")


def check_origin(headers: Mapping[str, str], allowed: frozenset[str]) -> None:
    """Raises `Refusal('forbidden')` for an Origin that is not exactly one of the allowed. None is no browser."""
    origin = headers.get("origin")
    if origin is not None and origin not in allowed:
        raise Refusal("forbidden", "this Origin is not in FEEDSVC_ALLOWED_ORIGINS")


def url_ticket(query: str) -> str | None:
    """The ticket of a query string, None where it has none.

    Raises `Refusal`: `auth_in_url` where the query carries a JWT, for URLs are logged, `bad_request` for two tickets.
    """
    tickets = []
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name == "ticket":
            tickets.append(value)
        if name.lower() in _URL_NAMES or _LOOKS_LIKE_JWT.search(value):
            raise Refusal(
                "auth_in_url",
                "a JWT in a URL is refused; send it as Authorization: Bearer, as subprotocol bearer.<jwt>, in auth, "
                "or get a ticket for it from POST /v1/tickets",
            )
    if len(tickets) > 1:
        raise Refusal("bad_request", "give one ticket, not several")
    return tickets[0] if tickets else None


def upgrade_jwt(authorization: Iterable[str], subprotocols: Sequence[str]) -> str | None:
    """The JWT of an upgrade, None where it has none.

    Raises `Refusal`: `bad_request` where subprotocols are offered without ours or there are two JWTs, `auth_invalid`
    for an Authorization of another kind.
    """
    if subprotocols and SUBPROTOCOL not in subprotocols:
        raise Refusal("bad_request", f"offer the subprotocol {SUBPROTOCOL}")
    found = [entry[len(_BEARER_ENTRY) :] for entry in subprotocols if entry.startswith(_BEARER_ENTRY)]
    for value in authorization:
        scheme, _, jwt = value.strip().partition(" ")
        if scheme.lower() != "bearer" or not jwt.strip():
            raise Refusal("auth_invalid", "Authorization must be Bearer <jwt>")
        found.append(jwt.strip())
    if len(found) > 1:
        raise Refusal("bad_request", "give one JWT, not several")
    return found[0] if found else None
