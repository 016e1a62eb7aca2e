"""The envelope reader agrees with `bson` on every BSON type, and garbage gives a documented error."""

from __future__ import annotations

import struct
from typing import Any

import bson
import pytest
from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from bson.errors import BSONError
from hypothesis import given
from hypothesis import strategies as st

from feedsvc.adapters.mongo.envelope import MALFORMED, Reply, read_envelope, read_reply, read_token
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


def test_the_token_is_read_without_the_body() -> None:
    """A body that cannot be decoded does not hide it, and it need not come first."""
    raw = bson.encode({"z": {"text": "XX"}, "_id": {"_data": "82"}}).replace(b"XX", b"\xff\xff")
    assert read_token(raw) == {"_data": "82"}
    with pytest.raises(KeyError):
        read_token(bson.encode({"z": 1}))


@pytest.mark.parametrize("count", [0, 1, 11, 1000])
@pytest.mark.parametrize("first", [True, False])
def test_a_reply_gives_its_events_as_they_stand(count: int, first: bool) -> None:
    events = [{"_id": {"_data": f"82{number:04X}"}, "x": "y" * number} for number in range(count)]
    cursor = {
        "nextBatch": events,
        "postBatchResumeToken": {"_data": "82FF"},
        "id": bson.Int64(7),
        "ns": "d.c",
    }
    times = {"ok": 1.0, "$clusterTime": {"clusterTime": Timestamp(1, 2)}, "operationTime": Timestamp(1, 2)}
    reply = read_reply(bson.encode({"cursor": cursor, **times} if first else {**times, "cursor": cursor}))
    assert reply is not None
    assert [bson.decode(event) for event in reply.events] == events
    assert bson.decode(reply.token) == {"_data": "82FF"}
    assert reply.cursor == 7


def test_a_reply_may_have_no_token_and_an_error_is_no_reply() -> None:
    """Servers before 4.0.7 name no position of a batch."""
    reply = read_reply(bson.encode({"cursor": {"nextBatch": [], "id": bson.Int64(0)}, "ok": 1}))
    assert reply == Reply(0, [], b"")
    assert read_reply(bson.encode({"ok": 0.0, "code": 43, "errmsg": "cursor id 7 not found"})) is None


@given(st.data())
def test_a_damaged_reply_is_read_or_refused(data: st.DataObject) -> None:
    """One byte anywhere is wrong: its events are bytes of it, or the error is a documented one."""
    events = [{"_id": {"_data": "82"}, "a": "b"}, {"_id": {"_data": "83"}}]
    cursor = {"nextBatch": events, "postBatchResumeToken": {"_data": "82"}, "id": bson.Int64(7)}
    raw = bytearray(bson.encode({"cursor": cursor, "ok": 1.0}))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        reply = read_reply(bytes(raw))
    except MALFORMED:
        return
    assert reply is None or all(event in bytes(raw) for event in reply.events)
