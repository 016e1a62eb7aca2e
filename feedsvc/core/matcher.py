"""The matcher: which topics of a collection a change may concern. A `core.tail.Router`.

It follows `membership.decide`, which has the last word: it may name a topic that does not see the change, but never
leaves one out. What a topic can see depends on its kind (`_kind`):

=======  ===========================================  =================================  ==============================
kind     topics                                       insert                             update, replace, delete
=======  ===========================================  =================================  ==============================
ALL      without any filter                           told                               told
EXACT    on images                                    asked about the document           asked about both images; told
                                                                                         (`images_lost`) where one of
                                                                                         them is not known
OPEN     without images, no policy filter             asked about the document           told: `left` if it does not
                                                                                         match now
CLOSED   without images, behind a policy filter       asked about the document           asked about what the lookup
                                                                                         found; never of a delete
=======  ===========================================  =================================  ==============================

To be *told* costs a call of `Build`, and nearly always is a frame or a loss. To be *asked* costs

* nothing, where the topic has an access path (`access_paths`) and the document does not lead there: `lookups`. So
  10,000 topics that compare a field, or two, or each another one, cost an event what one topic costs;
* one evaluation of its predicate for each image, where it has none. This is linear in the number of such topics, and
  `plan(topic).cost` is what it comes to.

A body that cannot be decoded is told to all. So is a change in which the look-ups meet something unexpected: a topic
must fail alone (`FrameBuilder.failed`), and not with the tail. `add` and `remove` cost what the keys of the topic cost.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from feedsvc.core.access_paths import WHOLE, AccessPath, access_path
from feedsvc.core.changes import Change, Document
from feedsvc.core.filters.nodes import And, ElemMatch, ElemMatchValue, Node, Not, Or, Pattern
from feedsvc.core.lookups import Lookups, Reading
from feedsvc.core.membership import ChangeView
from feedsvc.core.projection import Projection
from feedsvc.core.tail import LoggedTopic
from feedsvc.core.topics import Topic

PORTION = 128
"""Topics that are asked about a small document before others may run: a fraction of a millisecond."""
_SMALL_BYTES = 4096
"""Where a change is larger, fewer topics make a portion: each may search all of it."""

_FEW = 16
"""So many found by look-ups are told without being asked: most of them match, and `Build` asks again."""

_PATTERN = 4
"""A search in a short string costs a few comparisons; in a long one it is linear."""


class IndexPlan(msgspec.Struct, frozen=True):
    """What the index does with a topic.

    `lookups`: the paths of each branch, one look-up each. `residual`: the filter is asked about what the look-ups
    find, for they do not say all of it. `scanned`: there are changes of which the topic is told or asked whatever is in
    the document. `cost`: evaluations of single conditions that a change may cost in vain; 0 where look-ups say all.
    """

    lookups: tuple[tuple[str, ...], ...]
    residual: bool
    scanned: bool
    cost: int


class _Kind(enum.Enum):
    ALL = "all"
    EXACT = "exact"
    OPEN = "open"
    CLOSED = "closed"


def plan(topic: Topic) -> IndexPlan:
    """What the index does with a topic; the same for equal topics."""
    kind, path = _kind(topic), access_path(topic)
    if kind is _Kind.ALL:
        return IndexPlan((), False, True, 0)
    told = kind is _Kind.OPEN and topic.operations != {"insert"}
    paths = () if path.branches is None else path.branches
    return IndexPlan(
        lookups=tuple(tuple(sorted(field.path for field, _ in branch.fields)) for branch in paths),
        residual=not path.complete,
        scanned=path.branches is None or told,
        cost=cost_in_vain(topic, path),
    )


def _kind(topic: Topic) -> _Kind:
    if topic.matches_all:
        return _Kind.ALL
    if topic.exact:
        return _Kind.EXACT
    return _Kind.OPEN if topic.deletes else _Kind.CLOSED


def cost_in_vain(topic: Topic, path: AccessPath) -> int:
    """`IndexPlan.cost` of a topic whose access path is known."""
    kind = _kind(topic)
    if kind is _Kind.ALL or path.complete or (kind is _Kind.OPEN and "insert" not in topic.operations):
        return 0
    conditions = _conditions(topic.policy_filter.root) + _conditions(topic.client_filter.root)
    both = kind is _Kind.EXACT and not topic.operations.isdisjoint(("update", "replace"))
    return conditions * 2 if both else conditions


def _conditions(node: Node) -> int:
    """Single conditions, each with one more for every further part of its path; patterns count as `_PATTERN`."""
    if isinstance(node, (And, Or)):
        return sum(map(_conditions, node.clauses))
    if isinstance(node, Not):
        return _conditions(node.clause)
    if isinstance(node, (ElemMatch, ElemMatchValue)):
        return _conditions(node.clause) + 1 + node.path.count(".")
    return (_PATTERN if isinstance(node, Pattern) else 1) + node.path.count(".")


_Asked = tuple[Iterable[LoggedTopic], Sequence[Document]]


class _Group:
    """The topics of one kind."""

    __slots__ = ("lookups", "members", "scanned")

    def __init__(self) -> None:
        self.members: dict[LoggedTopic, None] = {}
        self.lookups: Lookups[LoggedTopic] = Lookups()
        self.scanned: dict[LoggedTopic, None] = {}

    def add(self, logged: LoggedTopic, path: AccessPath) -> None:
        self.members[logged] = None
        if path.branches is None:
            self.scanned[logged] = None
        else:
            self.lookups.add(logged, path.branches, path.fields)

    def remove(self, logged: LoggedTopic, path: AccessPath) -> None:
        del self.members[logged]
        if path.branches is None:
            del self.scanned[logged]
        else:
            self.lookups.remove(logged, path.branches)


class Matcher:
    """The router of one collection on one tail. `view_of` gives the view of a change that `Build` looks at, too."""

    def __init__(self, view_of: Callable[[Change], ChangeView]) -> None:
        self._view_of = view_of
        self._groups = {kind: _Group() for kind in _Kind}
        self._members: dict[LoggedTopic, None] = {}

    @property
    def members(self) -> Collection[LoggedTopic]:
        return self._members

    def add(self, logged: LoggedTopic) -> None:
        topic = _topic(logged)
        self._groups[_kind(topic)].add(logged, access_path(topic))
        self._members[logged] = None

    def remove(self, logged: LoggedTopic) -> None:
        topic = _topic(logged)
        self._groups[_kind(topic)].remove(logged, access_path(topic))
        del self._members[logged]

    def route(self, change: Change) -> Iterator[Sequence[LoggedTopic]]:
        """See `core.tail.Router`."""
        view = self._view_of(change)
        try:
            told, asked = self._found(view)
        except Exception:
            # Whatever it is, `Build` meets it again, for each topic alone.
            yield from _portions(self._members)
            return
        yield from _portions(told)
        for topics, documents in asked:
            for portion in _portions(topics, change.size_bytes):
                yield _asked(portion, documents, view)

    def _found(self, view: ChangeView) -> tuple[dict[LoggedTopic, None], list[_Asked]]:
        """Who is told, and whom to ask about which documents. A few that look-ups found are told without being asked:
        most of them match."""
        told: dict[LoggedTopic, None] = {}
        asked: list[_Asked] = []
        readings = _Readings(view)
        for kind, group in self._groups.items():
            if not group.members:
                continue
            documents = _documents(kind, view)
            if documents is None:
                told.update(group.members)
                continue
            if group.lookups:
                found: dict[LoggedTopic, None] = {}
                for document in documents:
                    group.lookups.find(readings.of(document), found)
                if len(found) <= _FEW:
                    told.update(found)
                else:
                    asked.append((found, documents))
            if group.scanned:
                asked.append((group.scanned, documents))
        return told, asked


def _documents(kind: _Kind, view: ChangeView) -> list[Document] | None:
    """The documents of which one must match for a topic of this kind to see the change; None: it is told anyhow.

    Raises `UndecodableError`.
    """
    operation, body = view.change.operation, view.body
    if kind is _Kind.ALL or (kind is _Kind.OPEN and operation != "insert"):
        return None
    after = body.full_document
    if kind is _Kind.EXACT and operation != "insert":
        if operation == "update":
            after = view.after_update()
            if after is None:
                return None
        if body.before is None:
            return None
        return [body.before] if operation == "delete" or after is None else [body.before, after]
    if operation == "delete" or after is None:
        return []
    return [after]


class _Readings:
    """The readings of the images of one change, each made once."""

    def __init__(self, view: ChangeView) -> None:
        self._view = view
        self._made: dict[tuple[bytes, int], Reading] = {}

    def of(self, document: Document) -> Callable[[bytes, Projection], Reading]:
        def reading(view: bytes, projection: Projection) -> Reading:
            key = (view, id(document))
            made = self._made.get(key)
            if made is None:
                visible = document if view == WHOLE else self._view.behind(view, projection, document)
                made = self._made[key] = Reading(visible)
            return made

        return reading


def _asked(
    portion: Iterable[LoggedTopic], documents: Sequence[Document], view: ChangeView
) -> Sequence[LoggedTopic]:
    """Those of whose predicate one of the documents is true, or that fail at it: `Build` finds that again."""
    operation, behind = view.change.operation, view.behind
    matching = []
    for logged in portion:
        topic: Any = logged.topic
        if operation not in topic.operations:
            continue
        try:
            for document in documents:
                if topic.matches(document, behind):
                    matching.append(logged)
                    break
        except Exception:
            matching.append(logged)
    return matching


def _portions(topics: Iterable[LoggedTopic], size_bytes: int = 0) -> Sequence[Sequence[LoggedTopic]]:
    every = list(topics)
    portion = max(1, PORTION * _SMALL_BYTES // max(size_bytes, _SMALL_BYTES))
    if len(every) <= portion:
        return (every,) if every else ()
    return [every[first : first + portion] for first in range(0, len(every), portion)]


def _topic(logged: LoggedTopic) -> Topic:
    topic = logged.topic
    assert isinstance(topic, Topic)
    return topic
