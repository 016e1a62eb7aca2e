"""What operators look at, as `openapi.yaml` describes it: `/v1/status` and the page that shows it."""

from __future__ import annotations

from typing import Any

from feedsvc.openapi_routes import BEARER, CREDENTIALS, NO_STORE, answer, problems, schema


def status() -> dict[str, Any]:
    """`/v1/status`."""
    found = answer(
        "Status",
        "The state at the time of asking; as an event stream each second, in events `status`.",
        _STATUS,
        Vary={"description": "The answer depends on `Accept`.", "schema": {"const": "Accept"}},
    )
    found["content"]["text/event-stream"] = {"schema": schema("StatusEvent")}
    return {
        "get": {
            "operationId": "status",
            "tags": ["operators"],
            "summary": "How this process is, for operators.",
            "description": (
                "Needs the scope `feedsvc:admin`; the JWT need not name a tenant. Names and counts: nothing of "
                "documents, filters or JWTs. With `Accept: text/event-stream` the answer is a stream: each second an "
                "event `status`, at the end an event `close`."
            ),
            "security": BEARER,
            "responses": {
                "200": found,
                **problems(*CREDENTIALS, "forbidden", "connection_limit", "going_away"),
            },
        }
    }


def admin() -> dict[str, Any]:
    """`/admin` and its files, by path."""
    policy = {
        "description": "Nothing may be loaded but the page's own files.",
        "schema": {"type": "string"},
    }
    text = {"schema": {"type": "string"}}
    return {
        "/admin": {
            "get": {
                "operationId": "adminPage",
                "tags": ["operators"],
                "summary": "The status of this process as a page for people, live.",
                "description": "It holds no data: it reads `/v1/status` with the JWT that the operator gives it.",
                "security": [],
                "responses": {
                    "200": {
                        "description": "HTML.",
                        "headers": {**NO_STORE, "Content-Security-Policy": policy},
                        "content": {"text/html": text},
                    }
                },
            }
        },
        "/admin/": {
            "get": {
                "operationId": "adminPageElsewhere",
                "tags": ["operators"],
                "summary": "Leads to `/admin`.",
                "security": [],
                "responses": {
                    "308": {
                        "description": "The relative paths of the page would be wrong below it.",
                        "headers": {
                            **NO_STORE,
                            "Location": {"description": "The page.", "schema": {"const": "../admin"}},
                        },
                    }
                },
            }
        },
        "/admin/{name}": {
            "get": {
                "operationId": "adminFile",
                "tags": ["operators"],
                "summary": "A file of that page.",
                "security": [],
                "parameters": [
                    {
                        "name": "name",
                        "in": "path",
                        "required": True,
                        "description": "As the page asks for it.",
                        "schema": {"type": "string"},
                        "example": "main.js",
                    }
                ],
                "responses": {
                    "200": {
                        "description": "Script, style, image or data.",
                        "headers": {**NO_STORE, "Content-Security-Policy": policy},
                        "content": {
                            "text/javascript": text,
                            "text/css": text,
                            "image/svg+xml": text,
                            "application/json": {
                                "schema": {"type": "object"},
                                "example": {"4205": ["max_age", "The connection reached its maximum age."]},
                            },
                        },
                    },
                    **problems("not_found"),
                },
            }
        },
    }


_STATUS = {
    "version": "1.0.0",
    "startedAtMs": 1_767_139_200_000,
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
    "closes": {"4205": 31},
    "catchUpsOpened": 4,
    "oplog": {"windowSeconds": 172_800, "windowSecondsWithImages": 86_400},
    "oldestPosition": {"ageSeconds": 35, "windowSeconds": 172_800, "usedRatio": 0.0002},
    "recentErrors": [
        {
            "atMs": 1_767_225_600_000,
            "event": "tail.failed",
            "kind": "SourceUnavailable",
            "scope": {"level": "collection", "database": "app", "collection": "orders"},
            "text": "",
        }
    ],
    "tenantCount": 1,
    "tenants": [{"tenant": "acme", "connections": 1200, "subscriptions": 2400, "topics": 310}],
}
