"""`/v1/topics/explain` as `openapi.yaml` describes it."""

from __future__ import annotations

from typing import Any

from feedsvc.openapi_routes import NO_STORE, cross_origin, json_body, problems, schema

_EXAMPLE_TOPIC = {
    "collection": "orders",
    "filter": {"status": {"$in": ["open", "paid"]}, "total": {"$gte": 100}},
    "operations": ["insert", "update", "replace", "delete"],
    "fields": {"total": 1, "status": 1},
}
_EXPLAINED = {
    "topic": "Yk3vKq0c1v2mJ8bZrT0x",
    "canonical": {
        "collection": "orders",
        "filter": {"total": {"$gte": 100}, "status": {"$in": ["open", "paid"]}},
        "policyFilter": True,
        "operations": ["insert", "update", "replace", "delete"],
        "fields": {"status": 1, "total": 1},
        "membership": "exact",
    },
    "index": {"lookups": [["status"]], "residual": True, "scanned": False, "cost": 6},
    "fidelity": {"membership": "exact", "deletes": True},
    "snapshot": {"available": True},
}
_REFUSED = {
    "refused": {
        "code": "filter_unsupported",
        "message": "topic.filter: note.$text: this operator is not supported",
    }
}


def explain() -> dict[str, Any]:
    """`POST /v1/topics/explain`."""
    return {
        "operationId": "explainTopic",
        "tags": ["feeds"],
        "summary": "What a subscribe with this topic would get, without a stream.",
        "description": (
            "The body is the `topic` of a `Subscribe` frame. The answer names the topic id, the topic in canonical "
            "form, what the matcher's index does with it, what its membership events can promise, and whether it can "
            "have a snapshot; or why it would be refused. What the policy adds is not shown, only that it does."
        ),
        "security": [{"bearer": []}],
        "requestBody": json_body("TopicRequest", _EXAMPLE_TOPIC),
        "responses": {
            "200": {
                "description": "The answer, also where the topic would be refused.",
                "headers": {**NO_STORE, **cross_origin()},
                "content": {
                    "application/json": {
                        "schema": {"anyOf": [schema("Explained"), schema("Refused")]},
                        "examples": {
                            "explained": {"summary": "A topic.", "value": _EXPLAINED},
                            "refused": {"summary": "No topic.", "value": _REFUSED},
                        },
                    }
                },
            },
            **problems(
                *("bad_request", "auth_invalid", "auth_expired", "auth_in_url", "forbidden"),
                *("rate_limited", "source_unavailable", "internal"),
            ),
        },
    }
