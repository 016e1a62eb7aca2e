"""The routes that are plain requests, as `openapi.yaml` describes them.

Errors are generated from the registry: a route names its codes, and gets a response for each of their statuses.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from feedsvc.core.errors import REGISTRY
from feedsvc.core.limits import Limits

_LIMITS = Limits()
BEARER: list[dict[str, list[str]]] = [{"bearer": []}]
CREDENTIALS = ("auth_invalid", "auth_expired", "auth_in_url", "bad_request", "source_unavailable")
"""What can be wrong with the credentials of any request, or with asking who made them."""

TAGS = {
    "feeds": "Streams of changes, and what belongs to opening one.",
    "operators": "How the process is, for orchestrators and people.",
    "documents": "This description.",
}
"""The groups of operations, in their order."""

_RETRY_AFTER = {
    "description": "Seconds to wait.",
    "schema": {"type": "integer", "minimum": 1},
}
NO_STORE = {"Cache-Control": {"description": "Nothing of it may be kept.", "schema": {"const": "no-store"}}}


NO_CACHE = {"Cache-Control": {"description": "Ask again each time.", "schema": {"const": "no-cache"}}}


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
            "headers": dict(NO_STORE),
            "content": {
                "application/problem+json": {
                    "schema": schema("Problem"),
                    "examples": {code: {"$ref": f"#/components/examples/{code}"} for code in found},
                }
            },
        }
        if status == 401:
            response["headers"]["WWW-Authenticate"] = {
                "description": "How to authenticate.",
                "schema": {"const": "Bearer"},
            }
        if status in (429, 503):
            response["headers"]["Retry-After"] = _RETRY_AFTER
        responses[str(status)] = response
    return responses


def answer(name: str, description: str, example: Any, **headers: Any) -> dict[str, Any]:
    """A JSON response of a schema; `headers` beside those of all."""
    return {
        "description": description,
        "headers": {**NO_STORE, **headers},
        "content": {"application/json": {"schema": schema(name), "example": example}},
    }


def everywhere() -> dict[str, Any]:
    """`components.responses`: what any path can answer, so that no operation repeats it."""
    not_found, not_allowed = problems("not_found")["404"], problems("method_not_allowed")["405"]
    not_allowed["headers"]["Allow"] = {
        "description": "The methods of this path.",
        "schema": {"type": "string"},
    }
    failed = problems("internal")["500"]
    return {"NotFound": not_found, "MethodNotAllowed": not_allowed, "Internal": failed}


def cross_origin() -> dict[str, Any]:
    """The headers with which a page of an allowed origin may read an answer."""
    return {
        "Access-Control-Allow-Origin": {
            "description": "The page's origin, where it is in FEEDSVC_ALLOWED_ORIGINS.",
            "schema": {"type": "string"},
        },
        "Vary": {"description": "The answer depends on the origin.", "schema": {"const": "Origin"}},
    }


def json_body(name: str, example: Any) -> dict[str, Any]:
    """The JSON that a POST carries."""
    return {
        "required": True,
        "description": f"At most {_LIMITS.frame_bytes:,} bytes, which have come within {_LIMITS.auth_timeout_s:g} s.",
        "content": {"application/json": {"schema": schema(name), "example": example}},
    }


def ticket_scheme() -> dict[str, Any]:
    """`?ticket=` of a feed."""
    return {
        "type": "apiKey",
        "in": "query",
        "name": "ticket",
        "description": (
            f"Of `POST /v1/tickets`, in place of a JWT: at most {_LIMITS.ticket_chars} characters, usable for "
            f"{_LIMITS.ticket_lifetime_s:g} s by any number of requests."
        ),
    }


def tickets() -> dict[str, Any]:
    """`/v1/tickets`."""
    return {
        "post": {
            "operationId": "issueTicket",
            "tags": ["feeds"],
            "summary": "A ticket for a JWT, to stand in the URL of a feed.",
            "description": (
                "For browsers, which cannot set headers on WebSocket and EventSource. The ticket carries what the JWT "
                f"says; it opens any number of feeds, on any instance, within {_LIMITS.ticket_lifetime_s:g} s "
                "(`expiresInMs`, never longer than the JWT), and a connection made with it ends with the JWT. "
                "There is no request body."
            ),
            "security": BEARER,
            "responses": {
                "200": answer(
                    "IssuedTicket",
                    "The ticket.",
                    {"ticket": "v5PpG0wC3qk...", "expiresInMs": int(_LIMITS.ticket_lifetime_s * 1000)},
                    **cross_origin(),
                ),
                **problems(*CREDENTIALS, "forbidden", "rate_limited"),
            },
        },
        "options": preflight("Tickets", "POST"),
    }


def preflight(name: str, methods: str) -> dict[str, Any]:
    """`OPTIONS` of a route that pages of other origins may use; `methods` are the route's own."""
    allowed = {"description": "The methods of the route.", "schema": {"const": f"{methods}, OPTIONS"}}
    of_a_preflight = {
        "Access-Control-Allow-Methods": allowed,
        "Access-Control-Allow-Headers": {
            "description": "The headers that a page may send.",
            "schema": {"type": "string"},
        },
        "Access-Control-Max-Age": {
            "description": "Seconds for which a browser may remember this.",
            "schema": {"type": "integer"},
        },
    }
    return {
        "operationId": f"preflight{name}",
        "tags": ["feeds"],
        "summary": "What a page of an origin in FEEDSVC_ALLOWED_ORIGINS may send.",
        "description": (
            "Browsers ask it by themselves before a page of another origin sends a request. Pages of origins that are "
            "not listed get 403 here, and on the other methods too."
        ),
        "security": [],
        "parameters": [
            {
                "name": "Origin",
                "in": "header",
                "description": "Where the page comes from, as the browser says.",
                "schema": {"type": "string"},
                "example": "https://app.example",
            },
            {
                "name": "Access-Control-Request-Method",
                "in": "header",
                "description": "The method that the page wants to use; it makes the request a preflight.",
                "schema": {"type": "string"},
                "example": methods.rpartition(" ")[2],
            },
        ],
        "responses": {
            "204": {
                "description": "Methods in `Allow`; for a preflight also the CORS headers.",
                "headers": {**NO_STORE, "Allow": allowed, **of_a_preflight, **cross_origin()},
            },
            **problems("forbidden"),
        },
    }


