"""The envelope reader agrees with `bson` on every BSON type, and garbage gives a documented error."""

from __future__ import annotations

import struct
from typing import Any

import bson
import pytest
from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from hypothesis import given
from hypothesis import strategies as st

from feedsvc.adapters.mongo.envelope import RawEvent, read_envelope
from feedsvc.core.changes import Namespace

SCALARS: list[Any] = [
    None, True, 1, Int64(2**60), 1.5, "text", "", "zero \0 inside", b"bytes", Binary(b"old", 2), Binary(b"", 128),
    ObjectId(), DatetimeMS(2**60), Timestamp(1, 2), Decimal128("0.1"), Regex("a.b", "im"), Regex("", 0), Code("f()"),
    Code("f()", {"x": 1}), MinKey(), MaxKey(), DBRef("c", 1), {}, {"a": {"b": []}}, [], [1, "two", {"three": 3}],
]  # fmt: skip
ENVELOPE = ("_id", "operationType", "clusterTime", "ns", "to")
ERRORS = (BSONError, LookupError, ValueError, struct.error)
names = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=5).filter(
    lambda n: n not in ENVELOPE
)
fields = st.dictionaries(names, st.sampled_from(SCALARS))


@given(fields, fields, st.integers(0, 2**32 - 1), st.text("ab.é"))
def test_it_is_found_among_elements_of_every_type(
    before: dict[str, Any], after: dict[str, Any], time: int, collection: str
) -> None:
    event = {
        "_id": {"_data": "82"},
        **before,
        "operationType": "rename",
        "clusterTime": Timestamp(time, 7),
        **{name: value for name, value in after.items() if name not in before},
        "ns": {"db": "d", "coll": collection},
        "to": {"db": "e"},
    }
    envelope = read_envelope(bson.encode(event))
    assert (envelope.operation, envelope.time, envelope.increment) == ("rename", time, 7)
    assert envelope.namespace == Namespace("d", collection)
    assert envelope.renamed_to == Namespace("e", "")


@given(st.binary(max_size=60))
def test_garbage_gives_a_documented_error(body: bytes) -> None:
    """Whatever the bytes, nothing but the errors of the contract comes out, and it ends."""
    raw = struct.pack("<i", len(body) + 5) + body + b"\0"
    with pytest.raises(ERRORS):
        read_envelope(raw)


@given(st.data())
def test_a_damaged_event_gives_an_envelope_or_a_documented_error(data: st.DataObject) -> None:
    """One byte anywhere is wrong."""
    event = {
        "_id": {"_data": "82"},
        "operationType": "insert",
        "clusterTime": Timestamp(1, 1),
        "fullDocument": {"a": "b"},
        "ns": {"db": "d", "coll": "c"},
    }
    raw = bytearray(bson.encode(event))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        envelope = read_envelope(bytes(raw))
    except ERRORS:
        return
    assert isinstance(envelope.operation, str)


def test_a_raw_event_gives_its_token_without_its_body() -> None:
    """A body that cannot be decoded does not hide the token that the driver asks for."""
    raw = bson.encode({"_id": {"_data": "82"}, "z": {"text": "XX"}}).replace(b"XX", b"\xff\xff")
    event = RawEvent(raw, bson.CodecOptions(document_class=RawEvent))
    assert event["_id"] == {"_data": "82"}
    assert event.token is event["_id"]


def test_a_raw_event_is_a_raw_document_otherwise() -> None:
    """The driver's replies have the same class."""
    event = RawEvent(
        bson.encode({"ok": 1.0, "_id": {"_data": "82"}, "cursor": {"id": 5}}),
        bson.CodecOptions(document_class=RawEvent),
    )
    assert event["ok"] == 1.0
    assert event["_id"]["_data"] == "82"
    assert isinstance(event["cursor"], RawBSONDocument)
    with pytest.raises(KeyError):
        RawEvent(bson.encode({}))["_id"]
