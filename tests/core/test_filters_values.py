"""BSON comparison: brackets, equality and order as MongoDB defines them."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import combinations
from typing import Any
from uuid import UUID

import pytest
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef
from hypothesis import given
from hypothesis import strategies as st

from feedsvc.core.filters.values import MISSING, bracket, compare, value_key
from tests.core.bson_strategies import EDGES, VALUES

ANY_VALUE = st.one_of(VALUES, EDGES)

ASCENDING: list[Any] = [
    MinKey(),
    None,
    float("nan"),
    float("-inf"),
    Decimal128("-1E+6000"),
    -1,
    0,
    5e-324,
    # Decimal 0.1 lies below the double that is written 0.1.
    Decimal128("0.1"),
    0.1,
    1,
    2.0**53,
    Int64(2**53 + 1),
    Decimal128("9007199254740993.5"),
    float("inf"),
    "",
    "10",
    "9",
    "a",
    "aa",
    "\uffff",
    "\U00010000",
    {},
    {"a": 1},
    {"a": 2},
    {"b": 1},
    {"a": "x"},
    [],
    [1],
    [1, 1],
    [2],
    b"",
    b"z",
    Binary(b"a", 128),
    b"aa",
    ObjectId("0" * 24),
    ObjectId("f" * 24),
    False,
    True,
    DatetimeMS(-1),
    DatetimeMS(0),
    Timestamp(0, 5),
    Timestamp(1, 0),
    Regex("a", ""),
    Regex("a", "i"),
    Code("a"),
    Code("a", {"x": 1}),
    MaxKey(),
]


def test_order_of_all_brackets() -> None:
    """Every value sorts before every later one, in both directions, and has a key of its own."""
    for low, high in combinations(ASCENDING, 2):
        assert compare(low, high) < 0 < compare(high, low), (low, high)
        assert value_key(low) != value_key(high), (low, high)


@pytest.mark.parametrize(
    "values",
    [
        [1, Int64(1), 1.0, Decimal128("1"), Decimal128("1.0"), Decimal128("10E-1")],
        [0, -0.0, Decimal128("-0"), Decimal128("0E+10")],
        [float("nan"), Decimal128("NaN"), Decimal128("sNaN")],
        [float("inf"), Decimal128("Infinity")],
        [0.5, Decimal128("0.50")],
        # The server rounds a double to 34 digits before it compares it with a decimal.
        [0.1, Decimal128("0.1000000000000000055511151231257827")],
        [
            DatetimeMS(1500),
            datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC).replace(tzinfo=None),
            datetime(1970, 1, 1, 0, 0, 1, 500_999, UTC),
        ],
        [UUID(int=7), Binary(UUID(int=7).bytes, 4)],
        [b"x", Binary(b"x", 0)],
        [DBRef("c", 1), {"$ref": "c", "$id": 1}],
        [[1, {"a": 1.0}], [Int64(1), {"a": 1}]],
    ],
)
def test_equal_values_share_a_key(values: list[Any]) -> None:
    """What MongoDB calls equal has one key and compares as equal."""
    assert len({value_key(value) for value in values}) == 1
    assert all(compare(values[0], value) == 0 for value in values)


@pytest.mark.parametrize(
    "left, right",
    [
        (1, True),
        (0, False),
        (Decimal128("0.1"), 0.1),
        (2.0**53, Int64(2**53 + 1)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (None, MISSING),
        (DatetimeMS(1000), Timestamp(1, 0)),
        ("a", Code("a")),
        (b"x", Binary(b"x", 5)),
        (ObjectId("0" * 24), "0" * 24),
    ],
)
def test_unequal_values_have_different_keys(left: Any, right: Any) -> None:
    """Look-alikes of another type or another field order are not equal."""
    assert value_key(left) != value_key(right)


@given(ANY_VALUE, ANY_VALUE, ANY_VALUE)
def test_order_is_total_and_agrees_with_keys(a: Any, b: Any, c: Any) -> None:
    """The order is antisymmetric and transitive, and zero means the same key."""
    assert (compare(a, b) > 0) == (compare(b, a) < 0)
    assert (compare(a, b) == 0) == (value_key(a) == value_key(b))
    if compare(a, b) <= 0 and compare(b, c) <= 0:
        assert compare(a, c) <= 0


def test_what_is_not_bson_is_a_type_error() -> None:
    """A value that BSON does not know is reported, never compared."""
    with pytest.raises(TypeError):
        bracket({1, 2})
