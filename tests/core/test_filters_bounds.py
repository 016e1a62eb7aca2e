"""Each bound of a filter is accepted as it is and refused a step beyond."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from bson import Regex

from feedsvc.core.filters.bounds import (
    MAX_CANONICAL_BYTES,
    MAX_DEPTH,
    MAX_FILTER_BYTES,
    MAX_IN_VALUES,
    MAX_INSTRUCTIONS,
    MAX_NUMERIC_PARTS,
    MAX_PATTERNS,
    MAX_READINGS,
    check_written,
)
from feedsvc.core.filters.parse import FilterError, canonical_form, parse_filter


def refused(query: Any, rule: str) -> None:
    with pytest.raises(FilterError, match=rule) as caught:
        parse_filter(query)
    assert caught.value.code == "filter_invalid"


def form(query: dict[str, Any]) -> bytes:
    return canonical_form(parse_filter(query))


def nested(levels: int) -> dict[str, Any]:
    query: dict[str, Any] = {"a": 1}
    for _ in range(levels - 1):
        query = {"$and": [query]}
    return query


def literal(levels: int) -> Any:
    return 1 if not levels else {"b": literal(levels - 1)}


def test_depth() -> None:
    """Of the query, and of a literal by itself."""
    parse_filter(nested(MAX_DEPTH))
    refused(nested(MAX_DEPTH + 1), "nested deeper")
    refused(nested(5000), "nested deeper")
    parse_filter({"a": literal(MAX_DEPTH)})
    refused({"a": literal(MAX_DEPTH + 1)}, "nested deeper")


@pytest.mark.parametrize("operator", ["$in", "$nin", "$all"])
def test_members(operator: str) -> None:
    """Of each list that a client can make long, duplicates counted."""
    parse_filter({"a": {operator: list(range(MAX_IN_VALUES))}})
    refused({"a": {operator: [1] * (MAX_IN_VALUES + 1)}}, "more than")
    refused({"a": {"$type": ["int"] * (MAX_IN_VALUES + 1)}}, "more than")


def test_the_canonical_form() -> None:
    """It is bounded apart from the text, to the byte."""
    room = MAX_CANONICAL_BYTES - len(form({"a": "x" * 10_000})) + 10_000
    parse_filter({"a": "x" * room})
    refused({"a": "x" * (room + 1)}, "canonical form")
    refused({"a" * 1000: {"$all": list(range(100))}}, "canonical form")


def test_regular_expressions() -> None:
    """Their number and the size of their programs, wherever they stand."""
    parse_filter({"$or": [{"a": Regex("x" * i)} for i in range(MAX_PATTERNS)]})
    refused({"a": {"$in": [Regex("x")] * (MAX_PATTERNS + 1)}}, "regular expressions")
    refused(
        {"$nor": [{"a": {"$all": [Regex("x")] * 9}}, {"a": {"$elemMatch": {"$in": [Regex("x")] * 9}}}]},
        "more",
    )
    large = [{"a": {"$regex": "[a-z]{1000}"}}] * (MAX_INSTRUCTIONS // 1000 - 1)
    parse_filter({"$or": large})
    refused({"$or": [*large, *large[:2]]}, "too large together")


def test_numeric_parts_of_paths() -> None:
    """Of one path, of one through `$elemMatch`, and of all paths together."""
    deepest = ".".join("0" * MAX_NUMERIC_PARTS)
    parse_filter({deepest: 1})
    refused({f"{deepest}.0": 1}, "too many parts")
    parse_filter({"0.0.0": {"$elemMatch": {"0.0.0.0.0": 1}}})
    refused({"0.0.0": {"$elemMatch": {"0.0.0.0.0.0": 1}}}, "numeric parts")
    refused({"0.0.0": {"$elemMatch": {"$elemMatch": {"0.0.0.0.0.0": 1}}}}, "numeric parts")
    count = MAX_READINGS // 2**MAX_NUMERIC_PARTS
    parse_filter({"$or": [{deepest: i} for i in range(count)]})
    refused({"$or": [{deepest: i} for i in range(count + 1)]}, "numeric parts together")
    refused({deepest: {"$all": list(range(count + 1))}}, "numeric parts together")


def test_the_text_is_bounded_exactly() -> None:
    """A filter of 4 KiB as JSON is accepted and one of a byte more is not, whatever it is made of."""
    for make in (
        lambda size: {"a": "x" * size},
        lambda size: {"x" * size: 1},
        lambda size: {"a": [1] * (size // 2), "b": "x" * (size % 2)},
        lambda size: {"a": ["é"] * (size // 5), "b": "x" * (size % 5)},
        lambda size: {"$or": [{"a": 1}] * (size // 8), "b": "x" * (size % 8)},
    ):
        size = MAX_FILTER_BYTES + 1000 - len(msgspec.json.encode(make(1000)))
        assert len(msgspec.json.encode(make(size))) == MAX_FILTER_BYTES
        check_written(make(size))
        with pytest.raises(FilterError):
            check_written(make(size + 1))
