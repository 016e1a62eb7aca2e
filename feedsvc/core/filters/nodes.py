"""The syntax tree of a filter, and its canonical form.

`parse` makes trees, `compile` runs them, topics are compared by their canonical form. The form must be the same for
trees that differ only in the order of clauses or values, and must never be the same for two that some document tells
apart: so it is nested and length-prefixed, and values enter it by `value_key`. `1`, `Int64(1)` and `1.0`, which no
query can tell apart, share a form.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Literal

import msgspec

from feedsvc.core.filters.values import ARRAY, DOCUMENT, NUMBER, value_key

RangeOperator = Literal["$gt", "$gte", "$lt", "$lte"]


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
