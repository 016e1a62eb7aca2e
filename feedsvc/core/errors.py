"""The registry of errors: one entry gives a code its meaning, HTTP status, close code and whether to retry.

The ranges of close codes tell a client what to do (protocol.md section 8): 4000-4099 stop; 4100-4199 get new
credentials once; 4200-4299 reconnect with backoff and resume; 4300-4399 wait `retryAfterMs` first. Docs and metric
labels are generated from this table, so a code exists here or nowhere.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

CloseAction = Literal["stop", "authenticate", "reconnect", "wait"]
"""What a client does after a close; the prose is in `openapi`."""


class ErrorEntry(msgspec.Struct, frozen=True):
    """`status`: HTTP status of a problem document. `close_code`: None where the code never closes a socket."""

    code: str
    meaning: str
    status: int
    close_code: int | None = None
    retryable: bool = False


_ENTRIES = (
    ErrorEntry("bad_request", "The frame or request is malformed; the message names the field.", 400, 4000),
    ErrorEntry("auth_timeout", "No credentials came within the time allowed.", 401, 4100),
    ErrorEntry("auth_expired", "The JWT has expired; send a new one.", 401, 4101),
    ErrorEntry("auth_invalid", "The JWT is not valid here, or names another tenant or subject.", 401, 4102),
    ErrorEntry(
        "auth_in_url",
        "A JWT in a URL is refused, URLs are logged; use a header, a subprotocol or a ticket.",
        400,
    ),
    ErrorEntry("forbidden", "The claims of this connection do not allow it.", 403, 4003),
    ErrorEntry("too_many_errors", "More than 100 refused frames in 60 seconds.", 429, 4009),
    ErrorEntry("unknown_collection", "The policy names no such collection.", 404),
    ErrorEntry("filter_invalid", "The filter is malformed; the message names path and rule.", 400),
    ErrorEntry("filter_unsupported", "The filter uses an operator outside the supported subset.", 400),
    ErrorEntry(
        "images_required", "The topic needs pre- and post-images, which the collection does not keep.", 409
    ),
    ErrorEntry("already_subscribed", "This connection already holds this topic.", 409),
    ErrorEntry("not_subscribed", "This connection does not hold this topic.", 404),
    ErrorEntry("token_invalid", "The resume token does not open; drop it and start anew.", 400),
    ErrorEntry("subscription_limit", "This connection holds as many subscriptions as it may.", 429),
    ErrorEntry("topic_limit", "The tenant or this instance holds as many topics as it may.", 429, None, True),
    ErrorEntry("snapshot_unavailable", "A snapshot cannot be given for this topic.", 409),
    ErrorEntry("not_found", "There is nothing at this path; /openapi.yaml lists what is.", 404),
    ErrorEntry("method_not_allowed", "The path takes other methods; Allow names them.", 405),
    ErrorEntry(
        "going_away", "This instance is shutting down; reconnect anywhere and resume.", 503, 4200, True
    ),
    ErrorEntry(
        "slow_consumer", "The client took nothing for too long; reconnect and resume.", 503, 4201, True
    ),
    ErrorEntry("pong_timeout", "The peer did not answer pings; reconnect and resume.", 503, 4202, True),
    ErrorEntry(
        "internal", "Something failed in the service; the logged id is in the message.", 500, 4203, True
    ),
    ErrorEntry(
        "source_unavailable", "MongoDB or the key server does not answer; try again later.", 503, 4204, True
    ),
    ErrorEntry("max_age", "The connection reached its maximum age; reconnect and resume.", 503, 4205, True),
    ErrorEntry("connection_limit", "Too many connections; wait before reconnecting.", 503, 4300, True),
    ErrorEntry("rate_limited", "Too many requests; wait before the next.", 429, 4301, True),
    ErrorEntry("tenant_quota", "The tenant holds as many connections as it may.", 429, 4302, True),
)

REGISTRY: dict[str, ErrorEntry] = {entry.code: entry for entry in _ENTRIES}


class Refusal(Exception):
    """A request is refused with a registry code. The message names the field and the rule, and nothing secret."""

    def __init__(self, code: str, message: str, *, retry_after_ms: int | None = None) -> None:
        if code not in REGISTRY:
            raise ValueError(f"{code!r} is not in the error registry")
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_ms = retry_after_ms

    @property
    def entry(self) -> ErrorEntry:
        return REGISTRY[self.code]


def close_code(code: str) -> int:
    """The WebSocket close code of a registry code; ValueError where it never closes a socket."""
    value = REGISTRY[code].close_code
    if value is None:
        raise ValueError(f"{code} does not close connections")
    return value


def close_action(close_code: int) -> CloseAction:
    """What the range of a close code tells a client, for machines: one of ours, or a standard code of a server."""
    match close_code // 100:
        case 40:
            return "stop"
        case 41:
            return "authenticate"
        case 43:
            return "wait"
        case _:
            return "reconnect"


def problem(code: str, detail: str) -> dict[str, Any]:
    """An RFC 9457 problem document for a registry code."""
    entry = REGISTRY[code]
    return {
        "type": f"urn:feedsvc:error:{code}",
        "title": entry.meaning,
        "status": entry.status,
        "code": code,
        "detail": detail,
        "retryable": entry.retryable,
    }
