"""Access paths: which equalities a document must satisfy for a topic to want it.

A topic's predicate, policy and client filter together, is reduced to *branches*, one of which holds for every document
that matches. A branch is a conjunction: for each of its fields, one of some values is among those that the path can
mean. What cannot be said so (ranges, negations, patterns, equality to null, which a missing field satisfies) is left
out: a branch may promise too much, never too little, and the predicate is asked afterwards.

* `Equal` and `AnyOf` are one branch with one field; an `AnyOf` of nothing has no branch;
* `And` is the product of its clauses' branches; a clause that would make too many is left out;
* `Or` is all branches of its clauses, those of one field alone made one;
* `$elemMatch` is its clause, below its path, but for paths that begin with an index.

A branch without a field says nothing, and then the topic is scanned. A field is a path in a *view* of the document:
the policy's filter sees it whole, the client's behind the policy's projection, where hidden fields are missing.

Branches are trimmed to at most `MAX_KEYS` look-up keys a topic (a key is a combination of one value for each field of
a branch), the fields with the fewest values first. All of this is linear in the filter and in the keys.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import msgspec

from feedsvc.core.filters.nodes import And, AnyOf, ElemMatch, ElemMatchValue, Equal, Node, Or
from feedsvc.core.filters.values import NULL, bracket, value_key
from feedsvc.core.projection import IDENTITY, Projection
from feedsvc.core.topics import Topic

MAX_KEYS = 256
MAX_BRANCHES = 32
MAX_FIELDS = 8
"""Of a branch. Each is one more level of hash tables; past the first few they tell hardly any topics apart."""

WHOLE = b""
"""The view of the policy's filter."""

Key = tuple[int, Hashable]
"""A `value_key`."""

_Constraints = dict["Field", frozenset[Key]]


class Field(msgspec.Struct, frozen=True, order=True):
    view: bytes
    path: str


class Branch(msgspec.Struct, frozen=True):
    """Fields, each with the keys of which one must be found there: those with the fewest keys first, so that the many
    ways of an `$in` part last, and in order of their names, so that topics of one shape share their tables."""

    fields: tuple[tuple[Field, tuple[Key, ...]], ...]


class AccessPath(msgspec.Struct, frozen=True):
    """How a topic is found. `branches` is None where it must be scanned, empty where nothing can match.

    `complete`: a document with these values matches, but for arrays. `fields` makes the view of the client's filter.
    """

    branches: tuple[Branch, ...] | None
    complete: bool
    fields: Projection


class _Cover(msgspec.Struct, frozen=True):
    branches: tuple[_Constraints, ...]
    complete: bool


_NOTHING_SAID = _Cover(({},), False)
_EVERYTHING = _Cover(({},), True)


def access_path(topic: Topic) -> AccessPath:
    """The access path of a topic; the same for equal topics."""
    fields = topic.policy_fields
    view = WHOLE if fields == IDENTITY else topic.policy_fields_form
    cover = _all([_cover(topic.policy_filter.root, WHOLE, ""), _cover(topic.client_filter.root, view, "")])
    branches = _trimmed(cover.branches)
    kept = -1 if branches is None else sum(len(branch.fields) for branch in branches)
    return AccessPath(branches, cover.complete and kept == sum(map(len, cover.branches)), fields)


def _cover(node: Node, view: bytes, above: str) -> _Cover:
    if isinstance(node, And):
        return _all([_cover(clause, view, above) for clause in node.clauses])
    if isinstance(node, Or):
        return _any([_cover(clause, view, above) for clause in node.clauses])
    if not isinstance(node, (Equal, AnyOf, ElemMatch, ElemMatchValue)):
        return _NOTHING_SAID
    path = _below(above, node.path)
    if path is None:
        return _NOTHING_SAID
    if isinstance(node, Equal):
        return _one_of(Field(view, path), (node.value,))
    if isinstance(node, AnyOf):
        return _one_of(Field(view, path), node.values)
    return _Cover(_cover(node.clause, view, path).branches, False) if node.path else _NOTHING_SAID


def _one_of(field: Field, values: Iterable[object]) -> _Cover:
    keys = frozenset(value_key(value) for value in values if bracket(value) != NULL)
    if len(keys) != len(tuple(values)):
        return _NOTHING_SAID
    return _Cover(({field: keys},) if keys else (), True)


def _all(clauses: list[_Cover]) -> _Cover:
    branches: tuple[_Constraints, ...] = ({},)
    complete = True
    for cover in sorted(clauses, key=lambda cover: len(cover.branches)):
        complete = complete and cover.complete
        if len(branches) * len(cover.branches) > MAX_BRANCHES:
            complete = False
            continue
        joined = []
        for left in branches:
            for right in cover.branches:
                complete = complete and left.keys().isdisjoint(right)
                joined.append(_both(left, right))
        branches = tuple(joined)
    return _Cover(branches, complete)


def _both(left: _Constraints, right: _Constraints) -> _Constraints:
    """Both hold. Two conditions on one path may be met by two elements of an array: the narrower one is kept."""
    joined = dict(left)
    for field, keys in right.items():
        known = joined.get(field)
        if known is None or len(keys) < len(known):
            joined[field] = keys
    return joined


def _any(clauses: list[_Cover]) -> _Cover:
    complete = all(cover.complete for cover in clauses)
    lone: dict[Field, frozenset[Key]] = {}
    others: list[_Constraints] = []
    for branch in (branch for cover in clauses for branch in cover.branches):
        if len(branch) == 1:
            ((field, keys),) = branch.items()
            lone[field] = lone.get(field, frozenset()) | keys
        elif not branch:
            return _EVERYTHING if complete else _NOTHING_SAID
        elif branch not in others:
            others.append(branch)
            if len(others) > MAX_BRANCHES:
                return _NOTHING_SAID
    branches = (*({field: keys} for field, keys in lone.items()), *others)
    return _Cover(branches, complete) if len(branches) <= MAX_BRANCHES else _NOTHING_SAID


def _trimmed(branches: tuple[_Constraints, ...]) -> tuple[Branch, ...] | None:
    """Within the bounds: of each branch its most selective field, and then as many more as there is room for."""
    if not all(branches):
        return None
    ranked = [sorted(branch.items(), key=lambda item: (len(item[1]), item[0])) for branch in branches]
    total = sum(len(fields[0][1]) for fields in ranked)
    if total > MAX_KEYS:
        return None
    trimmed = []
    for fields in ranked:
        kept, combinations = fields[:1], len(fields[0][1])
        for field, keys in fields[1:MAX_FIELDS]:
            more = combinations * (len(keys) - 1)
            if total + more > MAX_KEYS:
                break
            kept.append((field, keys))
            total += more
            combinations += more
        trimmed.append(Branch(tuple((field, tuple(keys)) for field, keys in kept)))
    return tuple(trimmed)


def _below(above: str, path: str) -> str | None:
    """A path inside an `$elemMatch`; None where it begins with an index, which is one of an array in the array."""
    if not above or not path:
        return above or path
    return None if path.partition(".")[0].isdigit() else f"{above}.{path}"
