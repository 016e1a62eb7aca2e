"""A filter as the query document that a person would write: the canonical form in readable words.

Parsed again it is the same filter, and its clauses and `$in` values have the order of the canonical form, so filters
that are one topic are spelled alike. Two things keep the client's spelling, which no document can tell apart: whether
a number is `1` or `1.0`, and the operators of an `$elemMatch` on values, which the tree does not hold one by one.

Linear in the filter, but for the canonical bytes that it sorts by, which are made once for each level of nesting.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeGuard

from bson.regex import Regex

from feedsvc.core.filters.nodes import (
    And,
    AnyOf,
    Condition,
    ElemMatch,
    ElemMatchValue,
    Equal,
    Exists,
    Filter,
    Mod,
    Node,
    Not,
    Or,
    Pattern,
    Range,
    Size,
    Type,
    canonical_bytes,
)

Query = dict[str, Any]


def spelled(filter: Filter) -> Query:
    """The query document of a filter, in BSON values."""
    return _query(filter.root)


def _query(node: Node) -> Query:
    if isinstance(node, And):
        return _side_by_side(map(_query, _in_order(node.clauses)))
    if isinstance(node, Or):
        return {"$or": [_query(clause) for clause in _in_order(node.clauses)]}
    if not isinstance(node, Not):
        return {node.path: short(operators(_sorted(node)))}
    clause = node.clause
    if isinstance(clause, Or):
        return {"$nor": [_query(each) for each in _in_order(clause.clauses)]}
    if isinstance(clause, (And, Not)):
        return {"$nor": [_query(clause)]}
    return {clause.path: opposite(clause, operators(_sorted(clause)))}


def _in_order(clauses: Iterable[Node]) -> list[Node]:
    return sorted(clauses, key=canonical_bytes)


def _sorted(node: Condition) -> Condition:
    if not isinstance(node, AnyOf):
        return node
    return AnyOf(node.path, tuple(sorted(node.values, key=lambda value: canonical_bytes(Equal("", value)))))


def _side_by_side(queries: Iterable[Query]) -> Query:
    """One document where every name occurs once, or stands for different operators; else an `$and`."""
    together: Query = {}
    clauses = list(queries)
    for clause in clauses:
        for name, value in clause.items():
            if name not in together:
                together[name] = dict(value) if _is_operators(value) else value
                continue
            there = together[name]
            if _is_operators(there) and _is_operators(value) and there.keys().isdisjoint(value):
                if not {"$regex", "$options"}.isdisjoint((*there, *value)):
                    return {"$and": clauses}
                there.update(value)
            else:
                return {"$and": clauses}
    return together


def _is_operators(value: object) -> TypeGuard[Query]:
    """No literal has a name that begins with $."""
    return isinstance(value, dict) and bool(value) and all(name[:1] == "$" for name in value)


def operators(node: Condition) -> Query:
    """The operators of a test, without its path."""
    if isinstance(node, Equal):
        return {"$eq": node.value}
    if isinstance(node, AnyOf):
        return {"$in": list(node.values)}
    if isinstance(node, Range):
        return {node.operator: node.value}
    if isinstance(node, Exists):
        return {"$exists": True}
    if isinstance(node, Type):
        return {"$type": list(node.codes)}
    if isinstance(node, Mod):
        return {"$mod": [node.divisor, node.remainder]}
    if isinstance(node, Size):
        return {"$size": node.size}
    if isinstance(node, Pattern):
        return {"$regex": node.pattern, "$options": node.options}
    if isinstance(node, ElemMatch):
        return {"$elemMatch": _query(node.clause)}
    assert isinstance(node, ElemMatchValue)
    return {"$elemMatch": node.operators}


def opposite(node: Condition, test: Query) -> Query:
    """What is true where `test`, as `operators` or a part of it writes `node`, is not."""
    if isinstance(node, Equal) and not isinstance(node.value, Regex):
        return {"$ne": node.value}
    if isinstance(node, AnyOf):
        return {"$nin": test["$in"]}
    if isinstance(node, Exists):
        return {"$exists": False}
    return {"$not": test}


def short(test: Query) -> Any:
    """Equality as a literal; a `Regex` would become a pattern."""
    if test.keys() == {"$eq"} and not isinstance(test["$eq"], Regex):
        return test["$eq"]
    return test
