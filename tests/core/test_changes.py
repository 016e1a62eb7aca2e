"""Changes: which kind of position a record has at a scope, and the invalidate that is synthesised behind it."""

from __future__ import annotations

import pytest

from feedsvc.core.changes import (
    COLLECTION_GONE_OPERATIONS,
    DATA_OPERATIONS,
    Change,
    ChangeBody,
    Namespace,
    ScopeLevel,
    expand,
    position_kind,
)
from feedsvc.core.positions import PositionKind, record_position

EVENT, DROP, INVALIDATE = PositionKind.EVENT, PositionKind.DROP, PositionKind.INVALIDATE

KINDS: list[tuple[str, ScopeLevel, PositionKind]] = [
    ("drop", "collection", EVENT),
    ("rename", "collection", EVENT),
    ("dropDatabase", "collection", EVENT),
    ("drop", "database", DROP),
    ("rename", "database", DROP),
    ("dropDatabase", "database", EVENT),
    ("drop", "deployment", DROP),
    ("rename", "deployment", DROP),
    ("dropDatabase", "deployment", DROP),
    ("create", "deployment", EVENT),
    *(("invalidate", level, INVALIDATE) for level in ("collection", "database", "deployment")),
    *((operation, level, EVENT) for operation in DATA_OPERATIONS for level in ("collection", "deployment")),
]


@pytest.mark.parametrize("operation, level, kind", KINDS)
def test_kinds(operation: str, level: ScopeLevel, kind: PositionKind) -> None:
    """A record is a DROP exactly where MongoDB sends no invalidate behind it."""
    assert position_kind(operation, level) is kind


def change(operation: str, kind: PositionKind) -> Change:
    return Change(
        record_position(kind, 9, "82", b"t"),
        operation,
        Namespace("app", "orders"),
        ChangeBody,
        100,
        Namespace("app", "old") if operation == "rename" else None,
    )


@pytest.mark.parametrize("operation", COLLECTION_GONE_OPERATIONS)
def test_an_invalidate_is_synthesised_behind_a_drop(operation: str) -> None:
    """It has the same time, token and type bits, and knows where a rename went."""
    gone = change(operation, DROP)
    first, second = expand(gone)
    assert first is gone
    assert second.operation == "invalidate"
    assert second.position.kind is INVALIDATE
    assert second.position.cluster_time == gone.position.cluster_time
    assert (second.position.data, second.position.type_bits) == (gone.position.data, gone.position.type_bits)
    assert (second.namespace, second.renamed_to) == (gone.namespace, gone.renamed_to)


@pytest.mark.parametrize("operation, kind", [("insert", EVENT), ("drop", EVENT), ("invalidate", INVALIDATE)])
def test_other_records_stay_alone(operation: str, kind: PositionKind) -> None:
    """Where MongoDB sends the invalidate itself none is added."""
    plain = change(operation, kind)
    assert expand(plain) == (plain,)
