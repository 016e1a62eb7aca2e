"""Compiled filters on the cases that the shared vectors and the engine do not decide."""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

import pytest
from bson import Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef

from feedsvc.core.extjson import canonical, decode, holds_non_finite
from feedsvc.core.filters.compile import compile_filter
from feedsvc.core.filters.parse import parse_filter
from feedsvc.core.filters.regex import MAX_STEPS, TooMuchText
from feedsvc.core.filters.values import compare
from feedsvc.core.projection import Projection
from tests.core.random_filters import random_document, random_filter
from tests.core.test_filters_values import ASCENDING


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
        # $type: the elements, then the array itself (jstests/core/type_array.js); a missing field has no type.
        ({"a": {"$type": "array"}}, {"a": []}, True),
        ({"a": {"$type": "array"}}, {"a": [1]}, True),
        ({"a": {"$type": "array"}}, {"a": 1}, False),
        ({"a": {"$type": "int"}}, {"a": ["x", 1]}, True),
        ({"a": {"$type": "int"}}, {"a": [[1]]}, False),
        ({"a": {"$type": "object"}}, {"a": [{}]}, True),
        ({"a": {"$type": "object"}}, {"a": []}, False),
        ({"a": {"$type": "object"}}, {"a": DBRef("c", 1)}, True),
        ({"a": {"$type": "null"}}, {}, False),
        ({"a": {"$type": "null"}}, {"a": None}, True),
        ({"a": {"$not": {"$type": "null"}}}, {}, True),
        ({"a": {"$type": "int"}}, {"a": True}, False),
        ({"a": {"$type": "int"}}, {"a": Int64(1)}, False),
        ({"a": {"$type": "long"}}, {"a": Int64(1)}, True),
        ({"a": {"$type": "number"}}, {"a": True}, False),
        ({"a": {"$type": "number"}}, {"a": Decimal128("NaN")}, True),
        ({"a": {"$type": ["string", "bool"]}}, {"a": True}, True),
        ({"a": {"$type": "string"}}, {"a": Code("x")}, False),
        ({"a": {"$type": "javascript"}}, {"a": Code("x")}, True),
        ({"a": {"$type": 15}}, {"a": Code("x", {})}, True),
        ({"a": {"$type": -1}}, {"a": MinKey()}, True),
        ({"a": {"$type": 127}}, {"a": MaxKey()}, True),
        ({"a": {"$type": 11}}, {"a": Regex("x")}, True),
        ({"a": {"$type": 5}}, {"a": UUID(int=1)}, True),
        ({"a": {"$type": "date"}}, {"a": DatetimeMS(2**60)}, True),
        # $mod: toward zero, with the dividend's sign (jstests/core/mod_special_values.js, mod1.js).
        ({"a": {"$mod": [4, 0]}}, {"a": 8}, True),
        ({"a": {"$mod": [4, 0]}}, {"a": [1, 8]}, True),
        ({"a": {"$mod": [4, 0]}}, {"a": [[8]]}, False),
        ({"a": {"$mod": [4, 0]}}, {"a": "8"}, False),
        ({"a": {"$mod": [1, 0]}}, {"a": True}, False),
        ({"a": {"$mod": [1, 0]}}, {}, False),
        ({"a": {"$mod": [1, 0]}}, {"a": None}, False),
        ({"a": {"$mod": [3, -1]}}, {"a": -7}, True),
        ({"a": {"$mod": [3, 2]}}, {"a": -7}, False),
        ({"a": {"$mod": [-3, 1]}}, {"a": 7}, True),
        ({"a": {"$mod": [10, 4]}}, {"a": 14.99}, True),
        ({"a": {"$mod": [10, -4]}}, {"a": -14.99}, True),
        ({"a": {"$mod": [10, 4]}}, {"a": Decimal128("14.5")}, True),
        ({"a": {"$mod": [10.9, 4.9]}}, {"a": 14}, True),
        ({"a": {"$mod": [Decimal128("2.9"), 1]}}, {"a": 3}, True),
        ({"a": {"$mod": [1, 0]}}, {"a": float("nan")}, False),
        ({"a": {"$mod": [1, 0]}}, {"a": float("inf")}, False),
        ({"a": {"$mod": [1, 0]}}, {"a": Decimal128("-Infinity")}, False),
        ({"a": {"$mod": [1, 0]}}, {"a": Decimal128("NaN")}, False),
        ({"a": {"$mod": [1, 0]}}, {"a": -1e19}, False),
        ({"a": {"$mod": [1, 0]}}, {"a": 2.0**63}, False),
        ({"a": {"$mod": [1, 0]}}, {"a": -(2.0**63)}, True),
        ({"a": {"$mod": [1, 0]}}, {"a": Decimal128("1E+19")}, False),
        ({"a": {"$mod": [1, 0]}}, {"a": Decimal128("1E+6000")}, False),
        ({"a": {"$mod": [2, 1]}}, {"a": Int64(2**53 + 1)}, True),
        ({"a": {"$mod": [-1, 0]}}, {"a": Int64(-(2**63))}, True),
        # $size: the array itself, also one reached by index, never one inside it.
        ({"a": {"$size": 0}}, {"a": []}, True),
        ({"a": {"$size": 2}}, {"a": [[1, 2]]}, False),
        ({"a": {"$size": 1}}, {"a": "x"}, False),
        ({"a": {"$size": 0}}, {}, False),
        ({"a.0": {"$size": 2}}, {"a": [[1, 2]]}, True),
        ({"a.b": {"$size": 2}}, {"a": [{"b": 1}, {"b": [1, 2]}]}, True),
        ({"a.b": {"$size": 1}}, {"a": [{"b": 1}]}, False),
        # $all: an equality for each member (expression_parser.cpp, parseAll).
        ({"a": {"$all": [1, 2]}}, {"a": [2, 3, 1]}, True),
        ({"a": {"$all": [1, 2]}}, {"a": [1]}, False),
        ({"a": {"$all": [1, 1]}}, {"a": 1}, True),
        ({"a": {"$all": []}}, {"a": []}, False),
        ({"a": {"$all": []}}, {}, False),
        ({"a": {"$not": {"$all": []}}}, {}, True),
        ({"a": {"$all": [[1, 2]]}}, {"a": [1, 2]}, True),
        ({"a": {"$all": [[1, 2]]}}, {"a": [[1, 2]]}, True),
        ({"a": {"$all": [[1, 2]]}}, {"a": [1, 2, 3]}, False),
        ({"a": {"$all": [[[1]]]}}, {"a": [[1]]}, True),
        ({"a": {"$all": [None]}}, {}, True),
        ({"a": {"$all": [None, 1]}}, {"a": [None, 1]}, True),
        ({"a.b": {"$all": [1, 2]}}, {"a": [{"b": 1}, {"b": 2}]}, True),
        ({"a": {"$all": [{"b": 1}]}}, {"a": [{"b": 1}]}, True),
        ({"a": {"$all": [{"b": 1}]}}, {"a": [{"b": 1, "c": 1}]}, False),
        (
            {"a": {"$all": [{"$elemMatch": {"b": 1}}, {"$elemMatch": {"b": 2}}]}},
            {"a": [{"b": 1}, {"b": 2}]},
            True,
        ),
        ({"a": {"$all": [{"$elemMatch": {"$gt": 1, "$lt": 3}}]}}, {"a": [1, 3]}, False),
        # $elemMatch: one element for the whole clause; only arrays have elements.
        ({"a": {"$elemMatch": {"b": 1, "c": 1}}}, {"a": [{"b": 1}, {"c": 1}]}, False),
        ({"a": {"$elemMatch": {"b": 1, "c": 1}}}, {"a": [{}, {"b": 1, "c": 1}]}, True),
        ({"a": {"$elemMatch": {"b": 1}}}, {"a": {"b": 1}}, False),
        ({"a": {"$elemMatch": {"b": 1}}}, {"a": [1, "x"]}, False),
        ({"a": {"$elemMatch": {"b": None}}}, {"a": [1]}, False),
        ({"a": {"$elemMatch": {"b": None}}}, {"a": [{}]}, True),
        ({"a": {"$elemMatch": {}}}, {"a": []}, False),
        ({"a": {"$elemMatch": {}}}, {"a": [1]}, False),
        ({"a": {"$elemMatch": {}}}, {"a": [{}]}, True),
        ({"a": {"$elemMatch": {}}}, {"a": [[]]}, True),
        ({"a": {"$elemMatch": {"b": 1}}}, {"a": [DBRef("c", 1, b=1)]}, True),
        ({"a.b": {"$elemMatch": {"c": 1}}}, {"a": [{"b": 1}, {"b": [{"c": 1}]}]}, True),
        ({"a.0": {"$elemMatch": {"b": 1}}}, {"a": [[{"b": 1}]]}, True),
        ({"a.0": {"$elemMatch": {"b": 1}}}, {"a": [{"b": 1}]}, False),
        (
            {"a": {"$elemMatch": {"b": {"$elemMatch": {"c": 1, "d": 1}}}}},
            {"a": [{"b": [{"c": 1, "d": 1}]}]},
            True,
        ),
        (
            {"a": {"$elemMatch": {"b": {"$elemMatch": {"c": 1, "d": 1}}}}},
            {"a": [{"b": [{"c": 1}, {"d": 1}]}]},
            False,
        ),
        ({"a": {"$elemMatch": {"$or": [{"b": 1}, {"c": 1}]}}}, {"a": [{"c": 1}]}, True),
        ({"a": {"$elemMatch": {"$nor": [{"b": 1}, {"c": 1}]}}}, {"a": [{"c": 1}]}, False),
        ({"a": {"$elemMatch": {"$nor": [{"b": 1}]}}}, {"a": [1]}, False),
        ({"a": {"$elemMatch": {"$and": [{"b": 1}], "c": 1}}}, {"a": [{"b": 1, "c": 1}]}, True),
        # An array as an element is a document of its indexes (expression_array.cpp: isABSONObj).
        ({"a": {"$elemMatch": {"0": 1}}}, {"a": [[1]]}, True),
        ({"a": {"$elemMatch": {"0.b": 1}}}, {"a": [[{"b": 1}]]}, True),
        ({"a": {"$elemMatch": {"b": 1}}}, {"a": [[{"b": 1}]]}, False),
        ({"a": {"$elemMatch": {"b": None}}}, {"a": [[1]]}, True),
        ({"a": {"$elemMatch": {"b": {"$exists": False}}}}, {"a": [[1]]}, True),
        # In the value form an element is one value: not spread, never missing.
        ({"a": {"$elemMatch": {"$eq": 1}}}, {"a": [[1]]}, False),
        ({"a": {"$elemMatch": {"$eq": [1]}}}, {"a": [[1]]}, True),
        ({"a": {"$elemMatch": {"$gt": 1, "$lt": 5}}}, {"a": [1, 3, 5]}, True),
        ({"a": {"$elemMatch": {"$gt": 1}}}, {"a": 5}, False),
        ({"a": {"$elemMatch": {"$elemMatch": {"$gt": 1}}}}, {"a": [[0], [2]]}, True),
        ({"a": {"$elemMatch": {"$elemMatch": {"b": 1}}}}, {"a": [[{"b": 1}]]}, True),
        ({"a": {"$elemMatch": {"$size": 2}}}, {"a": [[1, 2]]}, True),
        ({"a": {"$elemMatch": {"$type": "array"}}}, {"a": [[]]}, True),
        ({"a": {"$elemMatch": {"$type": "int"}}}, {"a": [[1]]}, False),
        ({"a": {"$elemMatch": {"$mod": [2, 0]}}}, {"a": [[2]]}, False),
        ({"a": {"$elemMatch": {"$all": [[1]]}}}, {"a": [[1]]}, True),
        ({"a": {"$elemMatch": {"$all": [1]}}}, {"a": [[1]]}, False),
        ({"a": {"$elemMatch": {"$in": [1, None]}}}, {"a": [2, None]}, True),
        ({"a": {"$elemMatch": {"$in": [None]}}}, {"a": [2]}, False),
        ({"a": {"$elemMatch": {"$nin": [1]}}}, {"a": [1, 2]}, True),
        ({"a": {"$elemMatch": {"$ne": 1}}}, {"a": [1]}, False),
        ({"a": {"$elemMatch": {"$not": {"$gt": 1}}}}, {"a": [5, 1]}, True),
        ({"a": {"$elemMatch": {"$not": {"$gt": 1}}}}, {"a": []}, False),
        ({"a": {"$elemMatch": {"$exists": False}}}, {"a": [1]}, False),
        # $not around it is the negation of the whole (FIL-06).
        ({"tags": {"$not": {"$elemMatch": {"k": "x"}}}}, {"tags": [{"k": "y"}, {"k": "x"}]}, False),
        ({"tags": {"$not": {"$elemMatch": {"k": "x"}}}}, {"tags": [{"k": "y"}]}, True),
        ({"tags": {"$not": {"$elemMatch": {"k": "x"}}}}, {"tags": {"k": "x"}}, True),
        ({"tags": {"$not": {"$elemMatch": {"k": "x"}}}}, {}, True),
        # Regular expressions: strings and their elements, and the equal stored one.
        ({"a": Regex("^x")}, {"a": "xyz"}, True),
        ({"a": Regex("y")}, {"a": "xyz"}, True),
        ({"a": Regex("^x")}, {"a": ["a", "xa"]}, True),
        ({"a": Regex("^x")}, {"a": [["xa"]]}, False),
        ({"a": Regex("")}, {}, False),
        ({"a": Regex("5")}, {"a": 5}, False),
        ({"a": Regex("x")}, {"a": Code("x")}, False),
        ({"a": Regex("X", "i")}, {"a": "x"}, True),
        ({"a": {"$regex": "X", "$options": "i"}}, {"a": "x"}, True),
        ({"a": {"$regex": "X", "$options": ""}}, {"a": "x"}, False),
        ({"a": Regex("q", "i")}, {"a": Regex("q", "i")}, True),
        ({"a": Regex("q", "i")}, {"a": [Regex("q", "i")]}, True),
        ({"a": Regex("q", "i")}, {"a": Regex("q", "m")}, False),
        ({"a": Regex("q", "u")}, {"a": Regex("q")}, False),
        ({"a": Regex("q", "u")}, {"a": Regex("q", "u")}, True),
        ({"a": Regex("q")}, {"a": Regex("qq")}, False),
        ({"a": {"$eq": Regex("q")}}, {"a": "q"}, False),
        ({"a": {"$eq": Regex("q")}}, {"a": Regex("q")}, True),
        ({"a": [Regex("q")]}, {"a": ["q"]}, False),
        ({"a": [Regex("q")]}, {"a": [Regex("q")]}, True),
        ({"a": {"b": Regex("q")}}, {"a": {"b": "q"}}, False),
        ({"a": {"b": Regex("q")}}, {"a": {"b": Regex("q")}}, True),
        ({"a": {"$in": [1, Regex("^x")]}}, {"a": "xa"}, True),
        ({"a": {"$in": [1, Regex("^x")]}}, {"a": 1.0}, True),
        ({"a": {"$in": [None, Regex("^x")]}}, {}, True),
        ({"a": {"$nin": [1, Regex("^x")]}}, {"a": ["y", "x"]}, False),
        ({"a": {"$nin": [1, Regex("^x")]}}, {}, True),
        ({"a": {"$all": [Regex("^x"), Regex("y$")]}}, {"a": ["xa", "by"]}, True),
        ({"a": {"$not": Regex("^x")}}, {"a": ["y", "x"]}, False),
        ({"a": {"$not": {"$regex": "^x"}}}, {"a": 1}, True),
        ({"a": {"$elemMatch": {"$regex": "^x", "$ne": "xa"}}}, {"a": ["xa", "b"]}, False),
        ({"a": {"$elemMatch": {"$in": [Regex("^x")], "$ne": "xa"}}}, {"a": ["xa", "xb"]}, True),
        ({"a": {"$gt": "a", "$regex": "z$"}}, {"a": "bz"}, True),
        # JSON types and BSON types (FIL-07): a value has the type that it was written with.
        ({"_id": "0" * 24}, {"_id": ObjectId("0" * 24)}, False),
        ({"_id": "0" * 24}, {"_id": "0" * 24}, True),
        ({"_id": ObjectId("0" * 24)}, {"_id": ObjectId("0" * 24)}, True),
        ({"at": "2024-01-15T00:00:00Z"}, {"at": DatetimeMS(1705276800000)}, False),
    ],
)
def test_matches_as_mongodb_does(query: dict[str, Any], document: dict[str, Any], expected: bool) -> None:
    """Each case follows the server's source; the comment names where it is not obvious."""
    assert matches(query, document) is expected


