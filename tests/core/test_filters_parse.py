"""Parsing: an allow-list that refuses everything else with path and rule, and a canonical form that never lies."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
from bson import Decimal128, Int64, Regex
from hypothesis import given
from hypothesis import strategies as st

from feedsvc.core.errors import Refusal
from feedsvc.core.filters.bounds import (
    MAX_CANONICAL_BYTES,
    MAX_DEPTH,
    MAX_FILTER_BYTES,
    MAX_IN_VALUES,
    MAX_INSTRUCTIONS,
    MAX_NUMERIC_PARTS,
    MAX_PATH_PARTS,
    MAX_PATTERNS,
    MAX_READINGS,
)
from feedsvc.core.filters.compile import compile_filter
from feedsvc.core.filters.operands import OPERATORS
from feedsvc.core.filters.parse import FilterError, canonical_form, parse_filter
from tests.core.random_filters import random_document, random_filter


def refusal(query: Any) -> FilterError:
    with pytest.raises(FilterError) as caught:
        parse_filter(query)
    return caught.value


def form(query: dict[str, Any]) -> bytes:
    return canonical_form(parse_filter(query))


@pytest.mark.parametrize(
    "query, path",
    [
        ({"$where": "1"}, "$where"),
        ({"$expr": {"$eq": [1, 1]}}, "$expr"),
        ({"$text": {"$search": "x"}}, "$text"),
        ({"$jsonSchema": {}}, "$jsonSchema"),
        ({"$comment": "x"}, "$comment"),
        ({"$function": {}}, "$function"),
        (json.loads(r'{"a": {"\u0024where": "1"}}'), "a.$where"),
        ({"a": {"$bitsAllSet": 1}}, "a.$bitsAllSet"),
        ({"a": {"$near": [0, 0]}}, "a.$near"),
        ({"a": {"$ref": "c", "$id": 1}}, "a.$ref"),
        ({"a": {"b": {"$where": "1"}}}, "a.b.$where"),
        ({"a": {"$in": [{"$expr": 1}]}}, "a.$in.0.$expr"),
        ({"a": {"$not": {"$where": "1"}}}, "a.$not.$where"),
        ({"a": {"$elemMatch": {"$where": "1"}}}, "a.$elemMatch.$where"),
        ({"a": {"$elemMatch": {"b": 1, "$where": "1"}}}, "a.$elemMatch.$where"),
        ({"a": {"$elemMatch": {"$gt": 1, "$where": "1"}}}, "a.$elemMatch.$where"),
        ({"a": {"$elemMatch": {"$expr": {}}}}, "a.$elemMatch.$expr"),
        ({"a": {"$elemMatch": {"$jsonSchema": {}}}}, "a.$elemMatch.$jsonSchema"),
        ({"a": {"$elemMatch": {"$or": [{"$where": "1"}]}}}, "a.$elemMatch.$or.0.$where"),
        ({"a": {"$elemMatch": {"b": {"$near": [0, 0]}}}}, "a.$elemMatch.b.$near"),
        ({"a": {"$all": [{"$where": "1"}]}}, "a.$all.0.$where"),
        ({"a": {"$all": [{"$elemMatch": {"$where": "1"}}]}}, "a.$all.0.$elemMatch.$where"),
        ({"a": {"$type": "undefined"}}, "a.$type"),
        ({"a": {"$type": ["int", 14]}}, "a.$type.1"),
        ({"$and": [{"$or": [{"a": 1}, {"$nor": [{"$where": "1"}]}]}]}, "$and.0.$or.1.$nor.0.$where"),
    ],
)
def test_unsupported(query: dict[str, Any], path: str) -> None:
    """What this version does not evaluate is refused with the operator's path."""
    error = refusal(query)
    assert (error.code, error.path) == ("filter_unsupported", path)


