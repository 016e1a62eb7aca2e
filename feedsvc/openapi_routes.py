"""The routes that are plain requests, as `openapi.yaml` describes them.

Errors are generated from the registry: a route names its codes, and gets a response for each of their statuses.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from feedsvc.core.errors import REGISTRY
from feedsvc.core.limits import Limits

_LIMITS = Limits()
_BEARER: list[dict[str, list[str]]] = [{"bearer": []}]
_CREDENTIALS = ("auth_invalid", "auth_expired", "auth_in_url", "bad_request", "source_unavailable")
"""What can be wrong with the credentials of any request, or with asking who made them."""

_RETRY_AFTER = {
    "description": "Seconds to wait.",
    "schema": {"type": "integer", "minimum": 1},
}


def schema(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def problems(*codes: str) -> dict[str, Any]:
    """The responses with a problem document for these codes, by status."""
    by_status: defaultdict[int, list[str]] = defaultdict(list)
    for code in codes:
        by_status[REGISTRY[code].status].append(code)
    responses: dict[str, Any] = {}
    for status, found in sorted(by_status.items()):
        response: dict[str, Any] = {
            "description": " ".join(f"`{code}`: {REGISTRY[code].meaning}" for code in found),
            "content": {"application/problem+json": {"schema": schema("Problem")}},
        }
        if status == 401:
            response["headers"] = {"WWW-Authenticate": {"schema": {"const": "Bearer"}}}
        if status in (429, 503):
            response["headers"] = {"Retry-After": _RETRY_AFTER}
        responses[str(status)] = response
    return responses


def answer(name: str, description: str, example: Any) -> dict[str, Any]:
    """A JSON response of a schema."""
    return {
        "description": description,
        "headers": {"Cache-Control": {"schema": {"const": "no-store"}}},
        "content": {"application/json": {"schema": schema(name), "example": example}},
    }


def ticket_parameter() -> dict[str, Any]:
    """`?ticket=` of a feed."""
    return {
        "name": "ticket",
        "in": "query",
        "description": "Of `POST /v1/tickets`, in place of a JWT.",
        "schema": {"type": "string", "maxLength": _LIMITS.ticket_chars},
    }


def tickets() -> dict[str, Any]:
    """`/v1/tickets`."""
    return {
        "post": {
            "operationId": "issueTicket",
            "summary": "A ticket for a JWT, to stand in the URL of a feed.",
            "description": (
                "For browsers, which cannot set headers on WebSocket and EventSource. The ticket carries what the JWT "
                f"says; it opens any number of feeds, on any instance, within {_LIMITS.ticket_lifetime_s:g} s "
                "(`expiresInMs`, never longer than the JWT), and a connection made with it ends with the JWT. "
                "There is no request body."
            ),
            "security": _BEARER,
            "responses": {
                "200": answer(
                    "IssuedTicket",
                    "The ticket.",
                    {"ticket": "v5PpG0wC3qk...", "expiresInMs": int(_LIMITS.ticket_lifetime_s * 1000)},
                ),
                **problems(*_CREDENTIALS, "forbidden", "rate_limited"),
            },
        },
        "options": preflight("Tickets"),
    }


def preflight(name: str) -> dict[str, Any]:
    """`OPTIONS` of a route that pages of other origins may use."""
    return {
        "operationId": f"preflight{name}",
        "summary": "What a page of an origin in FEEDSVC_ALLOWED_ORIGINS may send.",
        "responses": {
            "204": {"description": "Methods in `Allow`; for a preflight also the CORS headers."},
            **problems("forbidden"),
        },
    }


def status() -> dict[str, Any]:
    """`/v1/status`."""
    return {
        "get": {
            "operationId": "status",
            "summary": "How this process is, for operators.",
            "description": (
                "Needs the scope `feedsvc:admin`; the JWT need not name a tenant. Names and counts: nothing of "
                "documents, filters or JWTs."
            ),
            "security": _BEARER,
            "responses": {
                "200": answer("Status", "The state at the time of asking.", _STATUS),
                **problems(*_CREDENTIALS, "forbidden"),
            },
        }
    }


def description() -> dict[str, Any]:
    """`/openapi.yaml`."""
    return {
        "get": {
            "operationId": "openapi",
            "summary": "This document.",
            "responses": {
                "200": {
                    "description": "OpenAPI 3.1, with the frames of the feeds as schemas.",
                    "content": {"application/yaml": {"schema": {"type": "string"}}},
                }
            },
        }
    }


_STATUS = {
    "version": "1.0.0",
    "uptimeSeconds": 86_400,
    "state": "serving",
    "sourceError": None,
    "connections": 1200,
    "waitingSockets": 3,
    "subscriptions": 2400,
    "topics": 310,
    "snapshotsRunning": 0,
    "snapshotsWaiting": 0,
    "maxTails": 64,
    "tails": [
        {
            "scope": {"level": "collection", "database": "app", "collection": "orders"},
            "opened": True,
            "lagMs": 12,
            "stalled": False,
            "error": None,
            "subscriptions": 2400,
            "catchUps": 1,
            "waiting": 0,
            "idleSeconds": None,
        }
    ],
    "resyncs": {"token_expired": 2},
    "tailErrors": {"SourceUnavailable": 1},
    "oplog": {"windowSeconds": 172_800, "windowSecondsWithImages": 86_400},
    "tenantCount": 1,
    "tenants": [{"tenant": "acme", "connections": 1200, "topics": 310}],
}
