"""From a topic back to a query document: what MongoDB is asked for a snapshot.

The server's answer may be a superset: every document is matched again in process (decision 10), so that snapshot and
stream agree. It must never be less. So the query is the policy's filter and those conjuncts of the client's filter
that mean the same to the server, which sees documents whole, as to the client, who sees them behind the policy's
projection. What is left out, and where leaving it out keeps a superset:

* a test on a path whose value the projection may change (`_is_shown`), or one that RE2 runs and the server's PCRE2
  would run differently (`nodes.Pattern`), or of a kind that this module does not know;
* a conjunction loses that clause; a disjunction with such a branch, and a negation with such a test anywhere in it,
  are left out as a whole: without the branch, or the test, they would match less.

The document is written as flat as it was: one whose filters keep the bounds of `parse` keeps the bound on depth.
Linear in the filters, but for 2^n readings of a path with n numeric parts (n <= 8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from feedsvc.core.filters.nodes import And, AnyOf, Equal, Exists, Node, Not, Or, Range
from feedsvc.core.images import array_index
from feedsvc.core.projection import Projection
from feedsvc.core.projection_stage import Stage
from feedsvc.core.topics import Topic

Query = dict[str, Any]
Shown = Callable[[str], bool]
"""Whether the server finds at a path what the client's filter finds there."""


def find_query(topic: Topic) -> Query:
    """A query, in BSON values, that matches every document that the topic matches, and perhaps more."""
    policy = _conjuncts(topic.policy_filter.root, lambda path: True)
    client = _conjuncts(topic.client_filter.root, lambda path: _is_shown(path, topic.policy_fields))
    return _all_of([*policy, *client])


def _conjuncts(node: Node, shown: Shown) -> list[Query]:
    clauses = node.clauses if isinstance(node, And) else (node,)
    return [query for clause in clauses if (query := _superset(clause, shown)) is not None]


def _superset(node: Node, shown: Shown) -> Query | None:
    """A query for no less than `node` matches; None where only everything would do."""
    if isinstance(node, And):
        return _all_of(_conjuncts(node, shown))
    if isinstance(node, Or):
        branches = [_superset(clause, shown) for clause in node.clauses]
        return None if None in branches else {"$or": branches}
    return _exact(node, shown)


def _exact(node: Node, shown: Shown) -> Query | None:
    """A query for just what `node` matches, or None."""
    if isinstance(node, (And, Or)):
        clauses = [_exact(clause, shown) for clause in node.clauses]
        known = [clause for clause in clauses if clause is not None]
        if len(known) < len(clauses):
            return None
        return _all_of(known) if isinstance(node, And) else {"$or": known}
    if isinstance(node, Not):
        return _negated(node.clause, shown)
    test = _test(node)
    return {node.path: test} if test is not None and shown(node.path) else None


def _negated(node: Node, shown: Shown) -> Query | None:
    if isinstance(node, (And, Or)):
        inner = _exact(node, shown)
        if inner is None:
            return None
        return {"$nor": inner["$or"] if isinstance(node, Or) else [inner]}
    if isinstance(node, Not):
        return _exact(node.clause, shown)
    test = _test(node)
    if test is None or not shown(node.path):
        return None
    if isinstance(node, Equal):
        return {node.path: {"$ne": node.value}}
    if isinstance(node, AnyOf):
        return {node.path: {"$nin": list(node.values)}}
    if isinstance(node, Exists):
        return {node.path: {"$exists": False}}
    return {node.path: {"$not": test}}


def _test(node: Node) -> Query | None:
    """The operators of a test; None where the server may answer differently."""
    if isinstance(node, Equal):
        return {"$eq": node.value}
    if isinstance(node, AnyOf):
        return {"$in": list(node.values)}
    if isinstance(node, Range):
        return {node.operator: node.value}
    if isinstance(node, Exists):
        return {"$exists": True}
    return None


def _all_of(queries: Iterable[Query]) -> Query:
    """One query for all: side by side where the names allow it, the others in an `$and`."""
    together: Query = {}
    others: list[Query] = []
    for query in queries:
        for key, value in query.items():
            held = together.get(key)
            if held is None:
                together[key] = dict(value) if isinstance(value, dict) else value
            elif isinstance(held, dict) and not held.keys() & value.keys():
                held.update(value)
            else:
                others.append({key: value})
    if others:
        together["$and"] = [*together.get("$and", ()), *others]
    return together


def _is_shown(path: str, projection: Projection) -> bool:
    """Whether every document has at `path` the same before and behind the projection.

    Exclusion: no reading of the path meets one that is excluded; elements of arrays stay where they are. Inclusion: the
    path is included or below one that is; where that one is not at the top it drops elements of arrays on its way,
    which only a path with an index could tell.
    """
    parts = path.split(".")
    return all(
        _is_included(parts, stage)
        if stage.include
        else not any(_may_meet(parts, hidden.split(".")) for hidden in stage.paths)
        for stage in projection.stages
    )


def _is_included(parts: Sequence[str], stage: Stage) -> bool:
    tree = stage.tree
    for depth, part in enumerate(parts):
        if part not in tree:
            return False
        below = tree[part]
        if below is None:
            return depth == 0 or all(array_index(part) is None for part in parts)
        tree = below
    return False


def _may_meet(parts: Sequence[str], hidden: Sequence[str]) -> bool:
    """Whether one is the other's beginning, where each number behind the first part may be an index, which no path of a
    projection has."""
    if not parts or not hidden:
        return True
    if parts[0] == hidden[0] and _may_meet(parts[1:], hidden[1:]):
        return True
    return array_index(parts[0]) is not None and _may_meet(parts[1:], hidden)
