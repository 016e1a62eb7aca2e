"""From a query document to a checked syntax tree, and to its canonical form.

The tree is the only thing that is ever evaluated: `compile` and `canonical_form` never see the document, so what was
validated is what runs. Every operator is on an allow-list, containers must be real lists and dicts, and the bounds are
checked while walking. Where MongoDB is lenient in a way that only hides mistakes, this parser refuses: a `$` key
inside a literal (`{a: {b: {$gt: 1}}}` compares with a document that has a field `$gt`), an empty path component, a
component that begins with `$`.

The tree is normal: `$ne`, `$nin` and `$not` are `Not`; nested `And`/`Or` are flattened; `$in` of one value
is `Equal`; `$nor` is `Not(Or)`; duplicate clauses are dropped. The canonical form sorts on top of that. Values enter
it by `value_key`, so `1`, `Int64(1)` and `1.0`, which no query can tell apart, share a form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal

import msgspec
from bson.decimal128 import Decimal128
from bson.regex import Regex

from feedsvc.core.filters.values import ARRAY, DOCUMENT, NUMBER, bracket, value_key
from feedsvc.core.limits import Limits

_LIMITS = Limits()
MAX_FILTER_BYTES = _LIMITS.filter_bytes
MAX_DEPTH = _LIMITS.filter_depth
"""Levels of `{...}` in the query document that are not inside a literal; literals have the same bound of their own."""
MAX_IN_VALUES = _LIMITS.filter_in_values
MAX_PATH_PARTS = 64
MAX_NUMERIC_PARTS = 8
"""Each numeric part of a path can mean a name and an index at once, so the work doubles with each."""

RangeOperator = Literal["$gt", "$gte", "$lt", "$lte"]


class FilterError(ValueError):
    """A filter is refused. `code` is `filter_invalid` or `filter_unsupported`; `path` is where, `rule` is why.

    Neither carries a value of the filter.
    """

    def __init__(self, code: str, path: str, rule: str) -> None:
        super().__init__(f"{path}: {rule}" if path else rule)
        self.code = code
        self.path = path
        self.rule = rule


class Equal(msgspec.Struct, frozen=True):
    path: str
    value: Any


class AnyOf(msgspec.Struct, frozen=True):
    """`$in`, without duplicates; empty matches nothing."""

    path: str
    values: tuple[Any, ...]


class Range(msgspec.Struct, frozen=True):
    path: str
    operator: RangeOperator
    value: Any


class Exists(msgspec.Struct, frozen=True):
    path: str


class Not(msgspec.Struct, frozen=True):
    clause: Node


class And(msgspec.Struct, frozen=True):
    """Empty: matches everything."""

    clauses: tuple[Node, ...]


class Or(msgspec.Struct, frozen=True):
    clauses: tuple[Node, ...]


Node = Equal | AnyOf | Range | Exists | Not | And | Or


class Filter(msgspec.Struct, frozen=True):
    """A parsed filter. `canonical` is equal for filters that differ only in spelling (see `canonical_form`)."""

    root: Node
    canonical: bytes

    @property
    def paths(self) -> frozenset[str]:
        """Every field path that the filter looks at."""
        return frozenset(_paths(self.root))


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


def canonical_bytes(node: Node) -> bytes:
    """The canonical form of a tree: nested, length-prefixed, so that no two trees run into each other."""
    if isinstance(node, Equal):
        return _joined(b"eq", _text_bytes(node.path), _key_bytes(value_key(node.value)))
    if isinstance(node, AnyOf):
        keys = sorted(_key_bytes(value_key(value)) for value in node.values)
        return _joined(b"in", _text_bytes(node.path), *keys)
    if isinstance(node, Range):
        return _joined(node.operator.encode(), _text_bytes(node.path), _key_bytes(value_key(node.value)))
    if isinstance(node, Exists):
        return _joined(b"exists", _text_bytes(node.path))
    if isinstance(node, Not):
        return _joined(b"not", canonical_bytes(node.clause))
    parts = sorted(canonical_bytes(clause) for clause in node.clauses)
    return _joined(b"and" if isinstance(node, And) else b"or", *parts)


def _joined(name: bytes, *parts: bytes) -> bytes:
    return b"(%b%b)" % (name, b"".join(b" %d:%b" % (len(part), part) for part in parts))


def _key_bytes(key: tuple[int, Any]) -> bytes:
    """A value's key as bytes. Equal numbers print alike because they are reduced to one spelling first."""
    kind, payload = key
    if kind == NUMBER:
        return b"%d=%b" % (kind, _number_text(payload).encode())
    if kind == DOCUMENT:
        return _joined(
            b"%d" % kind, *[_joined(_text_bytes(name), _key_bytes(item)) for name, item in payload]
        )
    if kind == ARRAY:
        return _joined(b"%d" % kind, *[_key_bytes(item) for item in payload])
    return b"%d=%b" % (kind, repr(payload).encode("ascii", "backslashreplace"))


def _text_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _number_text(number: Any) -> str:
    if isinstance(number, str) or number != number or number in (float("inf"), float("-inf")):
        return str(number)
    if number == 0:
        return "0"
    decimal = Decimal(number)
    sign, digits, exponent = decimal.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    stripped = text.rstrip("0")
    return f"{'-' if sign else ''}{stripped}e{exponent + len(text) - len(stripped)}"


def _paths(node: Node) -> Sequence[str]:
    if isinstance(node, Not):
        return _paths(node.clause)
    if isinstance(node, (And, Or)):
        return [path for clause in node.clauses for path in _paths(clause)]
    return [node.path]
