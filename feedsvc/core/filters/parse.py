"""From a query document to a checked syntax tree, and to its canonical form.

The tree is the only thing that is ever evaluated: `compile` and `canonical_form` never see the document, so what was
validated is what runs. Every operator is on an allow-list, containers must be real lists and dicts, and the bounds are
checked while walking. Where MongoDB is lenient in a way that only hides mistakes, this parser refuses: a `$` key
inside a literal (`{a: {b: {$gt: 1}}}` compares with a document that has a field `$gt`), an empty path component, a
component that begins with `$`, keys beside an `$elemMatch` in `$all`, which the server does not look at.

The tree is normal: `$ne`, `$nin` and `$not` are `Not`; nested `And`/`Or` are flattened; `$in` of one value
is `Equal`, one with patterns an `Or`; `$all` is an `And`; `$nor` is `Not(Or)`; duplicate clauses are dropped. The
canonical form (`nodes`) sorts on top of that.

Values mean their BSON type, whatever they look like: `{_id: "<24 hex digits>"}` asks for a string, as in MongoDB's
shell. Whoever means an ObjectId, a date or a 64-bit integer writes Extended JSON. The field `_id` is no exception,
for a collection may well have such strings in it.

Source: mongo/db/matcher/expression_parser.cpp (parseSubField, parseElemMatch, parseAll, parseNot).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bson.regex import Regex

from feedsvc.core.filters.bounds import (
    MAX_CANONICAL_BYTES,
    MAX_DEPTH,
    MAX_FILTER_BYTES,
    MAX_IN_VALUES,
    check_canonical,
    check_depth,
    check_field_path,
    check_readings,
    check_written,
)
from feedsvc.core.filters.errors import FilterError, below, invalid, unsupported
from feedsvc.core.filters.nodes import (
    AnyOf,
    ElemMatch,
    ElemMatchValue,
    Equal,
    Filter,
    Node,
    both,
    canonical_bytes,
    either,
    negated,
)
from feedsvc.core.filters.operands import LEAVES, LOGICAL, OPERATORS, check_literal, members
from feedsvc.core.filters.patterns import Patterns

__all__ = [
    "MAX_CANONICAL_BYTES",
    "MAX_DEPTH",
    "MAX_FILTER_BYTES",
    "MAX_IN_VALUES",
    "FilterError",
    "canonical_form",
    "check_written",
    "parse_filter",
]


def parse_filter(document: Mapping[str, Any]) -> Filter:
    """Check and parse a query document whose values are BSON already (after `extjson.decode`).

    Raises `FilterError` and nothing else.
    """
    if not isinstance(document, dict):
        raise invalid("", "a filter must be a document")
    root = _Parser().query(document, "", 1)
    check_readings(root)
    canonical = canonical_bytes(root)
    check_canonical(canonical)
    return Filter(root, canonical)


def canonical_form(filter: Filter) -> bytes:
    """Deterministic bytes: the same for filters that differ in the order or nesting of clauses, in duplicates or in
    spelling; never the same for two that some document tells apart."""
    return filter.canonical


class _Parser:
    """One filter. `depth` counts the documents of the query around a place, this one included."""

    def __init__(self) -> None:
        self._patterns = Patterns()

    def query(self, document: dict[Any, Any], path: str, depth: int) -> Node:
        check_depth(depth, path)
        clauses: list[Node] = []
        for key, value in document.items():
            if not isinstance(key, str):
                raise invalid(path, "a key must be a string")
            here = below(path, key)
            if key.startswith("$"):
                clauses.append(self._logical(key, value, here, depth))
            else:
                check_field_path(key, here)
                clauses.append(self._field(key, value, here, depth))
        return both(clauses)

    def _logical(self, operator: str, value: object, path: str, depth: int) -> Node:
        if operator not in LOGICAL:
            if operator in OPERATORS:
                raise invalid(path, f"{operator} belongs under a field")
            raise unsupported(path)
        if not isinstance(value, list) or not value:
            raise invalid(path, "must be an array of documents that is not empty")
        clauses = []
        for i, item in enumerate(value):
            if not isinstance(item, dict):
                raise invalid(f"{path}.{i}", "must be a document")
            clauses.append(self.query(item, f"{path}.{i}", depth + 1))
        if operator == "$and":
            return both(clauses)
        return either(clauses) if operator == "$or" else negated(either(clauses))

    def _field(self, field: str, value: object, path: str, depth: int) -> Node:
        if isinstance(value, dict) and any(isinstance(key, str) and key[:1] == "$" for key in value):
            return self._operators(field, value, path, depth + 1)
        if isinstance(value, Regex):
            return self._patterns.literal(field, value, path)
        check_literal(value, path)
        return Equal(field, value)

    def _operators(self, field: str, operators: dict[Any, Any], path: str, depth: int) -> Node:
        """The document of operators under a field; under an empty field, those of an element itself."""
        check_depth(depth, path)
        clauses: list[Node] = []
        for operator, operand in operators.items():
            here = below(path, str(operator))
            if not isinstance(operator, str) or operator[:1] != "$":
                raise invalid(here, "fields and operators must not be mixed")
            if operator in LEAVES:
                clauses.append(LEAVES[operator](field, operand, here))
            elif operator == "$in":
                clauses.append(self._patterns.any_of(field, operand, here))
            elif operator == "$nin":
                clauses.append(negated(self._patterns.any_of(field, operand, here)))
            elif operator == "$not":
                clauses.append(self._not(field, operand, here, depth))
            elif operator == "$elemMatch":
                clauses.append(self._elem_match(field, operand, here, depth))
            elif operator == "$all":
                clauses.append(self._all(field, operand, here, depth))
            elif operator == "$regex" or (operator == "$options" and "$regex" not in operators):
                clauses.append(self._patterns.regex(field, operators, path))
            elif operator == "$options":
                continue
            elif operator in LOGICAL:
                raise invalid(here, f"{operator} does not belong under a field")
            else:
                raise unsupported(here)
        return both(clauses)

    def _not(self, field: str, operand: object, path: str, depth: int) -> Node:
        if isinstance(operand, Regex):
            return negated(self._patterns.literal(field, operand, path))
        if not isinstance(operand, dict) or not operand:
            raise invalid(path, "must be a document of operators, or a regular expression")
        return negated(self._operators(field, operand, path, depth + 1))

    def _elem_match(self, field: str, operand: object, path: str, depth: int) -> Node:
        """The first key decides, as in MongoDB, whether elements are asked as documents or as values."""
        if not isinstance(operand, dict):
            raise invalid(path, "must be a document")
        first = next(iter(operand), "")
        if isinstance(first, str) and first in OPERATORS - LOGICAL:
            return ElemMatchValue(field, self._operators("", operand, path, depth + 1), operand)
        return ElemMatch(field, self.query(operand, path, depth + 1))

    def _all(self, field: str, operand: object, path: str, depth: int) -> Node:
        """All members are `$elemMatch`, or none is. Without a member it matches nothing, not even an empty array."""
        items = members(operand, path)
        if not items:
            return AnyOf(field, ())
        nested = any(isinstance(item, dict) and "$elemMatch" in item for item in items)
        clauses: list[Node] = []
        for i, item in enumerate(items):
            here = f"{path}.{i}"
            if nested:
                if not isinstance(item, dict) or item.keys() != {"$elemMatch"}:
                    raise invalid(here, "must be an $elemMatch and nothing else, as another member is")
                clauses.append(
                    self._elem_match(field, item["$elemMatch"], below(here, "$elemMatch"), depth + 1)
                )
            elif isinstance(item, Regex):
                clauses.append(self._patterns.literal(field, item, here))
            else:
                check_literal(item, here)
                clauses.append(Equal(field, item))
        return both(clauses)