@pytest.mark.parametrize("operand", ASCENDING, ids=lambda value: type(value).__name__)
def test_never_raises(operand: Any) -> None:
    """Whatever BSON has for operands meets whatever BSON has for values, and the answer is a bool."""
    takes = [{"$eq": operand}, {"$in": [operand]}, {"$all": [operand]}, {"$elemMatch": {"$eq": operand}}]
    if not isinstance(operand, Regex):
        takes += [{"$gte": operand}, {"$ne": operand}, {"$elemMatch": {"$not": {"$lt": operand}}}]
    takes += [{"$type": "number"}, {"$mod": [2, 0]}, {"$size": 1}, {"$regex": "a"}, {"$elemMatch": {"b": 1}}]
    for take in takes:
        match = compile_filter(parse_filter({"a": take}))
        for value in ASCENDING:
            assert all(
                isinstance(match({"a": found}), bool) for found in (value, [value], [[value]], {"b": value})
            )


@pytest.mark.parametrize("seed", range(10))
def test_not_is_the_complement(seed: int) -> None:
    """A predicate answers with a bool, `$nor` of one filter with the other one."""
    rng = Random(seed)
    for _ in range(10):
        seen = [random_document(rng) for _ in range(8)]
        for query in [random_filter(rng, seen) for _ in range(5)]:
            match, differ = (compile_filter(parse_filter(asked)) for asked in (query, {"$nor": [query]}))
            for document in seen:
                assert match(document) is (not differ(document)), (query, document)