def health(name: str, summary: str) -> dict[str, Any]:
    """`/healthz/...`."""
    return {
        "get": {
            "operationId": f"health{name.capitalize()}",
            "tags": ["operators"],
            "summary": summary,
            "security": [],
            "responses": {
                "200": answer("Health", "Yes.", {"status": "ok", "detail": ""}),
                "503": answer("Health", "No.", {"status": "draining", "detail": ""}),
            },
        }
    }


def metrics() -> dict[str, Any]:
    """`/metrics`."""
    return {
        "get": {
            "operationId": "metrics",
            "tags": ["operators"],
            "summary": "Metrics for Prometheus.",
            "description": "Of this process, without names of tenants; each has its HELP line.",
            "security": [],
            "responses": {
                "200": {
                    "description": "Text format 0.0.4.",
                    "headers": dict(NO_STORE),
                    "content": {"text/plain": {"schema": {"type": "string"}, "example": _METRICS}},
                }
            },
        }
    }


def description() -> dict[str, Any]:
    """`/openapi.yaml`."""
    return {
        "get": {
            "operationId": "openapi",
            "tags": ["documents"],
            "summary": "This document.",
            "security": [],
            "responses": {
                "200": {
                    "description": "OpenAPI 3.1, with the frames of the feeds as schemas.",
                    "headers": dict(NO_CACHE),
                    "content": {
                        "application/yaml": {
                            "schema": {
                                "type": "object",
                                "required": ["openapi", "info", "paths", "components"],
                            }
                        }
                    },
                }
            },
        }
    }


def docs() -> dict[str, Any]:
    """`/docs`."""
    return {
        "get": {
            "operationId": "docs",
            "tags": ["documents"],
            "summary": "This document as a page for people.",
            "description": "One page that needs nothing else: no script, no font, nothing from another host.",
            "security": [],
            "responses": {
                "200": {
                    "description": "HTML.",
                    "headers": {
                        **NO_CACHE,
                        "Content-Security-Policy": {
                            "description": "Nothing may be loaded but the page's own style.",
                            "schema": {"type": "string"},
                        },
                    },
                    "content": {"text/html": {"schema": {"type": "string"}}},
                }
            },
        }
    }


_METRICS = "# TYPE feedsvc_connections gauge\nfeedsvc_connections 1200.0\n"
