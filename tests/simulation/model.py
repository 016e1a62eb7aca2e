"""What clients should see, computed from the whole history of the oplog and from nothing of the service.

A place in the history is a `Mark`: (entry number, step). Step 0 is the record itself, 1 the `invalidate` behind it, and
a boundary stands before its first entry with step -1. A client at a mark has everything up to and including it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Any

import msgspec

from feedsvc.core.positions import Position, PositionKind, token_digest
from feedsvc.testing import Entry, MemoryOplog

Mark = tuple[int, int]
Level = str

FILTERS: tuple[tuple[dict[str, Any], Callable[[dict[str, Any]], bool]], ...] = (
    ({}, lambda document: True),
    ({"v": {"$gte": 2}}, lambda document: document["v"] >= 2),
    ({"v": 1}, lambda document: document["v"] == 1),
)
"""As the client writes it, and what it means."""


class TopicSpec(msgspec.Struct, frozen=True):
    """What a client asks for. `filter` is an index of `FILTERS`."""

    tenant: str
    collection: str
    filter: int
    operations: tuple[str, ...]

    @property
    def database(self) -> str:
        return f"app_{self.tenant}"


class Expected(msgspec.Struct, frozen=True, gc=False):
    """What comes next at `mark`: an event, or the `loss` (a resync reason) that ends the subscription's continuity."""

    mark: Mark
    operation: str
    document_id: Any = None
    membership: str | None = None
    """None where the model does not say."""
    loss: str | None = None


class History:
    """Every entry that the oplog ever had."""

    def __init__(self, oplog: MemoryOplog) -> None:
        self.entries: list[Entry] = []
        self.times: list[int] = []
        self._oplog = oplog
        self._number_of_digest: dict[bytes, tuple[int, int]] = {}
        self._read: dict[tuple[TopicSpec, bool, Level], Expectations] = {}
        self.stop = oplog.listen(self.note)
        self.note()

    def note(self) -> None:
        for number in range(len(self.entries), self._oplog.end):
            entry = self._oplog.entry(number)
            self.entries.append(entry)
            self.times.append(entry.cluster_time)
            self._number_of_digest[token_digest(self._oplog.token("e", number))] = (number, 0)
            self._number_of_digest[token_digest(self._oplog.token("i", number))] = (number, 1)

    def mark(self, position: Position) -> Mark:
        """Where an (opened) resume token stands."""
        if position.is_boundary:
            return (bisect_left(self.times, position.cluster_time), -1)
        number, step = self._number_of_digest[position.digest]
        return (number, 1) if position.kind is PositionKind.INVALIDATE else (number, step)

    def is_gone(self, position: Position) -> bool:
        """Whether the oplog no longer reaches a position."""
        return position.cluster_time < self._oplog.entry(self._oplog.first).cluster_time

    def of(self, topic: TopicSpec, exact: bool, level: Level) -> Expectations:
        key = (topic, exact, level)
        found = self._read.get(key)
        if found is None:
            found = self._read[key] = Expectations(self, topic, exact, level)
        return found


class Expectations:
    """What a client of one topic is sent, in order."""

    def __init__(self, history: History, topic: TopicSpec, exact: bool, level: Level) -> None:
        self._history = history
        self._topic = topic
        self._exact = exact
        self._level = level
        self._marks: list[Mark] = []
        self._items: list[Expected] = []
        self._read = 0

    def after(self, mark: Mark) -> Expected | None:
        """The first thing behind a mark."""
        entries = self._history.entries
        while self._read < len(entries):
            for item in self._of_entry(entries[self._read]):
                self._marks.append(item.mark)
                self._items.append(item)
            self._read += 1
        index = bisect_right(self._marks, mark)
        return self._items[index] if index < len(self._items) else None

    def _of_entry(self, entry: Entry) -> list[Expected]:
        topic, operation, at = self._topic, entry.operation, (entry.number, 0)
        if operation == "noop" or entry.namespace.database != topic.database:
            return []
        gone = [Expected(at, operation), Expected((entry.number, 1), "invalidate")]
        if operation == "dropDatabase":
            return [] if self._level == "collection" else gone
        if entry.renamed_to is not None and entry.renamed_to.collection == topic.collection:
            return [Expected(at, operation, loss="event_unavailable")]
        if entry.namespace.collection != topic.collection:
            return []
        if operation in ("drop", "rename"):
            return gone
        if operation not in topic.operations:
            return []
        return self._of_write(entry, at)

    def _of_write(self, entry: Entry, at: Mark) -> list[Expected]:
        matches = FILTERS[self._topic.filter][1]
        now = entry.after is not None and matches(entry.after)
        if entry.operation == "insert":
            return [Expected(at, "insert", entry.document_id, "entered")] if now else []
        if not self._exact or self._topic.filter == 0:
            return [Expected(at, entry.operation, entry.document_id)]
        if entry.before is None:
            return [Expected(at, entry.operation, loss="images_lost")]
        was = matches(entry.before)
        if not was and not now:
            return []
        membership = "left" if not now else "stayed" if was else "entered"
        return [Expected(at, entry.operation, entry.document_id, membership)]
