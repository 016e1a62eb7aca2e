"""The envelope of an upstream event, and of the reply that it came in, read from bytes without decoding the rest.

A tail reads every change of its scope, most of which nobody may want, so what each one costs matters. Inflating a
`RawBSONDocument` makes an object of every nested document; here the top-level elements are walked and those decoded
that are needed, which does not depend on the size of the body.

Everything here raises one of `MALFORMED` for what is missing or malformed.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from struct import Struct
from typing import Any

import bson
import msgspec
from bson.errors import BSONError

from feedsvc.core.changes import Namespace

_INT32 = Struct("<i")
_INT64 = Struct("<q")
_TIMESTAMP = Struct("<II")

_STRING, _DOCUMENT, _ARRAY, _TIME, _LONG = 0x02, 0x03, 0x04, 0x11, 0x12
_FIXED_BYTES = {
    0x01: 8,  # double
    0x06: 0,  # undefined
    0x07: 12,  # ObjectId
    0x08: 1,  # boolean
    0x09: 8,  # date
    0x0A: 0,  # null
    0x10: 4,  # int32
    0x11: 8,  # timestamp
    0x12: 8,  # int64
    0x13: 16,  # decimal128
    0x7F: 0,  # max key
    0xFF: 0,  # min key
}
_PREFIXED_BYTES = {
    0x02: 4,  # string: a length that does not count itself
    0x03: 0,  # document: one that does
    0x04: 0,  # array
    0x05: 5,  # binary: the length counts neither itself nor the subtype
    0x0D: 4,  # JavaScript
    0x0E: 4,  # symbol
    0x0F: 0,  # JavaScript with scope
    0x0C: 16,  # DBPointer: a string and an ObjectId
}
_REGEX = 0x0B
_LEAST_BYTES = 5
_SPLIT = b"\x03splitEvent\0"

MALFORMED = (BSONError, LookupError, TypeError, ValueError, struct.error)


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """All of it but the token. `time` and `increment` are the cluster time."""

    operation: str
    time: int
    increment: int
    namespace: Namespace | None
    renamed_to: Namespace | None


def read_token(raw: bytes) -> Any:
    """The `_id` of an event, decoded; it comes first, so nothing else is looked at."""
    found = _first(raw, b"_id")
    if found is None:
        raise KeyError("_id")
    return bson.decode(_document(raw, found))


def read_envelope(raw: bytes) -> Envelope:
    """The envelope of an event's BSON; the body around it is not looked at."""
    places = element_places(raw)
    start = _start(places[b"operationType"], _STRING)
    operation = raw[start + 4 : start + 3 + _INT32.unpack_from(raw, start)[0]].decode()
    increment, time = _TIMESTAMP.unpack_from(raw, _start(places[b"clusterTime"], _TIME))
    return Envelope(
        operation,
        time,
        increment,
        _namespace(_document(raw, places[b"ns"])) if b"ns" in places else None,
        _namespace(_document(raw, places[b"to"])) if b"to" in places else None,
    )


def read_fragment(raw: bytes) -> tuple[int, int] | None:
    """Number (from 1) and count of the fragments, where an event is a piece of a larger one."""
    if _SPLIT not in raw:
        return None
    places = element_places(raw)
    if b"splitEvent" not in places:
        return None  # the name of a field further in
    split = bson.decode(_document(raw, places[b"splitEvent"]))
    number, count = split["fragment"], split["of"]
    return None if count == 1 else (number, count)


class Reply(msgspec.Struct, frozen=True, gc=False):
    """To a `getMore`. `cursor` is 0 where there is no more; `token` is the `postBatchResumeToken`, empty without one;
    both it and the events are BSON."""

    cursor: int
    events: list[bytes]
    token: bytes


def read_reply(raw: bytes) -> Reply | None:
    """None where it says nothing of a cursor: it is an error."""
    found = _first(raw, b"cursor")
    if found is None:
        return None
    places = element_places(raw, _start(found, _DOCUMENT))
    position = _start(places[b"nextBatch"], _ARRAY)
    end = position + _INT32.unpack_from(raw, position)[0] - 1
    position += 4
    events = []
    while position < end:
        kind = raw[position]
        position = raw.index(0, position) + 1
        event = _document(raw, (kind, position))
        events.append(event)
        position += len(event)
    _ends_at(raw, position, end)
    token = places.get(b"postBatchResumeToken")
    return Reply(
        _INT64.unpack_from(raw, _start(places[b"id"], _LONG))[0],
        events,
        b"" if token is None else _document(raw, token),
    )


def element_places(raw: bytes, start: int = 0) -> dict[bytes, tuple[int, int]]:
    """BSON type and offset of the value of each element of the document that begins at `start`, by name, in order."""
    places = {}
    position, end = start + 4, start + _INT32.unpack_from(raw, start)[0] - 1
    while position < end:
        kind = raw[position]
        stop = raw.index(0, position + 1)
        places[raw[position + 1 : stop]] = (kind, stop + 1)
        position = stop + 1
        size = _FIXED_BYTES.get(kind)
        if size is None:
            size = _regex_size(raw, position) if kind == _REGEX else _prefixed_size(raw, position, kind)
        position += size
    _ends_at(raw, position, end)
    return places


def _first(raw: bytes, name: bytes) -> tuple[int, int] | None:
    """The same of one element that is a document and mostly comes first; None without it."""
    if raw.startswith(b"\x03%b\0" % name, 4):
        return _DOCUMENT, len(name) + 6
    return element_places(raw).get(name)


def _prefixed_size(raw: bytes, position: int, kind: int) -> int:
    size: int = _INT32.unpack_from(raw, position)[0]
    if size < 0:
        raise ValueError("a negative length")
    return size + _PREFIXED_BYTES[kind]


def _regex_size(raw: bytes, position: int) -> int:
    return raw.index(0, raw.index(0, position) + 1) + 1 - position


def _start(place: tuple[int, int], wanted: int) -> int:
    kind, start = place
    if kind != wanted:
        raise ValueError("an element of the envelope has another type")
    return start


def _document(raw: bytes, place: tuple[int, int]) -> bytes:
    start = _start(place, _DOCUMENT)
    size = _INT32.unpack_from(raw, start)[0]
    document = raw[start : start + size]
    if size < _LEAST_BYTES or len(document) != size:
        raise ValueError("a document is cut short")
    return document


def _ends_at(raw: bytes, position: int, end: int) -> None:
    """A wrong length would pass over elements in silence."""
    if position != end or raw[end] != 0:
        raise ValueError("a document does not end where it says")


@lru_cache(maxsize=4096)
def _namespace(raw: bytes) -> Namespace:
    value = bson.decode(raw)
    return Namespace(value["db"], value.get("coll", ""))