@pytest.mark.parametrize(
    "query, path",
    [
        ([], ""),
        ("x", ""),
        (None, ""),
        ({1: 2}, ""),
        ({"$eq": 1}, "$eq"),
        ({"$not": {"a": 1}}, "$not"),
        ({"$and": []}, "$and"),
        ({"$or": {"0": {"a": 1}, "length": 1}}, "$or"),
        ({"$or": "x"}, "$or"),
        ({"$nor": [{"a": 1}, 1]}, "$nor.1"),
        ({"$or": ({"a": 1},)}, "$or"),
        ({"a": {"$in": {"0": 1}}}, "a.$in"),
        ({"a": {"$in": 1}}, "a.$in"),
        ({"a": {"$nin": None}}, "a.$nin"),
        ({"a": {"$in": [{"$gt": 1}]}}, "a.$in.0.$gt"),
        ({"a": {"$not": 1}}, "a.$not"),
        ({"a": {"$not": {}}}, "a.$not"),
        ({"a": {"$not": {"b": 1}}}, "a.$not.b"),
        ({"a": {"$and": [{"$gt": 1}]}}, "a.$and"),
        ({"a": {"$gt": 1, "b": 2}}, "a.b"),
        ({"a": {"b": 1, "$gt": 2}}, "a.b"),
        ({"a": {"b": {"$gt": 1}}}, "a.b.$gt"),
        ({"a": {"$eq": {"$gt": 1}}}, "a.$eq.$gt"),
        ({"a": {"$exists": "yes"}}, "a.$exists"),
        ({"a": {"$exists": Decimal128("1")}}, "a.$exists"),
        ({"": 1}, ""),
        ({"a.": 1}, "a."),
        ({".a": 1}, ".a"),
        ({"a..b": 1}, "a..b"),
        ({"a.$b": 1}, "a.$b"),
        ({"a.$": 1}, "a.$"),
        ({"a\0b": 1}, "a\0b"),
        ({"a": {"b\0": 1}}, "a"),
        ({"a": {1: 1}}, "a"),
        ({"a": object()}, "a"),
        ({"a": {"$ne": Regex("x")}}, "a.$ne"),
        ({"a": {"$gt": Regex("x")}}, "a.$gt"),
        ({"a": {"$options": "i"}}, "a.$options"),
        ({"a": {"$regex": 1}}, "a.$regex"),
        ({"a": {"$regex": "x", "$options": 1}}, "a.$options"),
        ({"a": {"$options": "i", "$regex": Regex("x", "m")}}, "a.$options"),
        ({"a": {"$not": {"$options": "i"}}}, "a.$not.$options"),
        ({"a": {"$regex": "x", "$options": "q"}}, "a.$regex"),
        ({"a": {"$regex": Regex(b"x")}}, "a.$regex"),
        ({"a": {"$type": "missing"}}, "a.$type"),
        ({"a": {"$type": "Int"}}, "a.$type"),
        ({"a": {"$type": 0}}, "a.$type"),
        ({"a": {"$type": 20}}, "a.$type"),
        ({"a": {"$type": 2.5}}, "a.$type"),
        ({"a": {"$type": True}}, "a.$type"),
        ({"a": {"$type": None}}, "a.$type"),
        ({"a": {"$type": float("nan")}}, "a.$type"),
        ({"a": {"$type": []}}, "a.$type"),
        ({"a": {"$type": ["int", ["long"]]}}, "a.$type.1"),
        ({"a": {"$type": {"0": "int"}}}, "a.$type"),
        ({"a": {"$mod": 2}}, "a.$mod"),
        ({"a": {"$mod": []}}, "a.$mod"),
        ({"a": {"$mod": [2]}}, "a.$mod"),
        ({"a": {"$mod": [2, 0, 0]}}, "a.$mod"),
        ({"a": {"$mod": [0, 0]}}, "a.$mod.0"),
        ({"a": {"$mod": [0.9, 0]}}, "a.$mod.0"),
        ({"a": {"$mod": ["2", 0]}}, "a.$mod.0"),
        ({"a": {"$mod": [2, None]}}, "a.$mod.1"),
        ({"a": {"$mod": [2, True]}}, "a.$mod.1"),
        ({"a": {"$mod": [float("nan"), 0]}}, "a.$mod.0"),
        ({"a": {"$mod": [2, Decimal128("Infinity")]}}, "a.$mod.1"),
        ({"a": {"$mod": [Decimal128("1E+19"), 0]}}, "a.$mod.0"),
        ({"a": {"$mod": [2.0**63, 0]}}, "a.$mod.0"),
        ({"a": {"$size": -1}}, "a.$size"),
        ({"a": {"$size": 1.5}}, "a.$size"),
        ({"a": {"$size": "1"}}, "a.$size"),
        ({"a": {"$size": True}}, "a.$size"),
        ({"a": {"$size": 2**31}}, "a.$size"),
        ({"a": {"$size": {"$gt": 1}}}, "a.$size"),
        ({"a": {"$all": 1}}, "a.$all"),
        ({"a": {"$all": {"0": 1, "length": 1}}}, "a.$all"),
        ({"a": {"$all": [{"$gt": 1}]}}, "a.$all.0.$gt"),
        ({"a": {"$all": [{"$elemMatch": {}}, 1]}}, "a.$all.1"),
        ({"a": {"$all": [1, {"$elemMatch": {}}]}}, "a.$all.0"),
        ({"a": {"$all": [{"$elemMatch": {}, "b": 1}]}}, "a.$all.0"),
        ({"r": {"$elemMatch": "P"}}, "r.$elemMatch"),
        ({"r": {"$elemMatch": [{"a": 1}]}}, "r.$elemMatch"),
        ({"r": {"$elemMatch": Regex("P")}}, "r.$elemMatch"),
        ({"r": {"$elemMatch": None}}, "r.$elemMatch"),
        ({"a": {"$elemMatch": {"b": 1, "$gt": 1}}}, "a.$elemMatch.$gt"),
        ({"a": {"$elemMatch": {"$gt": 1, "b": 1}}}, "a.$elemMatch.b"),
        ({"a": {"$elemMatch": {"$gt": 1, "$or": [{"b": 1}]}}}, "a.$elemMatch.$or"),
        ({"a": {"$elemMatch": {"": 1}}}, "a.$elemMatch."),
        ({"a": {"$elemMatch": {1: 1}}}, "a.$elemMatch"),
        ({".".join("0" * 4): {"$elemMatch": {".".join("0" * 5): 1}}}, ".".join("0" * 5)),
        ({"a": [{1, 2}]}, "a.0"),
        ({".".join("0" * 9): 1}, ".".join("0" * 9)),
        ({".".join("a" * 65): 1}, ".".join("a" * 65)),
    ],
)
def test_malformed(query: Any, path: str) -> None:
    """What MongoDB refuses, or only accepts because it cannot know better, is refused with path and rule."""
    error = refusal(query)
    assert (error.code, error.path) == ("filter_invalid", path)
    assert error.rule and str(error).endswith(error.rule)


