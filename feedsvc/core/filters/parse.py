"""From a query document to a checked syntax tree, and to its canonical form.

The tree is the only thing that is ever evaluated: `compile` and `canonical_form` never see the document, so what was
validated is what runs. Every operator is on an allow-list, containers must be real lists and dicts, and the bounds are
checked while walking. Where MongoDB is lenient in a way that only hides mistakes, this parser refuses: a `$` key
inside a literal (`{a: {b: {$gt: 1}}}` compares with a document that has a field `$gt`), an empty path component, a
component that begins with `$`.

The tree is normal: `$ne`, `$nin` and `$not` are `Not`; nested `And`/`Or` are flattened; `$in` of one value
is `Equal`; `$nor` is `Not(Or)`; duplicate clauses are dropped. The canonical form (`nodes`) sorts on top of that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bson.decimal128 import Decimal128
from bson.regex import Regex

from feedsvc.core.filters.nodes import (
    And,
    AnyOf,
    Equal,
    Exists,
    Filter,
    Node,
    Not,
    Or,
    Range,
    RangeOperator,
    canonical_bytes,
)
from feedsvc.core.filters.values import ARRAY, DOCUMENT, bracket, value_key
from feedsvc.core.limits import Limits

_LIMITS = Limits()
MAX_FILTER_BYTES = _LIMITS.filter_bytes
MAX_DEPTH = _LIMITS.filter_depth
"""Levels of `{...}` in the query document that are not inside a literal; literals have the same bound of their own."""
MAX_IN_VALUES = _LIMITS.filter_in_values
MAX_PATH_PARTS = 64
MAX_NUMERIC_PARTS = 8
"""Each numeric part of a path can mean a name and an index at once, so the work doubles with each."""
_MAX_REPORTED_PATH = 256
"""Characters. A path is made of the client's own keys, which may be as long as a frame."""


class FilterError(ValueError):
    """A filter is refused. `code` is `filter_invalid` or `filter_unsupported`; `path` is where, `rule` is why.

    Neither carries a value of the filter.
    """

    def __init__(self, code: str, path: str, rule: str) -> None:
        path = path if len(path) <= _MAX_REPORTED_PATH else path[:_MAX_REPORTED_PATH] + "..."
        super().__init__(f"{path}: {rule}" if path else rule)
        self.code = code
        self.path = path
        self.rule = rule


def parse_filter(document: Mapping[str, Any]) -> Filter:
    """Check and parse a query document whose values are BSON already (after `extjson.decode`).

    Raises `FilterError` and nothing else.
    """
    if not isinstance(document, dict):
        raise FilterError("filter_invalid", "", "a filter must be a document")
    root = _query(document, "", 1)
    canonical = canonical_bytes(root)
    check_size(canonical)
    return Filter(root, canonical)


def check_size(text: bytes) -> None:
    """The bound of 4 KiB, for the JSON text of a filter before it is parsed, or for its canonical form."""
    if len(text) > MAX_FILTER_BYTES:
        raise FilterError("filter_invalid", "", f"a filter must not be longer than {MAX_FILTER_BYTES} bytes")


def canonical_form(filter: Filter) -> bytes:
    """Deterministic bytes: the same for filters that differ in the order or nesting of clauses, in duplicates or in
    spelling; never the same for two that some document tells apart."""
    return filter.canonical


def _query(document: dict[Any, Any], path: str, depth: int) -> Node:
    _check_depth(depth, path)
    clauses: list[Node] = []
    for key, value in document.items():
        if not isinstance(key, str):
            raise FilterError("filter_invalid", path, "a key must be a string")
        here = _below(path, key)
        if key.startswith("$"):
            clauses.append(_logical(key, value, here, depth))
        else:
            _check_field_path(key, here)
            clauses.append(_field(key, value, here, depth))
    return _both(clauses)


def _logical(operator: str, value: object, path: str, depth: int) -> Node:
    if operator not in ("$and", "$or", "$nor"):
        if operator in _FIELD_OPERATORS or operator == "$not":
            raise FilterError("filter_invalid", path, f"{operator} belongs under a field")
        raise FilterError("filter_unsupported", path, "this operator is not supported")
    if not isinstance(value, list) or not value:
        raise FilterError("filter_invalid", path, "must be an array of documents that is not empty")
    clauses = []
    for i, item in enumerate(value):
        if not isinstance(item, dict):
            raise FilterError("filter_invalid", f"{path}.{i}", "must be a document")
        clauses.append(_query(item, f"{path}.{i}", depth + 1))
    if operator == "$and":
        return _both(clauses)
    either = _either(clauses)
    return either if operator == "$or" else _negated(either)


def _field(field: str, value: object, path: str, depth: int) -> Node:
    if isinstance(value, dict) and any(isinstance(key, str) and key[:1] == "$" for key in value):
        return _operators(field, value, path, depth + 1)
    _check_literal(value, path, 0)
    return Equal(field, value)