@pytest.mark.parametrize("seed", range(10))
def test_elem_match_asks_each_element(seed: int) -> None:
    """It finds an array exactly where the clause finds one of its elements; what is no array has none."""
    rng = Random(seed)
    for _ in range(20):
        elements = [random_document(rng) for _ in range(4)]
        query = random_filter(rng, elements, 1)
        found = any(matches(query, element) for element in elements)
        asked = {"$elemMatch": query}
        assert matches({"a": asked}, {"a": elements}) is found, (query, elements)
        assert matches({"a": {"$all": [asked, asked]}}, {"a": elements}) is found
        assert matches({"a.b": asked}, {"a": [{"b": [element]} for element in elements]}) is found
        assert not matches({"a": asked}, {"a": elements[0]})


@pytest.mark.parametrize(
    "written, document, expected",
    [
        ({"_id": {"$oid": "0" * 24}}, {"_id": ObjectId("0" * 24)}, True),
        ({"at": {"$gte": {"$date": "2024-01-15T00:00:00Z"}}}, {"at": DatetimeMS(1705276800000)}, True),
        ({"at": {"$gte": {"$date": "2024-01-15T00:00:00Z"}}}, {"at": DatetimeMS(1705276799999)}, False),
        ({"n": {"$numberLong": "9007199254740993"}}, {"n": Int64(2**53 + 1)}, True),
        ({"n": {"$numberLong": "9007199254740993"}}, {"n": 2.0**53}, False),
        ({"n": 9007199254740993}, {"n": Int64(2**53 + 1)}, True),
        (
            {"a": {"$regularExpression": {"pattern": "q", "options": "imsux"}}},
            {"a": Regex("q", "imsux")},
            True,
        ),
        ({"a": {"$regularExpression": {"pattern": "q", "options": "u"}}}, {"a": Regex("q", "x")}, False),
        ({"a": {"$elemMatch": {"$eq": {"$numberLong": "1"}}}}, {"a": [1]}, True),
        ({"a": {"$all": [{"$oid": "0" * 24}]}}, {"a": [ObjectId("0" * 24)]}, True),
    ],
)
def test_extended_json_reaches_the_predicate(written: Any, document: dict[str, Any], expected: bool) -> None:
    """What a client writes as Extended JSON is compared as the BSON value that it names, options of patterns too."""
    query = decode(written)
    assert isinstance(query, dict)
    assert matches(query, document) is expected


