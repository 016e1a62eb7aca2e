"""Fragments of a large event become the event again, and nothing else is touched."""

from __future__ import annotations

from typing import Any

import bson
import pytest
from bson import Timestamp
from bson.datetime_ms import DatetimeMS
from hypothesis import given
from hypothesis import strategies as st

from feedsvc.adapters.mongo.decode import BODY_CODEC, decode
from feedsvc.adapters.mongo.split import Reassembly
from feedsvc.ports import EventUnavailable

UPDATE: dict[str, Any] = {
    "operationType": "update",
    "clusterTime": Timestamp(5, 6),
    "wallTime": DatetimeMS(2**50),
    "ns": {"db": "d", "coll": "c"},
    "documentKey": {"_id": 1},
    "fullDocument": {"_id": 1, "after": "a" * 5000},
    "fullDocumentBeforeChange": {"_id": 1, "before": "b" * 5000},
    "updateDescription": {"updatedFields": {"after": "a" * 5000}, "removedFields": ["before"]},
}


def fragment(number: int, count: int, fields: dict[str, Any]) -> bytes:
    """As MongoDB makes it: a token of its own, and some of the fields."""
    split = {"fragment": number, "of": count}
    return bson.encode({"_id": {"_data": f"82{number:016X}"}, "splitEvent": split, **fields})


@given(st.lists(st.integers(0, 3), min_size=len(UPDATE), max_size=len(UPDATE)), st.integers(2, 4))
def test_any_cut_is_put_together(places: list[int], count: int) -> None:
    """However the fields are spread; the whole has the token of the last fragment, and no `splitEvent`."""
    pieces: list[dict[str, Any]] = [{} for _ in range(count)]
    for place, (name, value) in zip(places, UPDATE.items(), strict=True):
        pieces[place % count][name] = value
    reassembly = Reassembly()
    for number, piece in enumerate(pieces[:-1], 1):
        assert reassembly.whole(fragment(number, count, piece)) is None
        assert reassembly.pending
    whole = reassembly.whole(fragment(count, count, pieces[-1]))
    assert whole is not None
    assert not reassembly.pending
    token = {"_id": {"_data": f"82{count:016X}"}}
    assert bson.decode(whole, BODY_CODEC) == {**token, **UPDATE}
    (change,) = decode(whole, "collection")
    assert change.position.data == token["_id"]["_data"]
    assert change.body().before == UPDATE["fullDocumentBeforeChange"]


def test_fields_that_every_fragment_repeats_come_once() -> None:
    """SecantusDB repeats all small fields in each of them, under one token."""
    small = {name: UPDATE[name] for name in ("operationType", "clusterTime", "ns")}
    reassembly = Reassembly()
    reassembly.whole(fragment(1, 2, {**small, "fullDocument": {"_id": 1}}))
    whole = reassembly.whole(fragment(2, 2, {**small, "fullDocumentBeforeChange": {"_id": 2}}))
    assert whole is not None
    assert bson.decode(whole) == {
        "_id": {"_data": f"82{2:016X}"},
        **small,
        "fullDocument": {"_id": 1},
        "fullDocumentBeforeChange": {"_id": 2},
    }


@pytest.mark.parametrize(
    "event",
    [
        bson.encode({"_id": {"_data": "82"}, **UPDATE}),
        bson.encode({"_id": {"_data": "82"}, "fullDocument": {"splitEvent": {"of": 2}}}),
        fragment(1, 1, UPDATE),
    ],
    ids=["no fragment", "a field of that name in the document", "the only fragment"],
)
def test_what_is_whole_passes_untouched(event: bytes) -> None:
    reassembly = Reassembly()
    assert reassembly.whole(event) is event
    assert not reassembly.pending


@pytest.mark.parametrize(
    "events",
    [
        [fragment(2, 2, UPDATE)],
        [fragment(1, 3, {}), fragment(3, 3, UPDATE)],
        [fragment(1, 2, {}), bson.encode({"_id": {"_data": "82"}, **UPDATE})],
        [bson.encode({"_id": {"_data": "82"}, "splitEvent": {}})],
        [bson.encode({"_id": {"_data": "82"}, "splitEvent": {"fragment": "x", "of": []}})],
    ],
    ids=["without its first", "one is missing", "an event in between", "no numbers", "no numbers either"],
)
def test_fragments_that_do_not_fit_are_an_event_that_cannot_be_had(events: list[bytes]) -> None:
    """Not a hole, and not half of an event."""
    reassembly = Reassembly()
    for event in events[:-1]:
        assert reassembly.whole(event) is None
    with pytest.raises(EventUnavailable):
        reassembly.whole(events[-1])


def test_memory_is_bounded() -> None:
    reassembly = Reassembly(max_bytes=3000)
    assert reassembly.whole(fragment(1, 9, {"a": b"x" * 2000})) is None
    with pytest.raises(EventUnavailable):
        reassembly.whole(fragment(2, 9, {"b": b"x" * 2000}))