def _operators(field: str, operators: dict[Any, Any], path: str, depth: int) -> Node:
    _check_depth(depth, path)
    clauses: list[Node] = []
    for operator, operand in operators.items():
        here = _below(path, str(operator))
        if not isinstance(operator, str) or operator[:1] != "$":
            raise FilterError("filter_invalid", here, "fields and operators must not be mixed")
        if operator == "$not":
            if isinstance(operand, Regex):
                raise FilterError("filter_unsupported", here, "regular expressions are not supported")
            if not isinstance(operand, dict) or not operand:
                raise FilterError("filter_invalid", here, "must be a document of operators")
            clauses.append(_negated(_operators(field, operand, here, depth + 1)))
            continue
        build = _FIELD_OPERATORS.get(operator)
        if build is None:
            if operator in ("$and", "$or", "$nor"):
                raise FilterError("filter_invalid", here, f"{operator} does not belong under a field")
            raise FilterError("filter_unsupported", here, "this operator is not supported")
        clauses.append(build(field, operand, here))
    return _both(clauses)


def _equal(field: str, operand: object, path: str) -> Node:
    _check_literal(operand, path, 0)
    return Equal(field, operand)


def _range(operator: RangeOperator) -> Callable[[str, object, str], Node]:
    def build(field: str, operand: object, path: str) -> Node:
        _check_literal(operand, path, 0)
        return Range(field, operator, operand)

    return build


def _any_of(field: str, operand: object, path: str) -> Node:
    if not isinstance(operand, list):
        raise FilterError("filter_invalid", path, "must be an array")
    if len(operand) > MAX_IN_VALUES:
        raise FilterError("filter_invalid", path, f"must not hold more than {MAX_IN_VALUES} values")
    distinct: dict[object, Any] = {}
    for i, item in enumerate(operand):
        _check_literal(item, f"{path}.{i}", 0)
        distinct.setdefault(value_key(item), item)
    if len(distinct) == 1:
        return Equal(field, *distinct.values())
    return AnyOf(field, tuple(distinct.values()))


def _exists(field: str, operand: object, path: str) -> Node:
    if isinstance(operand, Decimal128) or not isinstance(operand, (bool, int, float)):
        raise FilterError("filter_invalid", path, "must be true or false")
    return Exists(field) if operand else Not(Exists(field))


_FIELD_OPERATORS: dict[str, Callable[[str, object, str], Node]] = {
    "$eq": _equal,
    "$ne": lambda field, operand, path: Not(_equal(field, operand, path)),
    "$gt": _range("$gt"),
    "$gte": _range("$gte"),
    "$lt": _range("$lt"),
    "$lte": _range("$lte"),
    "$in": _any_of,
    "$nin": lambda field, operand, path: Not(_any_of(field, operand, path)),
    "$exists": _exists,
}


def _both(clauses: list[Node]) -> Node:
    flat: dict[bytes, Node] = {}
    for clause in clauses:
        for part in clause.clauses if isinstance(clause, And) else (clause,):
            flat.setdefault(canonical_bytes(part), part)
    return next(iter(flat.values())) if len(flat) == 1 else And(tuple(flat.values()))


def _either(clauses: list[Node]) -> Node:
    flat: dict[bytes, Node] = {}
    for clause in clauses:
        for part in clause.clauses if isinstance(clause, Or) else (clause,):
            flat.setdefault(canonical_bytes(part), part)
    return next(iter(flat.values())) if len(flat) == 1 else Or(tuple(flat.values()))


def _negated(clause: Node) -> Node:
    return clause.clause if isinstance(clause, Not) else Not(clause)


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _check_depth(depth: int, path: str) -> None:
    if depth > MAX_DEPTH:
        raise FilterError("filter_invalid", path, f"must not be nested deeper than {MAX_DEPTH} levels")


def _check_field_path(field: str, path: str) -> None:
    parts = field.split(".")
    if len(parts) > MAX_PATH_PARTS or sum(map(str.isdigit, parts)) > MAX_NUMERIC_PARTS:
        raise FilterError("filter_invalid", path, "a field path has too many parts")
    for part in parts:
        if not part or part[0] == "$" or "\0" in part:
            raise FilterError(
                "filter_invalid",
                path,
                "a field path has no empty part, no NUL and no part that begins with $",
            )


def _check_literal(value: object, path: str, depth: int) -> None:
    _check_depth(depth, path)
    if isinstance(value, Regex):
        raise FilterError("filter_unsupported", path, "regular expressions are not supported")
    try:
        kind = bracket(value)
    except TypeError:
        raise FilterError("filter_invalid", path, "is not a BSON value") from None
    if kind == ARRAY:
        for i, item in enumerate(value):  # type: ignore[arg-type, var-annotated]
            _check_literal(item, f"{path}.{i}", depth + 1)
    elif kind == DOCUMENT:
        if not isinstance(value, dict):
            raise FilterError("filter_invalid", path, "is not a plain document")
        for key, item in value.items():
            if not isinstance(key, str) or "\0" in key:
                raise FilterError("filter_invalid", path, "a key must be a string without NUL")
            if key[:1] == "$":
                raise FilterError(
                    "filter_invalid", _below(path, key), "an operator inside a literal document"
                )
            _check_literal(item, _below(path, key), depth + 1)
