"""From a topic back to a query document: what MongoDB is asked for a snapshot.

The server's answer may be a superset: every document is matched again in process (decision 10), so that snapshot and
stream agree. It must never be less. So a tree is written as a query that matches no less than it, or, inside a
negation, as one that matches no more, and so on. What cannot be written is "everything" in the first case, which a
conjunction may leave out, and "nothing" in the second, which a disjunction may leave out. That is:

* a test whose path the policy's projection may change (`_is_shown`): the server sees documents whole, the client's
  filter sees them behind the projection;
* a pattern: RE2 runs it here, and PCRE2 would run it there;
* `$type` of a string, an object or null, where no less is asked for: `bson` reads the deprecated symbol, dbPointer and
  undefined as these;
* an `$elemMatch` of nothing but `$and`, `$or` and `$nor`, which SecantusDB refuses;
* a kind of test that this module does not know.

One thing may match less and is sent all the same: `{a: null}` finds a stored *undefined* before MongoDB 8.0 only (its
compatibility changes), and no driver of today can write one.

The query is as flat as the filters were, so that it keeps the bound on depth that they keep. Linear in their size, but
for 2^n readings of a path with n numeric parts (n <= 8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from feedsvc.core.filters.nodes import And, Condition, ElemMatch, ElemMatchValue, Node, Not, Or, Pattern, Type
from feedsvc.core.filters.spelling import Query, operators, opposite, short
from feedsvc.core.filters.types import ALIASES
from feedsvc.core.images import array_index
from feedsvc.core.projection import Projection
from feedsvc.core.projection_stage import Stage
from feedsvc.core.topics import Topic

Shown = Callable[[str], bool]
"""Whether the server finds at a path what the filter finds there."""

_INDISTINCT_CODES = ALIASES["string"] | ALIASES["object"] | ALIASES["null"]


def find_query(topic: Topic) -> Query:
    """A query, in BSON values, that matches every document that the topic matches, and perhaps more."""
    policy = _written(topic.policy_filter.root, _whole, more=True)
    client = _written(topic.client_filter.root, lambda path: _is_shown(path, topic.policy_fields), more=True)
    return _flat(_all_of(query for query in (policy, client) if query is not None))


def _whole(path: str) -> bool:
    return True


def _written(node: Node, shown: Shown, *, more: bool) -> Query | None:
    """A query that matches all that `node` does and maybe more, or else maybe less; None for everything, or nothing."""
    if isinstance(node, (And, Or)):
        written = [_written(clause, shown, more=more) for clause in node.clauses]
        queries = [query for query in written if query is not None]
        if isinstance(node, And):
            return _all_of(queries) if more or len(queries) == len(written) else None
        return {"$or": queries} if len(queries) == len(written) or (queries and not more) else None
    if isinstance(node, Not):
        return _negated(node.clause, shown, more=more)
    test = _test(node, more=more)
    return {node.path: test} if test is not None and shown(node.path) else None


def _negated(node: Node, shown: Shown, *, more: bool) -> Query | None:
    inner = _written(node, shown, more=not more)
    if inner is None:
        return None
    if isinstance(node, Or):
        return {"$nor": inner["$or"]}
    if isinstance(node, (And, Not)):
        return {"$nor": [inner]}
    return {node.path: opposite(node, inner[node.path])}


def _test(node: Condition, *, more: bool) -> Query | None:
    """The operators of a test, where the server can be asked for it."""
    if isinstance(node, Type) and more and not _INDISTINCT_CODES.isdisjoint(node.codes):
        return None
    if isinstance(node, ElemMatch):
        inner = _written(node.clause, _whole, more=more)
        return None if inner is None or _is_logical(inner) else {"$elemMatch": _flat(inner)}
    if isinstance(node, Pattern) or (isinstance(node, ElemMatchValue) and not _is_exact(node.clause)):
        return None
    return operators(node)


def _is_logical(query: Query) -> bool:
    return bool(query) and all(key[:1] == "$" for key in query)


def _is_exact(node: Node) -> bool:
    """Whether the server answers all of it just so."""
    if isinstance(node, (And, Or)):
        return all(_is_exact(clause) for clause in node.clauses)
    if isinstance(node, (Not, ElemMatch, ElemMatchValue)):
        return _is_exact(node.clause)
    return not isinstance(node, Pattern) and _test(node, more=True) is not None


def _all_of(queries: Iterable[Query]) -> Query:
    """One query for all of them: side by side where the names allow it, the others in an `$and`."""
    together: Query = {}
    others: list[Query] = []
    for query in queries:
        for key, value in query.items():
            if key == "$and":
                others.extend(value)
            elif key not in together:
                together[key] = dict(value) if isinstance(value, dict) else value
            elif isinstance(value, dict) and not together[key].keys() & value.keys():
                together[key].update(value)
            else:
                others.append({key: value})
    return {**together, "$and": others} if others else together


def _flat(query: Query) -> Query:
    """Equality written short, which saves a level; a `Regex` would become a pattern."""
    flat: Query = {}
    for key, value in query.items():
        if key in ("$and", "$or", "$nor"):
            value = [_flat(clause) for clause in value]
        else:
            value = short(value)
        flat[key] = value
    return flat


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
    """Whether one is the beginning of the other, any number in `parts` being a name or an index. A projection has no
    indexes."""
    if not parts or not hidden:
        return True
    if parts[0] == hidden[0] and _may_meet(parts[1:], hidden[1:]):
        return True
    return array_index(parts[0]) is not None and _may_meet(parts[1:], hidden)