def test_errors_carry_no_values() -> None:
    """A refusal names the place, never what stands there."""
    for query in (
        {"a": {"$in": "secret"}},
        {"a": {"$exists": "secret"}},
        {"$or": "secret"},
        {"a": Regex("(?=secret)")},
        {"a": {"$regex": "(?=secret)"}},
        {"a": {"$regex": "a", "$options": "secret"}},
        {"a": {"$type": "secret"}},
    ):
        assert "secret" not in str(refusal(query))


def test_a_long_path_is_cut_in_the_message() -> None:
    """A message stays short whatever the client's keys are."""
    assert len(str(refusal({"a" * 60_000: {"$where": 1}}))) < 400
    assert len(str(refusal({"$" + "a" * 60_000: 1}))) < 400


@pytest.mark.parametrize(
    "one, other",
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1, "b": 2}, {"$and": [{"b": 2}, {"a": 1}]}),
        ({"a": 1, "b": 2, "c": 3}, {"$and": [{"a": 1}, {"$and": [{"b": 2}, {"c": 3}]}]}),
        ({"a": 1}, {"a": {"$eq": 1}}),
        ({"a": 1}, {"a": {"$in": [1]}}),
        ({"a": 1}, {"a": {"$in": [1, 1.0, Int64(1)]}}),
        ({"a": 1}, {"$and": [{"a": 1}, {"a": 1}]}),
        ({"a": 1}, {"$or": [{"a": 1}, {"a": Int64(1)}]}),
        ({"a": 1}, {"a": Decimal128("1.00")}),
        ({"a": {"$in": [1, 2]}}, {"a": {"$in": [2, 1, 2]}}),
        ({"a": {"$ne": 1}}, {"a": {"$not": {"$eq": 1}}}),
        ({"a": {"$ne": 1}}, {"$nor": [{"a": 1}]}),
        ({"a": {"$nin": [1]}}, {"a": {"$ne": 1}}),
        ({"a": {"$gt": 1, "$lt": 5}}, {"$and": [{"a": {"$lt": 5}}, {"a": {"$gt": 1}}]}),
        ({"$or": [{"a": 1}, {"b": 1}]}, {"$or": [{"b": 1}, {"$or": [{"a": 1}]}]}),
        ({"a": {"$exists": 1}}, {"a": {"$exists": True}}),
        ({}, {"$and": [{}]}),
        ({"a": 1}, {"$and": [{}, {"a": 1}]}),
        ({"a": {"$not": {"$not": {"$gt": 1}}}}, {"a": {"$gt": 1}}),
        ({"a": {"$all": [1, 2]}}, {"a": {"$all": [2, 1, 2]}}),
        ({"a": {"$all": [1, 2]}}, {"$and": [{"a": 2}, {"a": 1}]}),
        ({"a": {"$all": [1]}}, {"a": 1}),
        ({"a": {"$all": [{"$elemMatch": {"b": 1}}]}}, {"a": {"$elemMatch": {"b": {"$eq": 1}}}}),
        ({"a": {"$elemMatch": {"b": 1, "c": 2}}}, {"a": {"$elemMatch": {"$and": [{"c": 2}, {"b": 1}]}}}),
        ({"a": {"$elemMatch": {"$gt": 1, "$lt": 5}}}, {"a": {"$elemMatch": {"$lt": 5, "$gt": 1}}}),
        ({"a": {"$not": {"$elemMatch": {"b": 1}}}}, {"$nor": [{"a": {"$elemMatch": {"b": 1}}}]}),
        ({"a": {"$type": "number"}}, {"a": {"$type": ["decimal", 18, "int", 1.0, "double"]}}),
        ({"a": {"$type": 2}}, {"a": {"$type": ["string"]}}),
        ({"a": {"$mod": [4.7, Decimal128("1.9")]}}, {"a": {"$mod": [Int64(4), 1]}}),
        ({"a": {"$size": 2}}, {"a": {"$size": Decimal128("2.0")}}),
        ({"a": Regex("x", "im")}, {"a": {"$regex": "x", "$options": "mi"}}),
        ({"a": Regex("x", "im")}, {"a": {"$options": "iim", "$regex": "x"}}),
        ({"a": Regex("x", "i")}, {"a": {"$regex": Regex("x", "i")}}),
        ({"a": Regex("x")}, {"a": {"$regex": Regex("x"), "$options": ""}}),
        ({"a": Regex("x", "i")}, {"a": {"$regex": Regex("x"), "$options": "i"}}),
        ({"a": Regex("x")}, {"a": {"$in": [Regex("x")]}}),
        ({"a": Regex("x")}, {"a": {"$all": [Regex("x")]}}),
        ({"a": {"$in": [1, Regex("x")]}}, {"$or": [{"a": Regex("x")}, {"a": 1}]}),
        ({"a": {"$not": Regex("x")}}, {"a": {"$nin": [Regex("x")]}}),
        ({"a": {"$not": Regex("x")}}, {"a": {"$not": {"$regex": "x"}}}),
    ],
)
def test_same_meaning_same_form(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Spelling, order, nesting and duplicates do not make another topic."""
    assert form(one) == form(other)


@pytest.mark.parametrize(
    "one, other",
    [
        ({"a": 1}, {"a": "1"}),
        ({"a": 1}, {"a": True}),
        ({"a": 1}, {"a": {"$gte": 1}}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": 2, "b": 1}}),
        ({"a": {"b": 1}}, {"a.b": 1}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"a": {"$in": [[1], 2]}}, {"a": {"$in": [1, 2]}}),
        ({"$or": [{"a": 1}, {"b": 1}]}, {"a": 1, "b": 1}),
        ({"a": "b 1:c"}, {"a": ["b", "1:c"]}),
        ({"a": None}, {"a": {"$exists": False}}),
        ({"a": 0.1}, {"a": Decimal128("0.1")}),
        ({"a": 2.0**53}, {"a": Int64(2**53 + 1)}),
        ({"a": "\\xe9"}, {"a": "\xe9"}),
        ({"a": "NaN"}, {"a": float("nan")}),
        ({"a": float("inf")}, {"a": "inf"}),
        ({}, {"a": {"$in": []}}),
        ({"a": {"$elemMatch": {}}}, {"a": {"$exists": True}}),
        ({"a": {"$elemMatch": {"$eq": 1}}}, {"a": 1}),
        ({"a": {"$elemMatch": {"b": 1}}}, {"a.b": 1}),
        (
            {"a": {"$elemMatch": {"b": 1, "c": 1}}},
            {"a": {"$all": [{"$elemMatch": {"b": 1}}, {"$elemMatch": {"c": 1}}]}},
        ),
        ({"a": {"$elemMatch": {"$not": {"$gt": 1}}}}, {"a": {"$not": {"$elemMatch": {"$gt": 1}}}}),
        ({"a": {"$elemMatch": {"b": {"$elemMatch": {"c": 1}}}}}, {"a": {"$elemMatch": {"b.c": 1}}}),
        ({"a": {"$all": [[1, 2]]}}, {"a": {"$all": [1, 2]}}),
        ({"a": {"$size": 1}}, {"a": {"$type": 1}}),
        ({"a": {"$mod": [2, 1]}}, {"a": {"$mod": [1, 2]}}),
        ({"a": {"$mod": [12, 3]}}, {"a": {"$mod": [1, 23]}}),
        ({"a": {"$type": [1, 16]}}, {"a": {"$type": [11, 6 + 10]}}),
        ({"a": Regex("x")}, {"a": "x"}),
        ({"a": Regex("x")}, {"a": {"$eq": Regex("x")}}),
        ({"a": Regex("x")}, {"a": [Regex("x")]}),
        ({"a": Regex("x", "u")}, {"a": Regex("x")}),
        ({"a": Regex("xi")}, {"a": Regex("x", "i")}),
    ],
)
def test_other_meaning_other_form(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Filters that some document tells apart never share a topic."""
    assert form(one) != form(other)


def respelled(rng: Random, query: dict[str, Any]) -> dict[str, Any]:
    """The same filter in other words: reordered, repeated, with the implicit written out."""
    items: list[tuple[str, Any]] = []
    for key, value in query.items():
        if key in ("$and", "$or", "$nor"):
            clauses = [respelled(rng, clause) for clause in value]
            items.append((key, shuffled(rng, [*clauses, rng.choice(clauses)])))
        elif isinstance(value, dict) and next(iter(value), "")[:1] == "$":
            items.append((key, respelled_operators(rng, value)))
        else:
            items.append(
                (key, rng.choice([value, {"$eq": value}, {"$in": [value, value]}, {"$all": [value]}]))
            )
    rng.shuffle(items)
    if rng.random() < 0.3 and items:
        return {"$and": [{key: value} for key, value in items]}
    return dict(items)


def respelled_operators(rng: Random, operators: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for operator, operand in shuffled(rng, list(operators.items())):
        if operator == "$not":
            operand = respelled_operators(rng, operand)
        elif operator == "$elemMatch":
            first = next(iter(operand), "")
            by_value = first[:1] == "$" and first not in ("$and", "$or", "$nor")
            operand = (respelled_operators if by_value else respelled)(rng, operand)
        elif operator == "$all" and operand and isinstance(operand[0], dict) and "$elemMatch" in operand[0]:
            operand = shuffled(rng, [respelled_operators(rng, item) for item in operand])
        elif operator in ("$in", "$nin", "$all", "$type") and operand != []:
            values = operand if isinstance(operand, list) else [operand]
            operand = shuffled(rng, [*values, rng.choice(values)])
        found[operator] = operand
    return found


def shuffled(rng: Random, items: list[Any]) -> list[Any]:
    return rng.sample(items, len(items))


@pytest.mark.parametrize("seed", range(10))
def test_another_spelling_is_the_same_topic(seed: int) -> None:
    """Whatever is reordered, repeated or written out, the form is one."""
    rng = Random(seed)
    for _ in range(40):
        query = random_filter(rng, [random_document(rng)], 1)
        assert form(query) == form(respelled(rng, query)), query


@pytest.mark.parametrize("seed", range(10))
def test_equal_forms_match_alike(seed: int) -> None:
    """Filters that share a form give the same answers: of small filters over few values many do."""
    rng = Random(seed)
    seen = [random_document(rng) for _ in range(20)]
    answers: dict[bytes, list[bool]] = {}
    shared = 0
    for _ in range(300):
        few = [{name: rng.choice([1, 1.0, None, "a", [1], [{"a": 1}]])} for name in ("a", "b")]
        parsed = parse_filter(random_filter(rng, few, 1))
        match = compile_filter(parsed)
        found = [match(document) for document in seen]
        shared += parsed.canonical in answers
        assert answers.setdefault(parsed.canonical, found) == found
    assert shared > 10


_KEYS = st.sampled_from(["a", "b.c", "0", "", "$where", "$", "\ud800", *sorted(OPERATORS)])
_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.just("\ud800")),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_KEYS, inner, max_size=3)),
    max_leaves=10,
)


