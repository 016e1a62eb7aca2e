"""`/v1/sse` as `openapi.yaml` describes it: the parameters of a stream, its body, and what refuses it."""

from __future__ import annotations

from typing import Any

from feedsvc.core.limits import Limits
from feedsvc.openapi_routes import preflight, problems, schema, ticket_parameter

_LIMITS = Limits()
_CODES = (
    *("auth_invalid", "auth_expired", "auth_in_url", "bad_request", "forbidden", "source_unavailable"),
    *("unknown_collection", "filter_invalid", "filter_unsupported", "images_required", "already_subscribed"),
    *("token_invalid", "subscription_limit", "topic_limit", "snapshot_unavailable"),
    *("tenant_quota", "rate_limited", "going_away"),
    "internal",
)
_TOPIC = {"collection": "orders", "filter": {"status": "open"}}
_STREAM = """retry: 2000
id: AXk3...

event: subscribed
data: {"type":"subscribed","id":"0","topic":"Yk3v...","resumed":false,...}
id: AXk3...

event: event
data: {"type":"event","topic":"Yk3v...","event":{"_id":"...","operationType":"insert",...}}
id: B0pq...

"""
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
            "summary": "A stream of server-sent events.",
            "description": f"{_DESCRIPTION} A query parameter that is not listed here is refused.",
            "security": [{"bearer": []}, {}],
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
                ticket_parameter(),
                _last_event_id(),
            ],
            "responses": _responses(),
        },
        "post": {
            "operationId": "openStreamByPost",
            "summary": "The same, for topics that do not fit into a URL.",
            "description": _DESCRIPTION,
            "security": [{"bearer": []}, {}],
            "parameters": [_resume_after(), ticket_parameter(), _last_event_id()],
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {"schema": schema("StreamRequest"), "example": {"topics": [_TOPIC]}}
                },
            },
            "responses": _responses(),
        },
        "options": preflight("Stream"),
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
        "schema": {"type": "string", "maxLength": _LIMITS.sse_resume_token_chars},
    }


def _responses() -> dict[str, Any]:
    return {
        "200": {
            "description": "The stream.",
            "headers": {
                "Cache-Control": {"schema": {"const": "no-store"}},
                "X-Accel-Buffering": {"schema": {"const": "no"}},
            },
            "content": {"text/event-stream": {"schema": {"type": "string"}, "example": _STREAM}},
        },
        "204": {"description": "The stream was closed for good; do not come back."},
        **problems(*_CODES),
    }
