"""The test of each leaf: looks at one element, or at MISSING, and knows nothing of paths.

A test never raises for a BSON value, but `TooMuchText` where regular expressions would search too long. Strings and
numbers come first in each, since most filters ask for these. Cost: constant for scalars, linear in the element for
documents and arrays; an `$in` is one look-up.

Source: mongo/db/matcher/expression_leaf.cpp (matchesSingleElement of each class).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.regex import Regex

from feedsvc.core.filters.nodes import AnyOf, Equal, Exists, Leaf, Mod, Pattern, Range, Size, Type
from feedsvc.core.filters.regex import Searches, compile_regex
from feedsvc.core.filters.types import type_code
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
    bracket,
    compare,
    exact_number,
    regex_options,
    truncated,
    value_key,
)
from feedsvc.core.filters.walk import Test

_PLAIN_NUMBERS = frozenset({int, float, Int64})
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def element_test(leaf: Leaf, searches: Searches) -> Test:
    """The test of a leaf, whatever its path is. What it searches is counted in `searches`."""
    if isinstance(leaf, Equal):
        return _equals(leaf.value)
    if isinstance(leaf, AnyOf):
        return _is_any_of(leaf.values)
    if isinstance(leaf, Range):
        return _is_in_range(leaf.operator, leaf.value)
    if isinstance(leaf, Type):
        codes = frozenset(leaf.codes)
        return lambda value: type_code(value) in codes
    if isinstance(leaf, Mod):
        return _leaves_remainder(leaf.divisor, leaf.remainder)
    if isinstance(leaf, Size):
        size = leaf.size
        return lambda value: type(value) is list and len(value) == size
    if isinstance(leaf, Pattern):
        return _is_found(leaf.pattern, leaf.options, searches)
    assert isinstance(leaf, Exists)
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


def _leaves_remainder(divisor: int, remainder: int) -> Test:
    """The dividend is cut toward zero, and so is the quotient: the remainder has the dividend's sign."""
    positive = abs(divisor)

    def test(value: Any) -> bool:
        dividend = truncated(value)
        if dividend is None:
            return False
        rest = abs(dividend) % positive
        return (rest if dividend >= 0 else -rest) == remainder

    return test


def _is_found(pattern: str, options: str, searches: Searches) -> Test:
    search = compile_regex(pattern, options, searches)

    def test(value: Any) -> bool:
        if type(value) is str:
            return search(value)
        return type(value) is Regex and value.pattern == pattern and regex_options(value) == options

    return test