@given(_JSON)
def test_garbage_in_filter_error_out(value: Any) -> None:
    """Any JSON-like input is parsed or refused with FilterError, and what is parsed can be run."""
    try:
        parsed = parse_filter(value)
    except FilterError as error:
        Refusal(error.code, str(error))  # raises for a code that is not in the registry
    else:
        assert isinstance(compile_filter(parsed)({"a": 1}), bool)


def test_paths_are_listed() -> None:
    """The fields that a filter looks at are known, for indexes and for images that must be present."""
    assert parse_filter({"a": 1, "$or": [{"b.c": 2}, {"d": {"$ne": 1}}]}).paths == {"a", "b.c", "d"}
    nested = {"a.b": {"$elemMatch": {"c": {"$elemMatch": {"$elemMatch": {"d": 1}, "$ne": 2}}}}}
    assert parse_filter(nested).paths == {"a.b", "a.b.c", "a.b.c.d"}


def test_the_page_for_users_says_what_the_code_does() -> None:
    """docs/filters.md names every operator and has the bounds of the code."""
    page = " ".join((Path(__file__).parents[2] / "docs" / "filters.md").read_text(encoding="utf-8").split())
    table = page[page.index("| comparison") : page.index("Everything else")]
    assert set(re.findall(r"`(\$\w+)`", table)) == OPERATORS
    for bound in (
        f"{MAX_FILTER_BYTES // 1024} KiB as JSON, {MAX_CANONICAL_BYTES // 1024} KiB in canonical form",
        f"{MAX_DEPTH} levels",
        f"{MAX_IN_VALUES} members",
        f"{MAX_PATTERNS} regular expressions, which together compile to at most {MAX_INSTRUCTIONS:,} instructions",
        f"{MAX_PATH_PARTS} parts of a path, {MAX_NUMERIC_PARTS} of them numbers",
        f"{MAX_READINGS:,} readings",
    ):
        assert bound in page
