"""Compiled filters on the cases that the shared vectors and the engine do not decide."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex
from bson.dbref import DBRef
from hypothesis import given
from hypothesis import strategies as st

from feedsvc.core.extjson import canonical, decode, holds_non_finite
from feedsvc.core.filters.compile import compile_filter
from feedsvc.core.filters.parse import parse_filter
from feedsvc.core.filters.values import compare
from feedsvc.core.projection import Projection
from tests.core.bson_strategies import EDGES, VALUES, documents, filters


def matches(query: dict[str, Any], document: dict[str, Any]) -> bool:
    return compile_filter(parse_filter(query))(document)


@pytest.mark.parametrize(
    "query, document, expected",
    [
        # A path through an array by index: path.cpp yields nothing where the index is not there.
        ({"a.1": None}, {"a": []}, False),
        ({"a.1": None}, {"a": [1]}, False),
        ({"a.1": None}, {"a": [1, None]}, True),
        ({"a.1": {"$ne": None}}, {"a": []}, True),
        ({"a.1.b": None}, {"a": [1, 2]}, False),
        ({"a.0.b": None}, {"a": [{"b": 1}]}, True),
        ({"a.0.b": None}, {"a": [[{"b": 1}]]}, False),
        ({"a.0.b": None}, {"a": [[{}]]}, True),
        ({"fam.0.status": None}, {"fam": [{"status": "x"}]}, True),
        ({"fam.0.status": None}, {"fam": []}, False),
        ({"a.0": {"$exists": True}}, {"a": []}, False),
        ({"a.0": {"$exists": True}}, {"a": [[]]}, True),
        # An element reached by index is not spread again (path_test.cpp, ArrayIndex2).
        ({"a.0": 1}, {"a": [[1, 2]]}, False),
        ({"a.0": [1, 2]}, {"a": [[1, 2]]}, True),
        ({"a.0.1": 2}, {"a": [[1, 2]]}, True),
        ({"a.00": 1}, {"a": [1]}, False),
        ({"a.00": 1}, {"a": {"00": 1}}, True),
        ({"0": 1}, {"0": 1}, True),
        # null, missing and arrays (jstests/core/null_query_semantics.js)
        ({"a.b": None}, {"a": 4}, True),
        ({"a.b": None}, {"a": [4]}, False),
        ({"a.b": None}, {"a": []}, False),
        ({"a.b": None}, {"a": [[]]}, False),
        ({"a.b": None}, {"a": [{"b": 1}, {}]}, True),
        ({"a": None}, {"a": []}, False),
        ({"a": {"$not": {"$gte": None}}}, {"a": [1, None]}, False),
        ({"a": {"$gt": None}}, {"a": None}, False),
        ({"a": {"$in": [None, 1]}}, {}, True),
        ({"a": {"$nin": [None, 1]}}, {}, False),
        # MinKey and MaxKey are the only operands whose ranges cross brackets; a missing field is in them.
        ({"a": {"$gt": MinKey()}}, {}, True),
        ({"a": {"$gt": MinKey()}}, {"a": MinKey()}, False),
        ({"a": {"$gte": MinKey()}}, {"a": MinKey()}, True),
        ({"a": {"$lt": MinKey()}}, {"a": 1}, False),
        ({"a": {"$lte": MaxKey()}}, {"a": MaxKey()}, True),
        ({"a": {"$gt": MaxKey()}}, {"a": 1}, False),
        ({"a": MinKey()}, {"a": 1}, False),
        # NaN
        ({"a": {"$gte": float("nan")}}, {"a": Decimal128("NaN")}, True),
        ({"a": {"$gt": float("nan")}}, {"a": 1}, False),
        ({"a": {"$lt": 1}}, {"a": Decimal128("NaN")}, False),
        ({"a": {"$gt": Decimal128("0.1")}}, {"a": float("nan")}, False),
        ({"a": {"$lte": Decimal128("1E+6000")}}, {"a": [float("nan"), 1]}, True),
        ({"a": {"$in": [float("nan")]}}, {"a": float("nan")}, True),
        # Decimal and double meet exactly.
        ({"a": Decimal128("0.1")}, {"a": 0.1}, False),
        ({"a": {"$gt": Decimal128("0.1")}}, {"a": 0.1}, True),
        ({"a": {"$lt": 0.1}}, {"a": Decimal128("0.1")}, True),
        ({"a": Decimal128("0.5")}, {"a": 0.5}, True),
        ({"a": Int64(1)}, {"a": True}, False),
        ({"a": False}, {"a": 0}, False),
        # Types that `bson` makes subclasses of str, or hides in a class of its own.
        ({"a": "x"}, {"a": Code("x")}, False),
        ({"a": {"$in": ["x", "y"]}}, {"a": Code("x")}, False),
        ({"a.x": 1}, {"a": DBRef("c", 1, x=1)}, True),
        ({"a": {"$exists": True}}, {"a": Regex("x")}, True),
        ({"a": {"$gt": ObjectId("0" * 24)}}, {"a": ObjectId("f" * 24)}, True),
        ({"a": {"$gt": [1]}}, {"a": [[1, 2]]}, True),
        ({"a": {"$lt": {"b": 2}}}, {"a": {"b": 1, "c": 1}}, True),
    ],
)
def test_matches_as_mongodb_does(query: dict[str, Any], document: dict[str, Any], expected: bool) -> None:
    """Each case follows the server's source; the comment names where it is not obvious."""
    assert matches(query, document) is expected


@given(filters(st.one_of(VALUES, EDGES)), documents(st.one_of(VALUES, EDGES), 4))
def test_never_raises(query: dict[str, Any], document: dict[str, Any]) -> None:
    """A compiled filter answers with a bool for every document of BSON values."""
    assert isinstance(matches(query, document), bool)


@given(filters(), documents(VALUES, 4))
def test_not_is_the_complement(query: dict[str, Any], document: dict[str, Any]) -> None:
    """`$nor` of one filter selects exactly what the filter does not."""
    assert matches({"$nor": [query]}, document) is not matches(query, document)


def test_the_deepest_documents_are_compared() -> None:
    """MongoDB stores up to 180 levels, and neither a walk nor a comparison ends in a RecursionError."""

    def nested(levels: int, leaf: Any) -> Any:
        return leaf if not levels else {"a": [nested(levels - 2, leaf)]}

    deep = {"a": nested(180, 1)}
    assert not matches({"a": {"$in": [{"a": 1}, 5]}}, deep)
    assert not matches({"a": {"a": [{"a": 1}]}}, deep)
    assert matches({"a": {"$gt": {"a": [{"a": 1}]}}}, deep)
    assert compare(deep, {"a": nested(180, 2)}) < 0
    assert Projection.parse({"a.a.a": 0}).apply(deep) == {"a": {"a": [{}]}}
    assert not holds_non_finite(deep) and decode(canonical(deep)) == deep


def test_a_path_of_numbers_stays_cheap() -> None:
    """The most numeric parts that a filter may have cannot be made to walk a document exponentially often."""
    document: dict[str, Any] = {"0": 1}
    for _ in range(40):
        document = {"0": [document]}
    calls = 0

    class Counted(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            nonlocal calls
            calls += 1
            return super().get(key, default)

    def counted(value: Any) -> Any:
        if isinstance(value, dict):
            return Counted((key, counted(item)) for key, item in value.items())
        return [counted(item) for item in value] if isinstance(value, list) else value

    assert not matches({".".join("0" * 8): "x"}, counted(document))
    assert 8 <= calls < 1000
