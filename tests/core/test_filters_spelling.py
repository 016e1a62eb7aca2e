"""A filter in words: the same filter, and the same words for filters that are one topic."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from feedsvc.core.filters.parse import FilterError, canonical_form, parse_filter
from feedsvc.core.filters.spelling import spelled
from tests.core.bson_strategies import filters


@pytest.mark.parametrize(
    "written, words",
    [
        ({}, {}),
        ({"b": 1, "a": {"$eq": "x"}}, {"a": "x", "b": 1}),
        ({"$and": [{"a": {"$lt": 5}}, {"a": {"$gt": 1}}]}, {"a": {"$gt": 1, "$lt": 5}}),
        ({"$and": [{"a": 1}, {"a": 2}]}, {"$and": [{"a": 1}, {"a": 2}]}),
        ({"a": {"$in": ["b", "a"]}}, {"a": {"$in": ["a", "b"]}}),
        ({"a": {"$in": ["b"]}}, {"a": "b"}),
        ({"a": {"$not": {"$in": [2, 1]}}}, {"a": {"$nin": [1, 2]}}),
        ({"a": {"$ne": None, "$exists": False}}, {"a": {"$ne": None, "$exists": False}}),
        ({"$nor": [{"b": 1}, {"a": 1}]}, {"$nor": [{"a": 1}, {"b": 1}]}),
        ({"a": {"$not": {"$gt": 1, "$lt": 5}}}, {"$nor": [{"a": {"$gt": 1, "$lt": 5}}]}),
        ({"a": {"$elemMatch": {"y": 1, "x": {"$gt": 2}}}}, {"a": {"$elemMatch": {"x": {"$gt": 2}, "y": 1}}}),
        ({"a": {"$mod": [4, 1], "$size": 3}}, {"a": {"$mod": [4, 1], "$size": 3}}),
        ({"a": {"$regex": "^x", "$options": "i"}}, {"a": {"$regex": "^x", "$options": "i"}}),
    ],
)
def test_spelled(written: dict[str, Any], words: dict[str, Any]) -> None:
    """In the order of the canonical form, each condition the short way."""
    found = spelled(parse_filter(written))
    assert found == words or sorted(map(repr, found.items())) == sorted(map(repr, words.items()))


@given(filters())
def test_the_words_mean_the_filter(query: dict[str, Any]) -> None:
    """Parsed again they have the same canonical form, and so are spelled the same."""
    first = parse_filter(query)
    words = spelled(first)
    again = parse_filter(words)
    assert canonical_form(again) == canonical_form(first)
    assert spelled(again) == words


@given(filters())
def test_one_topic_has_one_spelling(query: dict[str, Any]) -> None:
    """Filters that differ in the order or nesting of clauses are spelled alike."""
    try:
        turned = parse_filter(
            {"$and": [{name: value} for name, value in reversed(query.items())]} if query else {}
        )
    except FilterError:
        return  # one level too deep
    assert canonical_form(turned) == canonical_form(parse_filter(query))
    assert repr(spelled(turned)) == repr(spelled(parse_filter(query)))
