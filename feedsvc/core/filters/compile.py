"""From a checked filter to one function: document in, bool out.

Two ideas, kept apart as in MongoDB itself. A *test* looks at one element, or at MISSING, and knows nothing of paths.
A *walk* follows a dotted path and asks the test for every element that the path can mean, until one says yes:

* at the end of a path an array stands for each of its elements and then for itself;
* before the end an array stands for its documents, and a numeric part for the element at that index, too. A document
  at that index is asked first for the field of that name, then as the element. Arrays in arrays are entered by index
  only, and an element reached by index is not spread again;
* a scalar before the end is a missing field, but only outside arrays: in them it stands for nothing. This is why
  `{"a.b": null}` matches `{a: 4}` and not `{a: [4]}`.

`$ne`, `$nin` and `$not` are the negation of the whole walk. Source: mongo/db/matcher/path.cpp (BSONElementIterator)
and expression_leaf.cpp (ComparisonMatchExpression).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.objectid import ObjectId

from feedsvc.core.filters.nodes import And, AnyOf, Equal, Exists, Filter, Node, Not, Or, Range
from feedsvc.core.filters.values import (
    BOOL,
    DATE,
    MAX_KEY,
    MIN_KEY,
    MISSING,
    NULL,
    NUMBER,
    OBJECT_ID,
    STRING,
    as_document,
    bracket,
    compare,
    exact_number,
    value_key,
)
from feedsvc.core.images import array_index

Predicate = Callable[[Mapping[str, Any]], bool]
Test = Callable[[Any], bool]

_PLAIN_NUMBERS = frozenset({int, float, Int64})
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def compile_filter(filter: Filter) -> Predicate:
    """A function that says whether a document (as `bson` decodes it) matches, as MongoDB's `find` would.

    It never raises for a document made of BSON values, and keeps no state between calls.
    """
    return _predicate(filter.root)


def _predicate(node: Node) -> Predicate:
    if isinstance(node, And):
        return _all([_predicate(clause) for clause in node.clauses])
    if isinstance(node, Or):
        return _any([_predicate(clause) for clause in node.clauses])
    if isinstance(node, Not):
        positive = _predicate(node.clause)
        return lambda document: not positive(document)
    return _walk(node.path.split("."), _test(node))


def _all(predicates: list[Predicate]) -> Predicate:
    if not predicates:
        return lambda document: True
    if len(predicates) == 2:
        first, second = predicates
        return lambda document: first(document) and second(document)

    def match(document: Mapping[str, Any]) -> bool:
        for predicate in predicates:  # noqa: SIM110 (a generator costs twice as much here)
            if not predicate(document):
                return False
        return True

    return match


def _any(predicates: list[Predicate]) -> Predicate:
    def match(document: Mapping[str, Any]) -> bool:
        for predicate in predicates:  # noqa: SIM110 (a generator costs twice as much here)
            if predicate(document):
                return True
        return False

    return match


def _walk(parts: list[str], test: Test) -> Predicate:
    match_document, match_array = _last_part(parts[-1], test)
    for part in reversed(parts[:-1]):
        match_document, match_array = _inner_part(part, test, match_document, match_array)
    return match_document


def _last_part(part: str, test: Test) -> tuple[Predicate, Test]:
    """How the last part is looked up in a document, and in an array that an earlier part has led to."""
    index = _index(part)

    def match_document(document: Mapping[str, Any]) -> bool:
        value = document.get(part, MISSING)
        if type(value) is list:
            for element in value:
                if test(element):
                    return True
        return test(value)

    def match_array(elements: list[Any]) -> bool:
        for i, element in enumerate(elements):
            document = as_document(element)
            if document is not None and match_document(document):
                return True
            if i == index and test(element):
                return True
        return False

    return match_document, match_array


def _inner_part(part: str, test: Test, next_document: Predicate, next_array: Test) -> tuple[Predicate, Test]:
    """The same for a part that is not the last one."""
    index = _index(part)

    def match_document(document: Mapping[str, Any]) -> bool:
        value = document.get(part, MISSING)
        if type(value) is dict:
            return next_document(value)
        if type(value) is list:
            return next_array(value)
        embedded = as_document(value)
        return test(MISSING) if embedded is None else next_document(embedded)

    def match_array(elements: list[Any]) -> bool:
        for i, element in enumerate(elements):
            document = as_document(element)
            if document is not None:
                if match_document(document) or (i == index and next_document(document)):
                    return True
            elif i == index and type(element) is list and next_array(element):
                return True
        return False

    return match_document, match_array


def _index(part: str) -> int:
    """The array index that a part can mean, -1 for none: "00" is a name only."""
    index = array_index(part)
    return -1 if index is None else index


def _test(node: Equal | AnyOf | Range | Exists) -> Test:
    if isinstance(node, Equal):
        return _equals(node.value)
    if isinstance(node, AnyOf):
        return _is_any_of(node.values)
    if isinstance(node, Range):
        return _is_in_range(node.operator, node.value)
    return lambda value: value is not MISSING


def _equals(operand: Any) -> Test:
    kind = bracket(operand)
    if kind == NULL:
        return lambda value: value is None or value is MISSING
    if kind == STRING:
        return lambda value: type(value) is str and value == operand
    if kind == BOOL:
        return lambda value: value is operand
    if kind == OBJECT_ID:
        return lambda value: type(value) is ObjectId and value == operand
    if kind == NUMBER:
        return _equals_number(exact_number(operand))
    key = value_key(operand)
    return lambda value: bracket(value) == kind and value_key(value) == key


def _equals_number(number: Any) -> Test:
    def test(value: Any) -> bool:
        kind = type(value)
        if kind in _PLAIN_NUMBERS:
            return bool(value == number)
        return kind is Decimal128 and bool(exact_number(value) == number)

    if isinstance(number, str):  # NaN
        return lambda value: bracket(value) == NUMBER and exact_number(value) == number
    return test


def _is_any_of(operands: tuple[Any, ...]) -> Test:
    keys = frozenset(value_key(operand) for operand in operands)
    kinds = frozenset(kind for kind, _ in keys)
    strings = frozenset(operand for operand in operands if type(operand) is str)
    matches_missing = NULL in kinds

    def test(value: Any) -> bool:
        if type(value) is str:
            return value in strings
        if value is MISSING:
            return matches_missing
        return bracket(value) in kinds and value_key(value) in keys

    return test


def _is_in_range(name: str, operand: Any) -> Test:
    kind = bracket(operand)
    holds = _COMPARISONS[name]
    inclusive = name in ("$gte", "$lte")
    if kind == NULL:
        return lambda value: inclusive and (value is None or value is MISSING)
    if kind in (MIN_KEY, MAX_KEY):
        # Every other bracket, missing fields too, lies on one side of these two.
        others = name.startswith("$gt") if kind == MIN_KEY else name.startswith("$lt")
        return lambda value: inclusive if bracket(value) == kind else others
    if kind == NUMBER:
        return _number_in_range(holds, inclusive, exact_number(operand))
    if kind == STRING:
        return lambda value: type(value) is str and holds(value, operand)
    if kind == DATE and type(operand) is DatetimeMS:
        return _date_in_range(holds, operand)
    return lambda value: bracket(value) == kind and holds(compare(value, operand), 0)


def _number_in_range(holds: Callable[[Any, Any], bool], inclusive: bool, number: Any) -> Test:
    """NaN is in range of NaN only, and there only inclusively."""
    if isinstance(number, str):
        return lambda value: inclusive and bracket(value) == NUMBER and exact_number(value) == number

    def test(value: Any) -> bool:
        kind = type(value)
        if kind in _PLAIN_NUMBERS:
            # NaN is the one number unlike itself, and a Decimal raises when it is ordered against it.
            return bool(value == value and holds(value, number))
        if kind is not Decimal128:
            return False
        exact = exact_number(value)
        return not isinstance(exact, str) and holds(exact, number)

    return test


def _date_in_range(holds: Callable[[Any, Any], bool], operand: DatetimeMS) -> Test:
    milliseconds = int(operand)

    def test(value: Any) -> bool:
        if type(value) is DatetimeMS:
            return holds(int(value), milliseconds)
        return bracket(value) == DATE and holds(compare(value, operand), 0)

    return test
