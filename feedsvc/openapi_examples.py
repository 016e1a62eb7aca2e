"""The examples of `openapi.yaml`: one of each frame, and of each error what a problem document of it looks like.

Tests read the frames with the decoders of the service and hold all examples against their schemas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feedsvc.core.errors import REGISTRY, problem

_TOPIC = "Yk3vKq0c1v2mJ8bZrT0x"
_AT = {"$timestamp": {"t": 1767225600, "i": 3}}
_POSITION = "AXk3u8kq9vB3mZ0pQ"
_LATER = "AXk3u8kq9vB3mZ0pR"
_ORDER = {"_id": 17, "status": "open", "total": 140}

SCHEMAS: Mapping[str, Any] = {
    "Auth": {"type": "auth", "jwt": "eyJhbGciOi..."},
    "Subscribe": {
        "type": "subscribe",
        "id": "a1",
        "topic": {
            "collection": "orders",
            "filter": {"status": "open"},
            "operations": ["insert", "update"],
            "fields": {"status": 1, "total": 1},
        },
        "resumeAfter": _POSITION,
    },
    "TopicRequest": {"collection": "orders", "filter": {"total": {"$gte": 100}}},
    "Unsubscribe": {"type": "unsubscribe", "topic": _TOPIC},
    "Ping": {"type": "ping"},
    "Welcome": {
        "type": "welcome",
        "connection": "Si8P8VJcg0wJ",
        "heartbeatMs": 20_000,
        "authExpiresAt": 1_767_229_200_000,
        "limits": {"frameBytes": 65_536, "eventBytes": 1_048_576, "filterBytes": 4096, "subscriptions": 128},
        "server": "feedsvc/1.0.0",
    },
    "Authenticated": {"type": "authenticated", "authExpiresAt": 1_767_232_800_000},
    "Subscribed": {
        "type": "subscribed",
        "id": "a1",
        "topic": _TOPIC,
        "resumed": True,
        "clusterTime": _AT,
        "fidelity": {"membership": "exact", "deletes": True},
        "oplogWindowSeconds": 172_800,
        "token": _POSITION,
    },
    "Event": {
        "type": "event",
        "topic": _TOPIC,
        "event": {
            "_id": _LATER,
            "operationType": "update",
            "clusterTime": _AT,
            "wallTime": {"$date": "2026-01-01T00:00:00.012Z"},
            "ns": {"coll": "orders"},
            "documentKey": {"_id": 17},
            "fullDocument": _ORDER,
            "updateDescription": {"updatedFields": {"total": 140}, "removedFields": []},
            "membership": "stayed",
        },
    },
    "Checkpoint": {"type": "checkpoint", "tokens": {_TOPIC: _LATER}},
    "Snapshot": {"type": "snapshot", "topic": _TOPIC, "page": 0, "documents": [_ORDER]},
    "SnapshotEnd": {"type": "snapshotEnd", "topic": _TOPIC, "token": _POSITION, "clusterTime": _AT},
    "Live": {"type": "live", "topic": _TOPIC},
    "Resync": {
        "type": "resync",
        "topic": _TOPIC,
        "reason": "token_expired",
        "clusterTime": _AT,
        "retryAfterMs": 250,
        "token": _LATER,
    },
    "Unsubscribed": {
        "type": "unsubscribed",
        "topic": _TOPIC,
        "code": "topic_changed",
        "resubscribe": True,
    },
    "Heartbeat": {"type": "heartbeat", "stalled": [], "lagMs": 12},
    "Pong": {"type": "pong"},
    "Goaway": {"type": "goaway", "reconnectAfterMs": 1400},
    "Error": {
        "type": "error",
        "code": "filter_unsupported",
        "message": "topic.filter: note.$text: this operator is not supported",
        "retryable": False,
        "id": "a1",
    },
    "Close": {"type": "close", "code": 4205, "action": "reconnect", "reason": "max_age"},
    "StreamRequest": {
        "topics": [{"collection": "orders", "filter": {"status": "open"}}],
        "snapshot": "onResync",
    },
    "ExtendedTimestamp": _AT,
}

_DETAILS: Mapping[str, str] = {
    "bad_request": "topic refused: Object missing required field `collection`",
    "auth_invalid": "the JWT names no tenant",
    "auth_expired": "the JWT has expired",
    "auth_in_url": "a JWT in a URL is refused; send it as Authorization: Bearer",
    "forbidden": "the Origin is not allowed here",
    "unknown_collection": "the policy names no collection invoices",
    "filter_invalid": "topic.filter: status.$in: must be an array",
    "filter_unsupported": "topic.filter: note.$text: this operator is not supported",
    "rate_limited": "at most 60 of these requests a minute for one tenant",
    "internal": "logged as 9f2c41d7",
    "going_away": "this instance is shutting down; connect to another",
    "not_found": "there is nothing at this path",
    "method_not_allowed": "this path takes the methods in Allow",
}


def problem_examples() -> dict[str, Any]:
    """`components.examples`: the problem document of every code that a response can carry."""
    return {
        code: {
            "summary": entry.meaning,
            "value": problem(code, _DETAILS.get(code, entry.meaning)),
        }
        for code, entry in REGISTRY.items()
    }


def illustrate(schemas: dict[str, Any]) -> None:
    """Put the examples into the schemas."""
    for name, example in SCHEMAS.items():
        schemas[name]["examples"] = [example]
