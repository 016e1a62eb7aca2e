"""The syntax tree of a filter, and its canonical form.

`parse` makes trees, `compile` runs them, topics are compared by their canonical form. The form must be the same for
trees that differ only in the order of clauses or values, and must never be the same for two that some document tells
apart: so it is nested and length-prefixed, and values enter it by `value_key`. `1`, `Int64(1)` and `1.0`, which no
query can tell apart, share a form.

A leaf is a *test of one element* under a path. What the path means in arrays is said in `walk`: for most leaves an
array at the end of the path stands for each element and then for itself; for `Size`, `ElemMatch` and `ElemMatchValue`
for itself only. Each leaf names the query that it stands for, with `p` its path. Below `ElemMatchValue` all paths are
empty and stand for the element itself, which is not spread.

`both`, `either` and `negated` are how trees are put together: flat, without duplicates, without double negation.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Literal

import msgspec

from feedsvc.core.filters.values import ARRAY, DOCUMENT, NUMBER, value_key

RangeOperator = Literal["$gt", "$gte", "$lt", "$lte"]


class Equal(msgspec.Struct, frozen=True):
    """`{p: {$eq: value}}`. A `Regex` as value is no pattern: it equals only that stored regular expression."""

    path: str
    value: Any


class AnyOf(msgspec.Struct, frozen=True):
    """`{p: {$in: values}}`, without duplicates and without patterns; empty matches nothing."""

    path: str
    values: tuple[Any, ...]


class Range(msgspec.Struct, frozen=True):
    """`{p: {operator: value}}`."""

    path: str
    operator: RangeOperator
    value: Any


class Exists(msgspec.Struct, frozen=True):
    """`{p: {$exists: true}}`."""

    path: str


class Type(msgspec.Struct, frozen=True):
    """`{p: {$type: codes}}`: sorted, each once, `number` written out."""

    path: str
    codes: tuple[int, ...]


class Mod(msgspec.Struct, frozen=True):
    """`{p: {$mod: [divisor, remainder]}}`: 64-bit integers, the divisor not 0."""

    path: str
    divisor: int
    remainder: int


class Size(msgspec.Struct, frozen=True):
    """`{p: {$size: size}}`."""

    path: str
    size: int


class Pattern(msgspec.Struct, frozen=True):
    """`{p: {$regex: pattern, $options: options}}`: strings in which it is found, and the equal stored `Regex`.

    The options are sorted, each once. MongoDB compares those of stored ones as they were written; drivers sort them.
    """

    path: str
    pattern: str
    options: str


class ElemMatch(msgspec.Struct, frozen=True):
    """`{p: {$elemMatch: clause}}`, the clause being a query whose paths begin in the element.

    An element that is a document or an array can match; of an array the fields are its indexes.
    """

    path: str
    clause: Node


class ElemMatchValue(msgspec.Struct, frozen=True):
    """`{p: {$elemMatch: operators}}`: the same operators as a tree and as the client wrote them.

    The tree cannot be written back as one document of operators in general (two `$not` in an `And`), so `operators`
    is kept for who asks MongoDB. It went through the same checks, and it is no part of the canonical form.
    """

    path: str
    clause: Node
    operators: dict[str, Any]


class Not(msgspec.Struct, frozen=True):
    """`{$nor: [clause]}`; where the clause is a leaf also `{p: {$not: ...}}`."""

    clause: Node


class And(msgspec.Struct, frozen=True):
    """`{$and: clauses}`. Empty: matches everything."""

    clauses: tuple[Node, ...]


class Or(msgspec.Struct, frozen=True):
    """`{$or: clauses}`, or an `$in` with patterns: then all clauses have one path. Never empty."""

    clauses: tuple[Node, ...]


Leaf = Equal | AnyOf | Range | Exists | Type | Mod | Size | Pattern
Condition = Leaf | ElemMatch | ElemMatchValue
"""What has a path."""
Node = Condition | Not | And | Or


def both(clauses: list[Node]) -> Node:
    flat: dict[bytes, Node] = {}
    for clause in clauses:
        for part in clause.clauses if isinstance(clause, And) else (clause,):
            flat.setdefault(canonical_bytes(part), part)
    return next(iter(flat.values())) if len(flat) == 1 else And(tuple(flat.values()))


def either(clauses: list[Node]) -> Node:
    flat: dict[bytes, Node] = {}
    for clause in clauses:
        for part in clause.clauses if isinstance(clause, Or) else (clause,):
            flat.setdefault(canonical_bytes(part), part)
    return next(iter(flat.values())) if len(flat) == 1 else Or(tuple(flat.values()))


def negated(clause: Node) -> Node:
    return clause.clause if isinstance(clause, Not) else Not(clause)


class Filter(msgspec.Struct, frozen=True):
    """A parsed filter. `canonical` is equal for filters that differ only in spelling (see `canonical_form`)."""

    root: Node
    canonical: bytes

    @property
    def paths(self) -> frozenset[str]:
        """Every field path that the filter looks at, those inside an `$elemMatch` in full."""
        return frozenset(_paths(self.root, ""))


def canonical_bytes(node: Node) -> bytes:
    """The canonical form of a tree."""
    if isinstance(node, Equal):
        return _joined(b"eq", _text_bytes(node.path), _key_bytes(value_key(node.value)))
    if isinstance(node, AnyOf):
        keys = sorted(_key_bytes(value_key(value)) for value in node.values)
        return _joined(b"in", _text_bytes(node.path), *keys)
    if isinstance(node, Range):
        return _joined(node.operator.encode(), _text_bytes(node.path), _key_bytes(value_key(node.value)))
    if isinstance(node, Exists):
        return _joined(b"exists", _text_bytes(node.path))
    if isinstance(node, Type):
        return _joined(b"type", _text_bytes(node.path), *[b"%d" % code for code in node.codes])
    if isinstance(node, Mod):
        return _joined(b"mod", _text_bytes(node.path), b"%d" % node.divisor, b"%d" % node.remainder)
    if isinstance(node, Size):
        return _joined(b"size", _text_bytes(node.path), b"%d" % node.size)
    if isinstance(node, Pattern):
        return _joined(b"regex", *map(_text_bytes, (node.path, node.pattern, node.options)))
    if isinstance(node, (ElemMatch, ElemMatchValue)):
        name = b"elem" if isinstance(node, ElemMatch) else b"value"
        return _joined(name, _text_bytes(node.path), canonical_bytes(node.clause))
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


def _paths(node: Node, above: str) -> Iterator[str]:
    if isinstance(node, Not):
        yield from _paths(node.clause, above)
    elif isinstance(node, (And, Or)):
        for clause in node.clauses:
            yield from _paths(clause, above)
    else:
        here = ".".join(filter(None, (above, node.path)))
        yield here
        if isinstance(node, (ElemMatch, ElemMatchValue)):
            yield from _paths(node.clause, here)
