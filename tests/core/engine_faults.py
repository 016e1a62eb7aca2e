"""Where the embedded engine's `find` answers otherwise than MongoDB: the classes, and how each is recognised.

A disagreement is excused only where a *leaf* of the filter (one operator under one path) meets, in that document, what
the class describes; the mistakes of the tree have no class. Each names the source that proves MongoDB's answer. Run
the tests with `FEEDSVC_TEST_MONGODB_URI` to see that a real server needs no excuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from bson import Decimal128, Int64

from feedsvc.core.filters.compile import compile_filter
from feedsvc.core.filters.parse import parse_filter
from feedsvc.core.filters.values import MISSING
from feedsvc.core.filters.walk import walk

_LOGICAL = ("$and", "$or", "$nor")
_POSITIVE = {"$ne": "$eq", "$nin": "$in"}


class Leaf(NamedTuple):
    """One operator under one path (empty: the element itself), and the document or element that it is asked of."""

    path: str
    operator: str
    operand: Any
    subject: Any

    @property
    def reached(self) -> list[Any]:
        """What stands at the end of the path, arrays as they are."""
        if not self.path:
            return [self.subject]
        found: list[Any] = []

        def collect(value: Any) -> bool:
            found.append(value)
            return False

        walk(self.path, collect, spread=False)(self.subject)
        return found


class Fault(NamedTuple):
    name: str
    source: str
    recognises: Callable[[Leaf], bool]
    example: tuple[dict[str, Any], dict[str, Any], bool]
    """A filter, a document, and what MongoDB says of them."""


def faults_met(query: dict[str, Any], document: dict[str, Any]) -> set[str]:
    """The names of the classes that the filter meets in the document."""
    return {fault.name for leaf in _leaves(query, document) for fault in FAULTS if fault.recognises(leaf)}


def for_engine(query: Any) -> Any:
    """The filter with the same meaning that the engine can read.

    It takes `$elemMatch: {$or: [..]}` for a test of values (expression_parser.cpp, parseElemMatch: the first key's kind
    decides, and logical operators are of no field). A clause that is always true makes it a test of documents.
    """
    if isinstance(query, list):
        return [for_engine(item) for item in query]
    if not isinstance(query, dict):
        return query
    found = {key: for_engine(value) for key, value in query.items()}
    inner = found.get("$elemMatch")
    if inner and next(iter(inner)) in _LOGICAL:
        found["$elemMatch"] = {**inner, "no such field": {"$exists": False}}
    return found


def _leaves(query: dict[str, Any], document: Any) -> Iterator[Leaf]:
    for key, value in query.items():
        if key in _LOGICAL:
            for clause in value:
                yield from _leaves(clause, document)
        elif isinstance(value, dict) and next(iter(value), "")[:1] == "$":
            yield from _operators(key, value, document)
        else:
            yield Leaf(key, "$eq", value, document)


def _operators(path: str, operators: dict[str, Any], subject: Any) -> Iterator[Leaf]:
    for operator, operand in operators.items():
        if operator == "$not":
            yield from _operators(path, operand, subject)
            continue
        leaf = Leaf(path, operator, operand, subject)
        yield leaf
        inner = [operand] if operator == "$elemMatch" else []
        if operator == "$all":
            inner = [
                item["$elemMatch"] for item in operand if isinstance(item, dict) and "$elemMatch" in item
            ]
        for clause in inner:
            for element in (item for array in leaf.reached if isinstance(array, list) for item in array):
                yield from _inside(clause, element)


def _clauses(leaf: Leaf) -> list[dict[str, Any]]:
    """What the leaf asks of elements."""
    if leaf.operator == "$all":
        return [
            item["$elemMatch"] for item in leaf.operand if isinstance(item, dict) and "$elemMatch" in item
        ]
    return [leaf.operand] if leaf.operator == "$elemMatch" else []


def _asks_values(clause: dict[str, Any]) -> bool:
    first = next(iter(clause), "")
    return first[:1] == "$" and first not in _LOGICAL


def _inside(clause: dict[str, Any], element: Any) -> Iterator[Leaf]:
    if _asks_values(clause):
        yield from _operators("", clause, element)
    elif isinstance(element, list):
        yield from _leaves(clause, {str(i): item for i, item in enumerate(element)})
    elif isinstance(element, dict):
        yield from _leaves(clause, element)


def _is_met_by_missing(leaf: Leaf) -> bool:
    operator = _POSITIVE.get(leaf.operator, leaf.operator)
    return compile_filter(parse_filter({"a": {operator: leaf.operand}}))({})


def _passes_an_index(leaf: Leaf) -> bool:
    """Whether an array stands before a numeric part of the path, in some reading."""
    parts = leaf.path.split(".")
    return any(
        isinstance(value, list)
        for end, part in enumerate(parts)
        if end and part.isdigit()
        for value in Leaf(".".join(parts[:end]), "", None, leaf.subject).reached
    )


def _atoms(value: Any) -> Iterator[Any]:
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _atoms(item)
    else:
        yield value


def _meets_absence_behind_an_index(leaf: Leaf) -> bool:
    return leaf.operator != "$all" and _passes_an_index(leaf) and _is_met_by_missing(leaf)


def _asks_arrays_as_documents(leaf: Leaf) -> bool:
    return any(clause and not _asks_values(clause) for clause in _clauses(leaf)) and any(
        isinstance(item, list) for array in leaf.reached if isinstance(array, list) for item in array
    )


def _divides_beyond_doubles(leaf: Leaf) -> bool:
    numbers = [value for value in _atoms([leaf.reached, leaf.operand]) if isinstance(value, (int, float))]
    return leaf.operator == "$mod" and any(abs(number) > 2**53 for number in numbers)


def _divides_in_an_array_that_is_one_value(leaf: Leaf) -> bool:
    return (
        leaf.operator == "$mod"
        and (not leaf.path or _passes_an_index(leaf))
        and any(isinstance(value, list) for value in leaf.reached)
    )


def _meets_decimal_and_double(leaf: Leaf) -> bool:
    found = list(_atoms([leaf.reached, leaf.operand]))
    return 0.1 in found and Decimal128("0.1") in found


def _wants_all_of_an_array(leaf: Leaf) -> bool:
    return (
        leaf.operator == "$all"
        and any(isinstance(item, list) for item in leaf.operand)
        and any(isinstance(value, list) for value in leaf.reached)
    )


def _wants_all_from_several(leaf: Leaf) -> bool:
    return leaf.operator == "$all" and len(leaf.operand) > 1 and len(leaf.reached) > 1


def _wants_null_of_nothing(leaf: Leaf) -> bool:
    return leaf.operator == "$all" and None in leaf.operand and MISSING in leaf.reached


FAULTS: tuple[Fault, ...] = (
    Fault(
        "an absent element behind an index is a missing field",
        "path.cpp, end of BSONElementIterator::more(): nothing is yielded; jstests/core/null_query_semantics.js",
        _meets_absence_behind_an_index,
        ({"a.1": None}, {"a": [1]}, False),
    ),
    Fault(
        "$elemMatch does not ask elements that are arrays for their fields",
        "expression_array.cpp, ElemMatchObjectMatchExpression::matchesArray: isABSONObj() holds for arrays",
        _asks_arrays_as_documents,
        ({"a": {"$elemMatch": {"0": 1}}}, {"a": [[1]]}, True),
    ),
    Fault(
        "$mod divides doubles",
        "expression_leaf.cpp, ModMatchExpression: 64-bit integers, nothing for what does not fit",
        _divides_beyond_doubles,
        ({"a": {"$mod": [2, 1]}}, {"a": Int64(2**53 + 1)}, True),
    ),
    Fault(
        "$mod looks into an array that is one value: reached by index, or an element in $elemMatch",
        "path.cpp (isArrayOffsetMatch: the element as it is); expression_array.cpp (_arrayElementMatchesAll)",
        _divides_in_an_array_that_is_one_value,
        ({"a": {"$elemMatch": {"$mod": [2, 0]}}}, {"a": [[2]]}, False),
    ),
    Fault(
        "decimal 0.1 is double 0.1",
        "mongo/base/compare_numbers.h: a double is compared by its exact value, to 34 digits",
        _meets_decimal_and_double,
        ({"a": 0.1}, {"a": Decimal128("0.1")}, False),
    ),
    Fault(
        "$all with an array does not compare the field itself with it",
        "expression_parser.cpp, parseAll: an EqualityMatchExpression of each member",
        _wants_all_of_an_array,
        ({"a": {"$all": [[1]]}}, {"a": [1]}, True),
    ),
    Fault(
        "$all wants all members from one of several arrays that the path reaches",
        "expression_parser.cpp, parseAll: an AndMatchExpression of a walk for each member",
        _wants_all_from_several,
        ({"a.b": {"$all": [1, 2]}}, {"a": [{"b": 1}, {"b": 2}]}, True),
    ),
    Fault(
        "$all: [null] does not match a missing field",
        "expression_parser.cpp, parseAll: equality with null, which a missing field has",
        _wants_null_of_nothing,
        ({"a": {"$all": [None]}}, {}, True),
    ),
)
