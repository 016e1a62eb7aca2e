"""What is read from upstream tokens of both formats, and when an idle stream's token may be believed."""

from __future__ import annotations

from typing import Any

import bson
import pytest
from bson import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from feedsvc.adapters.mongo.upstream_token import (
    CONFIRM_S,
    IdleProgress,
    opens_by_time,
    start_after,
    token_cluster_time,
    token_parts,
)
from feedsvc.core.positions import Position, PositionKind, boundary, cluster_time_of, record_position

HIGH_WATER_MARK = "8263515EAC000000022B0429296E1404"  # MongoDB's documentation of change streams


def engine_token(time: int, **fields: Any) -> str:
    return bson.encode(
        {"s": 1, "t": Timestamp(time >> 32, time & 0xFFFFFFFF), "n": "d.c", "k": {}, **fields}
    ).hex()


def keystring(time: int) -> str:
    return f"82{time:016X}2B0429296E1404"


def test_the_documented_token_has_its_documented_time() -> None:
    assert token_cluster_time(HIGH_WATER_MARK) == cluster_time_of(0x63515EAC, 2)


@given(st.integers(0, 2**64 - 1))
def test_both_formats_give_the_time_they_were_made_of(time: int) -> None:
    assert token_cluster_time(keystring(time)) == time
    assert token_cluster_time(engine_token(time)) == time


@given(st.text(max_size=40) | st.binary(max_size=40).map(bytes.hex))
def test_any_other_token_has_no_time_or_some_time(data: str) -> None:
    """Opaque formats never raise."""
    found = token_cluster_time(data)
    assert found is None or 0 <= found < 2**64


@pytest.mark.parametrize("data", ["", "82", "82zzzzzzzzzzzzzzzz00", "aa", "é"])
def test_unknown_formats_have_no_time(data: str) -> None:
    assert token_cluster_time(data) is None


def test_type_bits_make_the_round_trip() -> None:
    token = {"_data": "82", "_typeBits": b"\x80"}
    data, type_bits = token_parts(token)
    assert start_after(record_position(PositionKind.EVENT, 1, data, type_bits)) == token
    assert start_after(record_position(PositionKind.EVENT, 1, "82")) == {"_data": "82"}


@pytest.mark.parametrize(
    "position, by_time",
    [
        (boundary(5), True),
        (boundary(5, keystring(5)), False),
        (boundary(5, engine_token(5)), True),
        (boundary(5, "opaque"), False),
        (record_position(PositionKind.EVENT, 5, keystring(5)), False),
        (record_position(PositionKind.DROP, 5, keystring(5)), True),
        (record_position(PositionKind.INVALIDATE, 5, keystring(5)), False),
        (Position(PositionKind.EVENT, 5, None, b"digest"), True),
        (record_position(PositionKind.EVENT, 5, engine_token(5, k={"_id": 1})), False),
        (record_position(PositionKind.EVENT, 5, engine_token(5)), True),
        (record_position(PositionKind.INVALIDATE, 5, engine_token(5, i=True)), False),
    ],
)
def test_what_is_opened_by_time(position: Position, by_time: bool) -> None:
    """No token, a token that stands for two records, or one that this engine would not honour."""
    assert opens_by_time(position) is by_time


def test_a_sortable_token_is_believed_at_once() -> None:
    assert IdleProgress(boundary(1)).idle({"_data": keystring(5)}, 0, 0) == boundary(5, keystring(5))


def test_an_engine_token_is_believed_at_an_empty_batch_asked_for_later() -> None:
    """It is dated after the scan it stands for, while older writes may still be committing."""
    progress = IdleProgress(boundary(1))
    assert progress.idle({"_data": engine_token(5)}, 0.0, 1.0) is None
    assert progress.idle({"_data": engine_token(6)}, 1.0, 9.0) is None
    assert progress.idle({"_data": engine_token(7)}, 1.0 + CONFIRM_S, 9.0) == boundary(5, engine_token(5))
    assert progress.idle({"_data": engine_token(7)}, 9.0 + CONFIRM_S, 9.9) == boundary(7, engine_token(7))


def test_a_record_in_between_takes_the_proof_away() -> None:
    progress = IdleProgress(boundary(1))
    progress.idle({"_data": engine_token(5)}, 0.0, 0.0)
    progress.record(4)
    assert progress.idle({"_data": engine_token(6)}, 9.0, 9.0) is None


def test_no_boundary_at_the_time_of_the_last_record() -> None:
    """The token of an empty batch behind a record is often that record's own."""
    progress = IdleProgress(boundary(1))
    progress.record(5)
    assert progress.idle({"_data": keystring(5)}, 0, 0) is None
    assert progress.idle({"_data": keystring(6)}, 0, 0) == boundary(6, keystring(6))


def test_no_boundary_before_the_start() -> None:
    """A record's own time is taken; a boundary's is not."""
    record = record_position(PositionKind.EVENT, 5, keystring(5))
    assert IdleProgress(record).idle({"_data": keystring(5)}, 0, 0) is None
    assert IdleProgress(boundary(5)).idle({"_data": keystring(5)}, 0, 0) is not None
    assert IdleProgress(boundary(5)).idle({"_data": keystring(4)}, 0, 0) is None


@pytest.mark.parametrize("token", [None, {"_data": "opaque"}])
def test_no_boundary_without_a_readable_token(token: dict[str, str] | None) -> None:
    assert IdleProgress(boundary(0)).idle(token, 0, 0) is None
