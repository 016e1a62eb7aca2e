"""Access paths: what a filter promises about a document that it matches."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Int64

from feedsvc.core.access_paths import MAX_KEYS, WHOLE, AccessPath, Branch, access_path
from feedsvc.core.filters.values import value_key
from tests.core.match_cases import topic

RANGE: dict[str, Any] = {"$gt": 1}


def branches(wanted: dict[str, Any], **rest: Any) -> list[dict[str, list[object]]] | None:
    """Of each branch the paths and their values; None: scanned."""
    found = access_path(topic(wanted, **rest)).branches
    return None if found is None else [values(branch) for branch in found]


def values(branch: Branch) -> dict[str, list[object]]:
    return {field.path: sorted((key[1] for key in keys), key=repr) for field, keys in branch.fields}


@pytest.mark.parametrize(
    "wanted, expected, complete",
    [
        ({"a": 1}, [{"a": [1]}], True),
        ({"a.b": "x", "c": {"$in": [1, 2]}}, [{"a.b": ["x"], "c": [1, 2]}], True),
        ({"a": 1, "b": RANGE}, [{"a": [1]}], False),
        ({"a": {"$in": []}, "b": RANGE}, [], False),
        ({"$or": [{"a": 1}, {"b": 2, "c": 3}]}, [{"a": [1]}, {"b": [2], "c": [3]}], True),
        ({"$or": [{"a": 1}, {"a": 2}]}, [{"a": [1, 2]}], True),
        ({"$or": [{"a": 1}, {"b": 2}], "t": 5}, [{"t": [5], "a": [1]}, {"t": [5], "b": [2]}], True),
        ({"$or": [{"a": 1}, {"b": RANGE}]}, None, False),
        ({"$or": [{"a": 1}, {"b": RANGE}], "t": 5}, [{"t": [5]}], False),
        ({"$and": [{"a": 1}, {"a": {"$in": [1, 2]}}]}, [{"a": [1]}], False),
        ({"a": {"$all": [1, 2]}}, [{"a": [1]}], False),
        ({"a": {"$elemMatch": {"b": 1, "c": RANGE}}}, [{"a.b": [1]}], False),
        ({"a": {"$elemMatch": {"$eq": 1}}}, [{"a": [1]}], False),
        ({"a": {"$elemMatch": {"0": 1}}}, None, False),
        ({"a": {"$not": {"$elemMatch": {"b": 1}}}}, None, False),
    ],
)
def test_what_is_looked_up(
    wanted: dict[str, Any], expected: list[dict[str, list[object]]] | None, complete: bool
) -> None:
    """Of a conjunction any part will do; of a disjunction each branch must have one."""
    found = branches(wanted)
    assert found == expected
    assert access_path(topic(wanted)).complete == complete


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"a": None},
        {"a": {"$in": [1, None]}},
        {"a": RANGE},
        {"a": {"$ne": 1}},
        {"a": {"$exists": True}},
        {"a": {"$regex": "^x"}},
        {"$nor": [{"a": 1}]},
        {"$or": [{"a": 1, "b": RANGE}, {}]},
    ],
)
def test_what_has_to_be_scanned(wanted: dict[str, Any]) -> None:
    """Equality to null is met by a missing field; the rest is no equality."""
    assert branches(wanted) is None


def test_two_conditions_on_one_path_may_be_met_by_two_elements() -> None:
    """`{a: [1, 2]}` matches both `$in`, which have no value in common: none of them may be cut down."""
    assert branches({"$and": [{"a": {"$in": [1, 3]}}, {"a": {"$in": [2, 4]}}]}) in (
        [{"a": [1, 3]}],
        [{"a": [2, 4]}],
    )


def test_the_policys_filter_and_the_clients_are_one_conjunction() -> None:
    """Each in its view: the client's fields are behind the policy's projection, if there is one."""
    assert branches({"a": 1}, policy={"t": 5}) == [{"a": [1], "t": [5]}]
    hidden = topic({"a": 1}, policy={"a": 2}, hidden={"secret": 0})
    (branch,) = access_path(hidden).branches or ()
    assert [(field.view, field.path, keys) for field, keys in branch.fields] == [
        (WHOLE, "a", (value_key(2),)),
        (hidden.policy_fields_form, "a", (value_key(1),)),
    ]


def keys(path: AccessPath) -> int:
    """Look-up keys of a topic."""
    total = 0
    for branch in path.branches or ():
        product = 1
        for _, values in branch.fields:
            product *= len(values)
        total += product
    return total


@pytest.mark.parametrize(
    "wanted, paths",
    [
        ({"a": {"$in": list(range(16))}, "b": {"$in": list(range(16))}}, [("a", "b")]),
        ({"a": {"$in": list(range(17))}, "b": {"$in": list(range(16))}}, [("b",)]),
        ({"a": {"$in": list(range(200))}, "b": {"$in": list(range(100))}, "c": 1}, [("c", "b")]),
        ({"$or": [{"a": {"$in": list(range(200))}}, {"b": {"$in": list(range(100))}}]}, None),
        ({f"f{n}": 1 for n in range(20)}, [tuple(sorted(f"f{n}" for n in range(20))[:8])]),
        ({"$or": [{f"f{n}": 1} for n in range(33)]}, None),
    ],
)
def test_the_bounds(wanted: dict[str, Any], paths: list[tuple[str, ...]] | None) -> None:
    """The fields with the fewest values first; at the bound a field is left out, and a topic without any is scanned."""
    path = access_path(topic(wanted))
    found = path.branches and [tuple(field.path for field, _ in branch.fields) for branch in path.branches]
    assert found == paths
    assert keys(path) <= MAX_KEYS


def test_numbers_of_all_types_have_one_key() -> None:
    """As MongoDB compares them."""
    assert branches({"a": 1}) == branches({"a": 1.0}) == branches({"a": Int64(1)}) == [{"a": [1]}]
