"""One change as the upstream sends it, and the scope it was read at.

A `Change` keeps its body undecoded until a topic wants it: at scope `deployment` most changes belong to
collections that nobody watches, and a body that cannot be decoded must cost only the topics of its collection
(`event_unavailable`), never the tail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from feedsvc.core.positions import Position, PositionKind

Document = Mapping[str, Any]
ScopeLevel = Literal["collection", "database", "deployment"]

DATA_OPERATIONS = ("insert", "update", "replace", "delete")
"""The operations a client can ask for, in the order of the canonical form."""
COLLECTION_GONE_OPERATIONS = ("drop", "rename", "dropDatabase")


class TailScope(msgspec.Struct, frozen=True):
    """What one upstream stream watches. `database` and `collection` are empty where the level does not name them."""

    level: ScopeLevel
    database: str = ""
    collection: str = ""


class Namespace(msgspec.Struct, frozen=True):
    """A collection, or a whole database where `collection` is empty (dropDatabase)."""

    database: str
    collection: str


class UndecodableError(Exception):
    """The body of a change could not be decoded (invalid BSON or UTF-8)."""


class ChangeBody(msgspec.Struct, frozen=True, gc=False):
    """The decoded part of a change. BSON values as `bson` decodes them, dates as `DatetimeMS`.

    `full_document` is what the lookup found (possibly a later state, or None); `before` is the pre-image, None
    where the collection keeps none or it has expired; `wall_time_ms` is epoch milliseconds.
    """

    document_key: Document | None = None
    full_document: Document | None = None
    before: Document | None = None
    update_description: Document | None = None
    wall_time_ms: int | None = None


class Change(msgspec.Struct, frozen=True):
    """One upstream record.

    `operation` is MongoDB's operationType and may be one this version does not know. `namespace` is None only for
    an upstream `invalidate`, which concerns the whole stream. `renamed_to` is the target of a rename.
    `body()` raises `UndecodableError`. `size_bytes` is the upstream BSON size.
    """

    position: Position
    operation: str
    namespace: Namespace | None
    body: Callable[[], ChangeBody]
    size_bytes: int = 0
    renamed_to: Namespace | None = None


def position_kind(operation: str, level: ScopeLevel) -> PositionKind:
    """The kind of a record's position at a scope.

    A stream is invalidated by MongoDB itself at scope `collection` (drop, rename, dropDatabase) and at scope
    `database` (dropDatabase only); elsewhere the invalidate is ours to synthesise, so the record is a DROP.
    """
    if operation == "invalidate":
        return PositionKind.INVALIDATE
    if operation not in COLLECTION_GONE_OPERATIONS or level == "collection":
        return PositionKind.EVENT
    if level == "database" and operation == "dropDatabase":
        return PositionKind.EVENT
    return PositionKind.DROP


def expand(change: Change) -> tuple[Change, ...]:
    """A change and, behind a DROP, the `invalidate` that MongoDB does not send at this scope."""
    position = change.position
    if position.kind is not PositionKind.DROP:
        return (change,)
    invalidate = Change(
        position=msgspec.structs.replace(position, kind=PositionKind.INVALIDATE),
        operation="invalidate",
        namespace=change.namespace,
        body=change.body,
        renamed_to=change.renamed_to,
    )
    return (change, invalidate)
