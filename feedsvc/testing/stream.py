"""`ports.ChangeStream` in memory: where a position is in the oplog, and what a read returns from there.

A position is looked up at the first read, as MongoDB does it, and again until this source sees it: an unknown record
is lost only once something of a later cluster time is visible.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from feedsvc.core.changes import (
    COLLECTION_GONE_OPERATIONS,
    Change,
    ChangeBody,
    Namespace,
    TailScope,
    expand,
    position_kind,
)
from feedsvc.core.positions import Position, PositionKind, boundary, record_position
from feedsvc.ports import Batch, PositionLost, SourceError
from feedsvc.testing.entries import Entry
from feedsvc.testing.oplog import BOUNDARY_TOKEN, EVENT_TOKEN, INVALIDATE_TOKEN, MemoryOplog
from feedsvc.testing.polled import Polled


class View(Protocol):
    """What a stream needs of its source."""

    oplog: MemoryOplog
    max_records: int

    @property
    def visible(self) -> int: ...

    def operation_time_now(self) -> int: ...

    def take_read_fault(self) -> SourceError | None: ...


class MemoryStream(Polled[Batch]):
    """A read that waits does so once: it may return an empty batch."""

    def __init__(self, source: View, scope: TailScope, position: Position) -> None:
        super().__init__(source.oplog, "stream")
        self._source = source
        self._oplog = source.oplog
        self._scope = scope
        self._position = position
        self._next: int | None = None  # unknown until the position has been found
        self._owed: list[Change] = []  # what belongs to the position but comes after it: an invalidate
        # A boundary must be past this: it sorts before the records of its time, and never goes back.
        self._reached = position.cluster_time - 1 if position.is_boundary else position.cluster_time
        self._ended = False

    async def read(self) -> Batch:
        batch = self.poll()
        if batch is not None:
            return batch
        await self._until_more()
        return self.poll() or Batch([])

    def _poll(self) -> Batch | None:
        fault = self._source.take_read_fault()
        if fault is not None:
            raise fault
        if self._ended:
            return Batch([], ended=True)
        if self._next is None:
            self._next = self._find()
            if self._next is None:
                return None
        if self._next < self._oplog.first:
            raise PositionLost("the oplog rolled over under the cursor", 136)
        changes = self._take(self._next)
        reached = self._idle_boundary()
        if changes or reached is not None or self._ended:
            return Batch(changes, reached, self._ended)
        return None

    def _take(self, number: int) -> list[Change]:
        changes, self._owed = self._owed, []
        visible, limit = self._source.visible, self._source.max_records
        while True:
            if changes:
                self._reached = changes[-1].position.cluster_time
                self._ended = changes[-1].operation == "invalidate" and changes[-1].namespace is None
            if number >= visible or len(changes) >= limit or self._ended:
                break
            changes.extend(self._changes_of(self._oplog.entry(number)))
            number += 1
        self._next = number
        return changes

    def _idle_boundary(self) -> Position | None:
        reached = self._source.operation_time_now()
        if self._next is None or self._next < self._source.visible or self._ended or reached <= self._reached:
            return None
        self._reached = reached
        return boundary(reached, self._oplog.token(BOUNDARY_TOKEN, reached))

    def _find(self) -> int | None:
        """The number of the first entry after the position; None while this source does not see so far."""
        position = self._position
        if position.data is None:
            if position.is_boundary:
                return self._at_time(position.cluster_time)
            return self._after_digest()
        made_from = self._oplog.token_value(position.data)
        if made_from is None:
            raise PositionLost("not a token of this oplog", 9)
        kind, value = made_from
        if kind == BOUNDARY_TOKEN:
            return self._at_time(value)
        return self._after_entry(value, kind)

    @property
    def _first_time(self) -> int:
        return self._oplog.entry(self._oplog.first).cluster_time

    def _at_time(self, cluster_time: int) -> int | None:
        """The first entry at or after a time; None for a time that the oplog has not reached."""
        oplog = self._oplog
        if cluster_time < self._first_time:
            raise PositionLost("the oplog no longer reaches this time", 286, history=True)
        low, high = oplog.first, oplog.end
        while low < high:
            middle = (low + high) // 2
            if oplog.entry(middle).cluster_time < cluster_time:
                low = middle + 1
            else:
                high = middle
        return low if low < oplog.end else None

    def _after_entry(self, number: int, kind: str) -> int | None:
        oplog = self._oplog
        if oplog.first <= number < oplog.end:
            entry = oplog.entry(number)
            if entry.cluster_time == self._position.cluster_time and self._matches(entry):
                if number >= self._source.visible:
                    return None
                if kind == EVENT_TOKEN:
                    self._owe_after(entry)
                return number + 1
        self._raise_if_past()
        return None

    def _after_digest(self) -> int | None:
        position, oplog = self._position, self._oplog
        number = self._at_time(position.cluster_time)
        if number is None:
            return None
        while number < self._source.visible:
            entry = oplog.entry(number)
            if any(change.position.key == position.key for change in self._changes_of(entry)):
                self._owe_after(entry)
                return number + 1
            if entry.cluster_time > position.cluster_time:
                break
            number += 1
        self._raise_if_past()
        return None

    def _raise_if_past(self) -> None:
        if self._position.cluster_time < self._first_time:
            raise PositionLost("the oplog no longer reaches this position", 286, history=True)
        if self._source.operation_time_now() > self._position.cluster_time:
            raise PositionLost("the record of this position is not in the stream", 280)

    def _owe_after(self, entry: Entry) -> None:
        """After a drop comes its invalidate, unless the position is the invalidate's own."""
        if self._position.kind is not PositionKind.INVALIDATE:
            self._owed = list(self._changes_of(entry)[1:])

    def _matches(self, entry: Entry) -> bool:
        scope, namespace = self._scope, entry.namespace
        if entry.operation == "noop":
            return False
        if scope.level == "deployment":
            return True
        if scope.level == "database":
            return namespace.database == scope.database
        return Namespace(scope.database, scope.collection) in (namespace, entry.renamed_to)

    def _changes_of(self, entry: Entry) -> tuple[Change, ...]:
        if not self._matches(entry):
            return ()
        kind = position_kind(entry.operation, self._scope.level)
        change = Change(
            position=record_position(kind, entry.cluster_time, self._oplog.token(EVENT_TOKEN, entry.number)),
            operation=entry.operation,
            namespace=entry.namespace,
            body=_body(entry, self._oplog),
            size_bytes=64,
            renamed_to=entry.renamed_to,
        )
        if entry.operation in COLLECTION_GONE_OPERATIONS and kind is PositionKind.EVENT:
            token = self._oplog.token(INVALIDATE_TOKEN, entry.number)
            invalidate = record_position(PositionKind.INVALIDATE, entry.cluster_time, token)
            return (change, Change(invalidate, "invalidate", None, change.body))
        return expand(change)


def _body(entry: Entry, oplog: MemoryOplog) -> Callable[[], ChangeBody]:
    after = entry.after
    if entry.operation == "update":
        after = oplog.document(entry.namespace, entry.document_id)

    def body() -> ChangeBody:
        return ChangeBody(
            document_key=None if entry.document_id is None else {"_id": entry.document_id},
            full_document=after,
            before=entry.before,
            update_description=entry.update,
            wall_time_ms=(entry.cluster_time >> 32) * 1000,
        )

    return body
