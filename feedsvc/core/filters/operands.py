"""The operators of a field that need nothing but their operand: each function checks it and makes the node.

What MongoDB refuses is refused; where MongoDB is lenient in a way that only hides mistakes, so is this: a `$` key
inside a literal (MongoDB compares with a document that has such a field), a bool where a number belongs.

Numbers of operands may be of any type that holds a whole number; `$mod` alone cuts fractions off.

Source: mongo/db/matcher/expression_parser.cpp; bsonelement.cpp (tryCoerce, parseIntegerElementToNonNegativeInt).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bson.decimal128 import Decimal128
from bson.regex import Regex

from feedsvc.core.filters.bounds import MAX_IN_VALUES, check_depth
from feedsvc.core.filters.errors import FilterError, below, invalid, unsupported
from feedsvc.core.filters.nodes import (
    Equal,
    Exists,
    Mod,
    Node,
    Not,
    Range,
    RangeOperator,
    Size,
    Type,
)
from feedsvc.core.filters.types import ALIASES, CODES, INDISTINCT_ALIASES, INDISTINCT_CODES
from feedsvc.core.filters.values import ARRAY, DOCUMENT, bracket, truncated

Build = Callable[[str, object, str], Node]
"""Field, operand, and the operand's place, to a node; raises `FilterError`."""

_INT32 = 2**31


def equal(field: str, operand: object, path: str) -> Node:
    check_literal(operand, path)
    return Equal(field, operand)


def members(operand: object, path: str) -> list[Any]:
    """The operand of an operator that takes a list of any length, within its bound."""
    if not isinstance(operand, list):
        raise invalid(path, "must be an array")
    if len(operand) > MAX_IN_VALUES:
        raise invalid(path, f"must not hold more than {MAX_IN_VALUES} values")
    return operand


def exists(field: str, operand: object, path: str) -> Node:
    if isinstance(operand, Decimal128) or not isinstance(operand, (bool, int, float)):
        raise invalid(path, "must be true or false")
    return Exists(field) if operand else Not(Exists(field))


def type_of(field: str, operand: object, path: str) -> Node:
    if not isinstance(operand, list):
        return Type(field, tuple(sorted(_type_codes(operand, path))))
    if not operand:
        raise invalid(path, "must name at least one type")
    codes = {
        code for i, item in enumerate(members(operand, path)) for code in _type_codes(item, f"{path}.{i}")
    }
    return Type(field, tuple(sorted(codes)))


def _type_codes(operand: object, path: str) -> frozenset[int]:
    if type(operand) is str:
        if operand in INDISTINCT_ALIASES:
            raise FilterError("filter_unsupported", path, "this deprecated type is not supported")
        if operand not in ALIASES:
            raise invalid(path, "is no alias of a BSON type")
        return ALIASES[operand]
    code = _whole_number(operand, path)
    if code in INDISTINCT_CODES:
        raise FilterError("filter_unsupported", path, "this deprecated type is not supported")
    if code not in CODES:
        raise invalid(path, "is no code of a BSON type")
    return frozenset({code})


def size(field: str, operand: object, path: str) -> Node:
    count = _whole_number(operand, path)
    if not 0 <= count < _INT32:
        raise invalid(path, "must not be negative, nor above 2^31-1")
    return Size(field, count)


def mod(field: str, operand: object, path: str) -> Node:
    if not isinstance(operand, list) or len(operand) != 2:
        raise invalid(path, "must be an array of divisor and remainder")
    divisor, remainder = [_truncated(item, f"{path}.{i}") for i, item in enumerate(operand)]
    if divisor == 0:
        raise invalid(f"{path}.0", "the divisor must not be 0")
    return Mod(field, divisor, remainder)


def _whole_number(operand: object, path: str) -> int:
    number = _truncated(operand, path)
    if number != (operand.to_decimal() if isinstance(operand, Decimal128) else operand):
        raise invalid(path, "must be a whole number")
    return number


def _truncated(operand: object, path: str) -> int:
    number = truncated(operand)
    if number is None:
        raise invalid(path, "must be a number of 64 bits, not NaN and not infinite")
    return number


def _range(operator: RangeOperator) -> Build:
    def build(field: str, operand: object, path: str) -> Node:
        _refuse_regex(operand, path)
        check_literal(operand, path)
        return Range(field, operator, operand)

    return build


def _not_equal(field: str, operand: object, path: str) -> Node:
    _refuse_regex(operand, path)
    return Not(equal(field, operand, path))


def _refuse_regex(operand: object, path: str) -> None:
    if isinstance(operand, Regex):
        raise invalid(path, "takes no regular expression; $not does")


def check_literal(value: object, path: str, depth: int = 0) -> None:
    """A value that documents are compared with: BSON, bounded in depth, and without a `$` key."""
    check_depth(depth, path)
    if isinstance(value, Regex):
        if not isinstance(value.pattern, str):
            raise invalid(path, "is not a regular expression of BSON")
        return
    try:
        kind = bracket(value)
    except TypeError:
        raise invalid(path, "is not a BSON value") from None
    if kind == ARRAY:
        for i, item in enumerate(value):  # type: ignore[arg-type, var-annotated]
            check_literal(item, f"{path}.{i}", depth + 1)
    elif kind == DOCUMENT:
        if not isinstance(value, dict):
            raise invalid(path, "is not a plain document")
        for key, item in value.items():
            if not isinstance(key, str) or "\0" in key:
                raise invalid(path, "a key must be a string without NUL")
            if key[:1] == "$":
                if key in OPERATORS:
                    raise invalid(below(path, key), "an operator inside a literal document")
                raise unsupported(below(path, key))
            check_literal(item, below(path, key), depth + 1)


LEAVES: dict[str, Build] = {
    "$eq": equal,
    "$ne": _not_equal,
    "$gt": _range("$gt"),
    "$gte": _range("$gte"),
    "$lt": _range("$lt"),
    "$lte": _range("$lte"),
    "$exists": exists,
    "$type": type_of,
    "$mod": mod,
    "$size": size,
}
LOGICAL = frozenset({"$and", "$or", "$nor"})
NESTING = frozenset({"$in", "$nin", "$not", "$all", "$elemMatch", "$regex", "$options"})
"""Operators of a field whose meaning needs more than their operand: `parse` handles them."""
OPERATORS = LOGICAL | NESTING | LEAVES.keys()
"""The whole language."""
