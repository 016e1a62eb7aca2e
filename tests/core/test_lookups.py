"""Look-ups: the values of a document lead to the items that ask for them, and only what is hit costs anything."""

from __future__ import annotations

from typing import Any

import pytest
from bson import DBRef, Decimal128, Int64

from feedsvc.core.access_paths import AccessPath, access_path
from feedsvc.core.lookups import Lookups, Reading, Readings
from feedsvc.core.projection import IDENTITY, Projection
from tests.core.match_cases import Draw, topic


def readings(document: dict[str, Any]) -> Readings:
    made: dict[bytes, Reading] = {}

    def reading(view: bytes, projection: Projection) -> Reading:
        if view not in made:
            made[view] = Reading(projection.apply(document) if projection.stages else document)
        return made[view]

    return reading


def index(*filters: dict[str, Any]) -> Lookups[int]:
    lookups: Lookups[int] = Lookups()
    for number, wanted in enumerate(filters):
        add(lookups, number, access_path(topic(wanted)))
    return lookups


def add(lookups: Lookups[int], number: int, path: AccessPath) -> None:
    assert path.branches is not None
    lookups.add(number, path.branches, path.fields)


def found(lookups: Lookups[int], document: dict[str, Any]) -> list[int]:
    hits: dict[int, None] = {}
    lookups.find(readings(document), hits)
    return sorted(hits)


@pytest.mark.parametrize(
    "wanted, document",
    [
        ({"a": 1}, {"a": Int64(1)}),
        ({"a": 1}, {"a": Decimal128("1.0")}),
        ({"a": float("nan")}, {"a": Decimal128("NaN")}),
        ({"a": 1}, {"a": [5, 1]}),
        ({"a": [5, 1]}, {"a": [5, 1]}),
        ({"a": [1]}, {"a": [[1], 2]}),
        ({"a": {"b": 1}}, {"a": {"b": 1}}),
        ({"a.b": 1}, {"a": {"b": 1}}),
        ({"a.b": 1}, {"a": [{"c": 1}, {"b": [2, 1]}]}),
        ({"a.1": 1}, {"a": [0, 1]}),
        ({"a.1": 1}, {"a": {"1": 1}}),
        ({"a.1.b": 1}, {"a": [0, {"b": 1}]}),
        ({"a.0.0": 1}, {"a": [[1]]}),
        ({"a.0.b": 1}, {"a": [{"0": {"b": 1}}]}),
        ({"a.b": 1}, {"a": DBRef("x", 1, b=1)}),
    ],
)
def test_what_a_path_can_mean_is_found(wanted: dict[str, Any], document: dict[str, Any]) -> None:
    """Through documents, arrays, indexes and references, for every type of number; another value is not."""
    one = topic(wanted)
    assert one.matches(document)
    assert found(index(wanted), document) == [0]
    assert found(index(wanted), {"a": 7, "b": 1}) == []


def test_only_what_agrees_in_all_fields_is_found() -> None:
    """A look-up by several fields is one; items that ask for fewer are found as well."""
    lookups = index({"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 1}, {"b": 2}, {"a": 2, "b": 2}, {"c": 1})
    assert found(lookups, {"a": 1, "b": 2}) == [1, 2, 3]
    assert found(lookups, {"a": [1, 2], "b": [1, 2]}) == [0, 1, 2, 3, 4]
    assert found(lookups, {"b": 3}) == []


def test_an_item_is_found_once_though_by_several_ways() -> None:
    """Two branches, or two values of one `$in`, in one document."""
    lookups = index({"$or": [{"a": 1}, {"b": 1}]}, {"a": {"$in": [1, 2]}})
    assert found(lookups, {"a": [1, 2], "b": 1}) == [0, 1]


@pytest.mark.parametrize("inside", ["", "x."])
def test_a_thousand_fields_that_the_document_lacks_are_not_visited(inside: str) -> None:
    """The smaller of two sets of names is gone through: the document's, at the top and below."""
    lookups = index(*({f"{inside}f{n}": 1} for n in range(1_000)))
    document: dict[str, Any] = {"f7": 1, "g": 2}
    reading = Reading({"x": document} if inside else document)
    visited = list(lookups._root.views[b""][1].present(reading))
    if inside:
        (parent,) = visited
        visited = list(parent.present(reading))
    assert [node.path for node in visited] == [f"{inside}f7"]


def test_what_a_document_says_is_worked_out_once() -> None:
    """However many tables ask for the same path."""
    lookups = index(*({"a": n % 10, "b": n} for n in range(100)))
    reading = Reading({"a": list(range(10)), "b": [*range(50)]})
    hits: dict[int, None] = {}
    lookups.find(lambda view, projection: reading, hits)
    assert sorted(hits) == list(range(50))
    assert sorted(reading._keys) == [("a", False), ("b", False)]


def test_documents_get_keys_only_where_one_is_asked_for() -> None:
    """A large embedded document is not hashed for the sake of a number."""
    document = {"a": {"big": 1}}
    lookups = index({"a": 1}, {"a": {"big": 1}})
    assert found(lookups, document) == [1]
    path = access_path(topic({"a": {"big": 1}}))
    assert path.branches is not None
    lookups.remove(1, path.branches)
    reading = Reading(document)
    lookups.find(lambda view, projection: reading, {})
    assert reading._keys == {("a", False): set()}


@pytest.mark.parametrize("seed", range(30))
def test_what_was_removed_is_not_found_and_leaves_nothing(seed: int) -> None:
    """In any order, whatever tables items share; in the end the index is as it was made."""
    draw = Draw(seed)
    lookups: Lookups[int] = Lookups()
    paths = [access_path(draw.topic()) for _ in range(60)]
    held = {number: path for number, path in enumerate(paths) if path.branches is not None}
    for number, path in held.items():
        add(lookups, number, path)
    documents = [draw.document() for _ in range(20)]
    while held:
        alone: Lookups[int] = Lookups()
        for number, path in held.items():
            add(alone, number, path)
        for document in documents[:4]:
            assert found(lookups, document) == found(alone, document)
        number = draw.pick(list(held))
        lookups.remove(number, held.pop(number).branches or ())
    assert not lookups
    assert not lookups._root.views


def test_ten_thousand_topics_that_came_and_went_leave_nothing() -> None:
    """By one field, by two, by many values."""
    lookups: Lookups[int] = Lookups()
    paths = [
        access_path(topic({"a": n, "b.c": {"$in": [n, n + 1]}} if n % 2 else {f"f{n}": n}))
        for n in range(200)
    ]
    for number in range(10_000):
        add(lookups, number, paths[number % 200])
    assert len(found(lookups, {"a": 7, "b": {"c": 8}})) == 50
    for number in range(10_000):
        lookups.remove(number, paths[number % 200].branches or ())
    assert not lookups
    assert paths[0].fields == IDENTITY
