"""`/v1/ws` as `openapi.yaml` describes it: the upgrade, and what refuses it. The frames are schemas."""

from __future__ import annotations

from typing import Any

from feedsvc.core.messages import SUBPROTOCOL
from feedsvc.openapi_routes import problems


def websocket() -> dict[str, Any]:
    """`GET /v1/ws`."""
    return {
        "operationId": "openFeed",
        "tags": ["feeds"],
        "summary": "Upgrade to the WebSocket feed.",
        "description": (
            f"WebSocket with the subprotocol `{SUBPROTOCOL}`, which is assumed if none is offered. The JWT comes as "
            "`Authorization: Bearer`, as the subprotocol entry `bearer.<jwt>`, or in a first frame `auth`; or a ticket "
            "stands for it in the URL. Each text frame is one JSON object: `ClientFrame` to the server, `ServerFrame` "
            "to the client. A page of an origin that is not in FEEDSVC_ALLOWED_ORIGINS gets 403, a request without "
            "an upgrade 400."
        ),
        "security": [{"bearer": []}, {"ticket": []}, {}],
        "parameters": [
            {
                "name": "Sec-WebSocket-Protocol",
                "in": "header",
                "description": f"`{SUBPROTOCOL}`, and the JWT where nothing else carries it.",
                "schema": {"type": "string"},
                "example": f"{SUBPROTOCOL}, bearer.<jwt>",
            },
        ],
        "responses": {
            "101": {
                "description": "The socket is open.",
                "headers": {
                    "Upgrade": {"description": "As asked.", "schema": {"const": "websocket"}},
                    "Sec-WebSocket-Protocol": {
                        "description": "Where one was offered.",
                        "schema": {"const": SUBPROTOCOL},
                    },
                },
            },
            **problems(
                *("bad_request", "auth_invalid", "auth_expired", "auth_in_url", "forbidden"),
                *("rate_limited", "source_unavailable", "going_away"),
            ),
        },
    }
