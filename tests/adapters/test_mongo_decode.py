"""Events become changes: envelope, lazy body, synthesised invalidates, and damage that stays where it is."""

from __future__ import annotations

from typing import Any

import bson
import pytest
from bson import Binary, Timestamp
from bson.datetime_ms import DatetimeMS

from feedsvc.adapters.mongo.decode import decode
from feedsvc.core.changes import Change, Namespace, ScopeLevel, UndecodableError
from feedsvc.core.positions import PositionKind, cluster_time_of, record_position
from feedsvc.ports import EventUnavailable


def raw(**fields: Any) -> bytes:
    event = {
        "_id": {"_data": "82aa"},
        "operationType": "insert",
        "clusterTime": Timestamp(5, 6),
        "ns": {"db": "d", "coll": "c"},
        **fields,
    }
    return bson.encode({name: value for name, value in event.items() if value is not None})


def one(event: bytes, level: ScopeLevel = "collection") -> Change:
    (change,) = decode(event, level)
    return change


def test_position_and_size_come_from_the_event() -> None:
    event = raw()
    change = one(event)
    assert change.position == record_position(PositionKind.EVENT, cluster_time_of(5, 6), "82aa")
    assert change.namespace == Namespace("d", "c")
    assert change.size_bytes == len(event)


def test_type_bits_are_kept() -> None:
    assert one(raw(_id={"_data": "82aa", "_typeBits": Binary(b"\x01")})).position.type_bits == b"\x01"


def test_a_token_of_many_kilobytes_is_read() -> None:
    data = "82" + "ab" * 10_000
    event = raw(_id={"_data": data}, fullDocument={"a": 1})
    assert one(event).position.data == data
    assert one(event).body().full_document == {"a": 1}


def test_the_body_keeps_bson_values() -> None:
    """Dates out of Python's range, UUID bytes and both images survive."""
    document = {"_id": 1, "at": DatetimeMS(2**60), "uuid": Binary(b"0123456789abcdef", 4)}
    change = one(
        raw(
            documentKey={"_id": 1},
            fullDocument=document,
            fullDocumentBeforeChange={"_id": 1},
            updateDescription={"updatedFields": {"a.b": 1}},
            wallTime=DatetimeMS(1234),
        )
    )
    body = change.body()
    assert body.document_key == {"_id": 1}
    assert body.full_document == document
    assert body.before == {"_id": 1}
    assert body.update_description == {"updatedFields": {"a.b": 1}}
    assert body.wall_time_ms == 1234


def test_the_body_is_decoded_once() -> None:
    change = one(raw(fullDocument={"a": 1}))
    assert change.body() is change.body()


def test_a_missing_body_is_empty() -> None:
    body = one(raw()).body()
    assert (body.document_key, body.full_document, body.before, body.wall_time_ms) == (None, None, None, None)


@pytest.mark.parametrize("level", ["database", "deployment"])
def test_a_drop_at_a_wide_scope_brings_its_invalidate(level: ScopeLevel) -> None:
    drop, invalidate = decode(raw(operationType="drop"), level)
    assert (drop.position.kind, invalidate.position.kind) == (PositionKind.DROP, PositionKind.INVALIDATE)
    assert drop.position.data == invalidate.position.data


def test_an_unknown_operation_is_a_plain_record() -> None:
    assert one(raw(operationType="reshardCollection"), "deployment").operation == "reshardCollection"


def test_a_rename_names_its_target() -> None:
    assert one(raw(operationType="rename", to={"db": "d", "coll": "e"})).renamed_to == Namespace("d", "e")


def test_an_invalidate_has_no_namespace() -> None:
    change = one(raw(operationType="invalidate", ns=None))
    assert change.namespace is None
    assert change.position.kind is PositionKind.INVALIDATE


def test_an_undecodable_body_leaves_the_envelope_readable() -> None:
    """Invalid UTF-8 in a document: the change has its position, `body()` raises each time."""
    good = raw(fullDocument={"text": "XX"})
    change = one(good.replace(b"XX", b"\xff\xfe"))
    assert change.position.data == "82aa"
    for _ in range(2):
        with pytest.raises(UndecodableError):
            change.body()


@pytest.mark.parametrize("field", ["_id", "operationType", "clusterTime"])
@pytest.mark.parametrize("value", [None, 1.5])
def test_an_event_without_a_usable_envelope_is_unavailable(field: str, value: object) -> None:
    """Missing, or of another type."""
    with pytest.raises(EventUnavailable):
        decode(raw(**{field: value}), "collection")
