"""Changes and topics for the tests of membership and frames: one collection, one document, a filter on `s`."""

from __future__ import annotations

from typing import Any

from feedsvc.core.changes import Change, ChangeBody, Namespace
from feedsvc.core.messages import TopicRequest
from feedsvc.core.policy import Grant
from feedsvc.core.positions import Position, PositionKind, record_position
from feedsvc.core.topics import Topic, effective_topic

ORDERS = Namespace("app", "orders")
AT = record_position(PositionKind.EVENT, (1_800_000_000 << 32) | 3, "82AB")
MATCH: dict[str, Any] = {"_id": 1, "s": 1, "v": 5}
OTHER: dict[str, Any] = {"_id": 1, "s": 2, "v": 5}


def change(
    operation: str,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    *,
    update: dict[str, Any] | None = None,
    key: dict[str, Any] | None = None,
    position: Position = AT,
) -> Change:
    """A change with these images; an update's description sets `s` and `v` if none is given."""
    if operation == "update" and update is None:
        fields = {name: (after or OTHER)[name] for name in ("s", "v")}
        update = {"updatedFields": fields, "removedFields": [], "truncatedArrays": []}
    body = ChangeBody({"_id": 1} if key is None else key, after, before, update, 1_800_000_000_123)
    return Change(position, operation, ORDERS, lambda: body)


def topic(
    filtered_by: str = "nobody",
    *,
    images: bool = True,
    fields: dict[str, Any] | None = None,
    hidden: dict[str, Any] | None = None,
    operations: list[Any] | None = None,
) -> Topic:
    """A topic with the filter `{s: 1}` of nobody, the client or the policy."""
    own: dict[str, Any] = {"s": 1}
    grant = Grant("acme", "app", "orders", own if filtered_by == "policy" else {}, hidden or {}, True)
    request = TopicRequest(
        "orders",
        filter=own if filtered_by == "client" else {},
        operations=operations or ["insert", "update", "replace", "delete"],
        fields=fields or {},
    )
    return effective_topic(grant, request, images=images)