def test_the_deepest_documents_are_compared() -> None:
    """MongoDB stores up to 180 levels, and neither a walk nor a comparison ends in a RecursionError."""

    def nested(levels: int, leaf: Any) -> Any:
        return leaf if not levels else {"a": [nested(levels - 2, leaf)]}

    deep = {"a": nested(180, 1)}
    assert not matches({"a": {"$in": [{"a": 1}, 5]}}, deep)
    assert not matches({"a": {"a": [{"a": 1}]}}, deep)
    assert matches({"a": {"$gt": {"a": [{"a": 1}]}}}, deep)
    assert matches({"a.a.a": {"$elemMatch": {"a": {"$elemMatch": {"a": {"$type": "array"}}}}}}, deep)
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


SLOW = "a[ab]{30}c"
"""An automaton that RE2 gives up and simulates: 36 instructions at every byte."""


def test_the_text_that_a_filter_searches_in_a_document_is_bounded() -> None:
    """Linear time is not enough: a megabyte takes a quarter of a second here, and holds up every client."""
    match = compile_filter(parse_filter({"a": {"$regex": SLOW}}))
    room = MAX_STEPS // 36
    assert match({"a": "x" * room}) is False
    with pytest.raises(TooMuchText):
        match({"a": "x" * (room + 1)})
    assert match({"a": ["x" * 1_000, "a" * 31 + "c"]}) is True, "each document has a budget of its own"
    with pytest.raises(TooMuchText):
        match({"a": ["x" * (room // 4)] * 5})
    assert match({"b": "x" * (room + 1)}) is False, "only what is searched counts"


def test_the_regular_expressions_of_a_filter_share_the_budget() -> None:
    """Wherever they stand in it."""
    clauses = [
        {"a": Regex(SLOW)},
        {"b": {"$elemMatch": {"$regex": f"{SLOW}d"}}},
        {"c": {"$in": [Regex(f"{SLOW}e")]}},
    ]
    match = compile_filter(parse_filter({"$or": clauses}))
    text = "x" * (MAX_STEPS // 36 // 2)
    assert match({"a": text}) is match({"b": [text]}) is match({"c": text}) is False
    with pytest.raises(TooMuchText):
        match({"a": text, "b": [text], "c": text})


def test_a_short_regular_expression_searches_the_longest_string() -> None:
    assert compile_filter(parse_filter({"a": {"$regex": "^foo|bar"}}))({"a": "x" * (16 << 20)}) is False
