"""Sameness and deltas of visible documents."""

from __future__ import annotations

from typing import Any

import bson
import pytest
from bson import Binary, Decimal128, Int64, Regex
from bson.code import Code
from bson.dbref import DBRef
from hypothesis import given
from hypothesis import strategies as st

from feedsvc.core.images import after_image
from feedsvc.core.visible import delta, same
from tests.core.bson_strategies import DOCUMENTS, EDGES, VALUES

NAN = float("nan")
DIFFERENT: list[Any] = [
    *(1, Int64(1), 1.0, True, Decimal128("1"), Decimal128("1.0"), "1", 0, 0.0, -0.0, False, None, "", NAN),
    *([], [1], [1.0], [1, 1], {}, {"a": 1}, {"a": 1.0}, {"b": 1}, {"a": 1, "b": 1}, {"b": 1, "a": 1}),
    *(
        b"x",
        Binary(b"x", 128),
        Regex("a"),
        Regex("a", "i"),
        Code("a"),
        Code("a", {"x": 1}),
        Code("a", {"x": 1.0}),
    ),
]


@pytest.mark.parametrize("one", range(len(DIFFERENT)))
def test_values_that_a_reader_can_tell_apart_are_not_the_same(one: int) -> None:
    """Every two of them; and each is the same as its copy."""
    for other, value in enumerate(DIFFERENT):
        assert same(DIFFERENT[one], value) is (one == other)
    copy = bson.decode(bson.encode({"v": DIFFERENT[one]}))["v"]
    assert same(copy, DIFFERENT[one])


def test_a_reference_is_the_document_that_it_is_stored_as() -> None:
    """The after-image turns one into the other where an update goes into it."""
    reference = DBRef("c", 1, x=5)
    assert same(reference, {"$ref": "c", "$id": 1, "x": 5})
    assert delta({"r": reference}, {"r": {"$ref": "c", "$id": 1, "x": 6}}) == {
        "updatedFields": {"r.x": 6},
        "removedFields": [],
        "truncatedArrays": [],
    }


@pytest.mark.parametrize(
    "before, after, updated, removed, truncated",
    [
        ({"a": 1}, {"a": 1}, {}, [], []),
        ({"a": 1}, {"a": 2, "b": 3}, {"a": 2, "b": 3}, [], []),
        ({"a": 1, "b": 2}, {"b": 2}, {}, ["a"], []),
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": 2, "d": 3}}, {"a.d": 3}, ["a.b"], []),
        ({"a": {"b": 1}}, {"a": 1}, {"a": 1}, [], []),
        ({"a": {}}, {"a": []}, {"a": []}, [], []),
        # order
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": 2, "b": 1}}, {"a": {"c": 2, "b": 1}}, [], []),
        ({"a": {"b": 1}}, {"a": {"c": 2, "b": 1}}, {"a": {"c": 2, "b": 1}}, [], []),
        # names with dots
        ({"a": {"b.c": 1}}, {"a": {"b.c": 2}}, {"a": {"b.c": 2}}, [], []),
        # arrays: grown, cut, one of them changed, most of them changed
        ({"a": [1, 2]}, {"a": [1, 2, 3]}, {"a.2": 3}, [], []),
        ({"a": [1, 2, 3]}, {"a": [1, 2]}, {}, [], [{"field": "a", "newSize": 2}]),
        ({"a": [{"b": 1}, {"b": 2}]}, {"a": [{"b": 1}, {"b": 3}]}, {"a.1.b": 3}, [], []),
        ({"a": [[1, 2, 3], 0]}, {"a": [[1, 2], 0]}, {}, [], [{"field": "a.0", "newSize": 2}]),
        ({"a": [1, 2, 3]}, {"a": [2, 3]}, {"a": [2, 3]}, [], []),
        ({"a": [1]}, {"a": []}, {}, [], [{"field": "a", "newSize": 0}]),
    ],
)
def test_delta(
    before: dict[str, Any],
    after: dict[str, Any],
    updated: dict[str, Any],
    removed: list[str],
    truncated: list[Any],
) -> None:
    """As MongoDB writes an update description: value by value, and whole where paths cannot say it."""
    assert delta(before, after) == {
        "updatedFields": updated,
        "removedFields": removed,
        "truncatedArrays": truncated,
    }


@pytest.mark.parametrize(
    "before, after",
    [({"a": 1, "b": 2}, {"b": 2, "a": 1}), ({"a.b": 1}, {"a.b": 2}), ({"a": 1}, {"a": 1, "b.c": 1})],
)
def test_what_no_description_can_say_is_left_out(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert delta(before, after) is None


@given(DOCUMENTS, DOCUMENTS)
def test_a_delta_makes_the_second_state_of_the_first(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Byte for byte, whatever the two are; empty exactly where they are the same."""
    found = delta(before, after)
    if found is None:
        stayed = [name for name in before if name in after]
        assert list(after)[: len(stayed)] != stayed
        return
    assert bson.encode(after_image(before, found)) == bson.encode(after)
    assert same(before, after) is not any(found.values())


@given(st.one_of(VALUES, EDGES), st.one_of(VALUES, EDGES))
def test_sameness_is_that_of_the_bytes(one: Any, other: Any) -> None:
    """What is stored alike is the same, and nothing else."""
    assert same(one, other) is (bson.encode({"v": one}) == bson.encode({"v": other}))
