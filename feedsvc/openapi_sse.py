"""`/v1/sse` as `openapi.yaml` describes it: the parameters of a stream, its body, and what refuses it."""

from __future__ import annotations

import json
from typing import Any

from feedsvc import openapi_examples
from feedsvc.core.limits import Limits
from feedsvc.openapi_routes import cross_origin, json_body, preflight, problems, schema

_LIMITS = Limits()
_CODES = (
    *("auth_invalid", "auth_expired", "auth_in_url", "bad_request", "forbidden", "source_unavailable"),
    *("unknown_collection", "filter_invalid", "filter_unsupported", "images_required", "already_subscribed"),
    *("token_invalid", "subscription_limit", "topic_limit", "snapshot_unavailable"),
    *("tenant_quota", "rate_limited", "going_away"),
    "internal",
)
_TOPIC = {"collection": "orders", "filter": {"status": "open"}}


def _events(*names: str) -> str:
    """A stream as it is sent, with the examples of these frames."""
    blocks = ["retry: 2000\nid: AXk3u8kq9vB3mZ0p1\n"]
    for number, name in enumerate(names, 2):
        frame = openapi_examples.SCHEMAS[name]
        data = json.dumps(frame, separators=(",", ":"))
        blocks.append(f"event: {frame['type']}\ndata: {data}\nid: AXk3u8kq9vB3mZ0p{number}\n")
    return "\n".join(blocks)


_DESCRIPTION = (
    "The same topics, rights and frames as over a WebSocket, for clients that cannot open one. Each event's name is "
    "the `type` of its data, which is a `StreamFrame`; `subscribed.id` is the index of the topic. `id:` is the resume "
    "token of the whole stream: an EventSource sends it back by itself, others as `Last-Event-ID` or `resumeAfter`. A "
    "topic that it does not know starts now. The last event is `close`; where its action is `stop`, the next request "
    "with its `id:` gets 204."
)


def sse() -> dict[str, Any]:
    """`/v1/sse`."""
    return {
        "get": {
            "operationId": "openStream",
            "tags": ["feeds"],
            "summary": "A stream of server-sent events.",
            "description": f"{_DESCRIPTION} A query parameter that is not listed here is refused.",
            "security": [{"bearer": []}, {"ticket": []}],
            "parameters": [
                {
                    "name": "topic",
                    "in": "query",
                    "required": True,
                    "description": "JSON, once for each topic.",
                    "explode": True,
                    "schema": {
                        "type": "array",
                        "minItems": 1,
                        "maxItems": _LIMITS.sse_topics,
                        "items": {
                            "type": "string",
                            "contentMediaType": "application/json",
                            "contentSchema": schema("TopicRequest"),
                        },
                    },
                    "example": ['{"collection":"orders","filter":{"status":"open"}}'],
                },
                {
                    "name": "snapshot",
                    "in": "query",
                    "description": "For all topics, as in `Subscribe`.",
                    "schema": {"enum": ["never", "always", "onResync"], "default": "never"},
                },
                {
                    "name": "startAtOperationTime",
                    "in": "query",
                    "description": "For the topics that no token knows.",
                    "content": {
                        "application/json": {
                            "schema": schema("ExtendedTimestamp"),
                            "example": {"$timestamp": {"t": 1767225600, "i": 1}},
                        }
                    },
                },
                _resume_after(),
                _last_event_id(),
            ],
            "responses": _responses(),
        },
        "post": {
            "operationId": "openStreamByPost",
            "tags": ["feeds"],
            "summary": "The same, for topics that do not fit into a URL.",
            "description": _DESCRIPTION,
            "security": [{"bearer": []}, {"ticket": []}],
            "parameters": [_resume_after(), _last_event_id()],
            "requestBody": json_body("StreamRequest", {"topics": [_TOPIC]}),
            "responses": _responses(),
        },
        "options": preflight("Stream", "GET, POST"),
    }


def _resume_after() -> dict[str, Any]:
    return {
        "name": "resumeAfter",
        "in": "query",
        "description": "An `id:` of this or another stream. `Last-Event-ID` goes before it.",
        "schema": {"type": "string", "maxLength": _LIMITS.sse_resume_token_chars},
    }


def _last_event_id() -> dict[str, Any]:
    return {
        "name": "Last-Event-ID",
        "in": "header",
        "description": "What an EventSource sends when it reconnects: the last `id:` that it read.",
        "schema": {"type": "string", "maxLength": _LIMITS.sse_resume_token_chars},
    }


def _responses() -> dict[str, Any]:
    return {
        "200": {
            "description": "The stream.",
            "headers": {
                "Cache-Control": {
                    "description": "Nothing of it may be kept.",
                    "schema": {"const": "no-store"},
                },
                "X-Accel-Buffering": {
                    "description": "Tells nginx to pass on each event at once.",
                    "schema": {"const": "no"},
                },
                **cross_origin(),
            },
            "content": {
                "text/event-stream": {
                    "schema": schema("ServerSentEvent"),
                    "x-stream-example": _events("Subscribed", "Event"),
                }
            },
        },
        "204": {"description": "The stream was closed for good; do not come back."},
        **problems(*_CODES),
    }
