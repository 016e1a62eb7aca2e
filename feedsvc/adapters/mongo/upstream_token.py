"""What may be read from an upstream token: its cluster time, and how to open a stream at it.

Two formats are known. MongoDB's is a KeyString in hex: byte 0x82, then the cluster time as 8 bytes, big endian
(`resume_token.cpp`); it sorts. SecantusDB's is a BSON document in hex: `t` the Timestamp, `s` a sequence number,
`k` the document key (empty for a command), `i` true for an invalidate; it does not sort. Any other format is opaque:
records still have their cluster time from the event, but idle streams give no boundary.

Three rules exist for SecantusDB alone (seen on 0.7.0b3):

* the token of an idle stream is dated by a clock read *after* the scan, while a write with an older time may still be
  committing. It is believed once an empty batch came that was asked for `CONFIRM_S` later: no commit takes as long;
* the token of an idle stream may name the namespace of the last entry scanned, which the engine then refuses to
  open (code 13). A boundary is inclusive of its time, so such a stream is opened by time instead;
* a stream that starts after the token of a drop or rename skips the `invalidate` behind it. It is opened by time,
  and read up to the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import bson
from bson import Timestamp
from bson.errors import BSONError

from feedsvc.core.positions import Position, PositionKind, boundary, cluster_time_of

CONFIRM_S = 0.5

_KEYSTRING_TIMESTAMP = 0x82
_KEYSTRING_PREFIX_DIGITS = 18


def token_parts(token: Mapping[str, Any]) -> tuple[str, bytes | None]:
    """The `_data` and `_typeBits` of an upstream token."""
    type_bits = token.get("_typeBits")
    return str(token["_data"]), None if type_bits is None else bytes(type_bits)


def start_after(position: Position) -> dict[str, Any]:
    """The upstream token of a position that carries `data`."""
    token: dict[str, Any] = {"_data": position.data}
    if position.type_bits is not None:
        token["_typeBits"] = position.type_bits
    return token


def token_cluster_time(data: str) -> int | None:
    """The cluster time (`t << 32 | i`) inside a `_data`, or None for an unknown format."""
    if is_keystring(data):
        try:
            return int(data[2:_KEYSTRING_PREFIX_DIGITS], 16)
        except ValueError:
            return None
    time = _bson_token(data).get("t")
    return cluster_time_of(time.time, time.inc) if isinstance(time, Timestamp) else None


def is_keystring(data: str) -> bool:
    """Whether a `_data` has MongoDB's own format."""
    return len(data) >= _KEYSTRING_PREFIX_DIGITS and data[:2] == f"{_KEYSTRING_TIMESTAMP:X}"


def opens_by_time(position: Position) -> bool:
    """Whether a stream after `position` is opened at its cluster time and, for a record, read up to it."""
    if position.data is None or position.kind is PositionKind.DROP:
        return True
    if is_keystring(position.data):
        return False
    token = _bson_token(position.data)
    if position.is_boundary:
        return "t" in token
    return position.kind is PositionKind.EVENT and token.get("k") == {}


class IdleProgress:
    """Turns the tokens of empty batches into boundaries that are true: nothing older follows them."""

    def __init__(self, start: Position) -> None:
        self._newest_record = start.cluster_time - 1 if start.is_boundary else start.cluster_time
        self._unconfirmed: tuple[Position, float] | None = None  # with the time when it was seen

    def record(self, cluster_time: int) -> None:
        """A record was read."""
        self._newest_record = cluster_time
        self._unconfirmed = None

    def idle(self, token: Mapping[str, Any] | None, asked_s: float, now_s: float) -> Position | None:
        """The boundary that an empty batch with this post-batch token proves, if any.

        `asked_s` is when the batch was asked for, on the same clock as `now_s`. None too where the token is that of
        the last record: a boundary sorts before the records of its time.
        """
        seen = _boundary_of(token)
        if seen is None or seen.data is None:
            return None
        proven = seen if is_keystring(seen.data) else self._confirmed(seen, asked_s, now_s)
        return proven if proven is not None and proven.cluster_time > self._newest_record else None

    def _confirmed(self, seen: Position, asked_s: float, now_s: float) -> Position | None:
        proven = None
        if self._unconfirmed is not None:
            proven, since_s = self._unconfirmed
            if asked_s - since_s < CONFIRM_S:
                return None
        self._unconfirmed = (seen, now_s)
        return proven


def _boundary_of(token: Mapping[str, Any] | None) -> Position | None:
    if token is None:
        return None
    data, type_bits = token_parts(token)
    cluster_time = token_cluster_time(data)
    return None if cluster_time is None else boundary(cluster_time, data, type_bits)


def _bson_token(data: str) -> Mapping[str, Any]:
    """The document inside a token of SecantusDB; empty for any other token."""
    try:
        return bson.decode(bytes.fromhex(data))
    except (ValueError, BSONError):
        return {}
