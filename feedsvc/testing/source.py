"""`ports.ChangeSource` and `ports.DocumentSource` in memory: one instance's view of a `MemoryOplog`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from feedsvc.core.changes import Document, Namespace, TailScope
from feedsvc.core.positions import Position
from feedsvc.ports import CollectionInfo, OplogWindow, SourceError
from feedsvc.testing.documents import MemoryCursor
from feedsvc.testing.oplog import MemoryOplog
from feedsvc.testing.stream import MemoryStream


class MemorySource:
    """`ports.ChangeSource` and `ports.DocumentSource` over a `MemoryOplog`: one instance's view of it.

    `max_records` bounds the records of one read; it may cut inside a transaction, never between a drop and its
    synthesised invalidate. `max_documents` bounds those of one read of a find.
    """

    def __init__(self, oplog: MemoryOplog, *, max_records: int = 1_000, max_documents: int = 100) -> None:
        self.oplog = oplog
        self.max_records = max_records
        self.max_documents = max_documents
        self.opened: list[tuple[TailScope, Position]] = []
        """Every `open` so far, failed ones too."""
        self.found: list[tuple[Namespace, Document, int]] = []
        """The arguments of every `find` so far, failed ones too."""
        self.open_cursors = 0
        """Finds that have not been closed."""
        self._limit: int | None = None
        self._open_faults: list[SourceError] = []
        self._read_faults: list[SourceError] = []
        self._find_faults: list[SourceError] = []
        self._cursor_faults: list[SourceError] = []

    @property
    def visible(self) -> int:
        """The number after the last entry that this source sees."""
        return self.oplog.end if self._limit is None else min(self._limit, self.oplog.end)

    def see_only(self, end: int | None) -> None:
        """Lag: see the entries before number `end` only (moved back to where a cluster time begins); None sees all."""
        if end is not None:
            end = max(end, self.oplog.first + 1)
            while self.oplog.first + 1 < end < self.oplog.end and self.oplog.splits(end):
                end -= 1
        self._limit = end
        self.oplog.wake()

    def fail_next_read(self, error: SourceError) -> None:
        """The next read of any stream of this source raises `error`, a waiting one at once."""
        self._read_faults.append(error)
        self.oplog.wake()

    def fail_next_open(self, error: SourceError) -> None:
        self._open_faults.append(error)

    def fail_next_find(self, error: SourceError) -> None:
        self._find_faults.append(error)

    def fail_next_cursor_read(self, error: SourceError) -> None:
        """The next read of any find of this source raises `error`, a waiting one at once."""
        self._cursor_faults.append(error)
        self.oplog.wake()

    def take_read_fault(self) -> SourceError | None:
        return self._read_faults.pop(0) if self._read_faults else None

    def take_cursor_fault(self) -> SourceError | None:
        return self._cursor_faults.pop(0) if self._cursor_faults else None

    async def open(
        self, scope: TailScope, position: Position, *, await_s: float | None = None
    ) -> MemoryStream:
        """`await_s` has no effect: an answer without changes takes no time here."""
        return self.open_now(scope, position)

    def open_now(self, scope: TailScope, position: Position) -> MemoryStream:
        """`open` without a loop."""
        self.opened.append((scope, position))
        if self._open_faults:
            raise self._open_faults.pop(0)
        return MemoryStream(self, scope, position)

    async def find(self, namespace: Namespace, query: Document, after: int) -> MemoryCursor:
        return self.find_now(namespace, query, after)

    def find_now(self, namespace: Namespace, query: Document, after: int) -> MemoryCursor:
        """`find` without a loop."""
        self.found.append((namespace, query, after))
        if self._find_faults:
            raise self._find_faults.pop(0)
        cursor = MemoryCursor(self, namespace, query, after, self._cursor_closed)
        self.open_cursors += 1
        return cursor

    def _cursor_closed(self) -> None:
        self.open_cursors -= 1

    async def operation_time(self) -> int:
        return self.operation_time_now()

    def operation_time_now(self) -> int:
        """The cluster time of the last entry that this source sees."""
        return self.oplog.entry(max(self.visible - 1, self.oplog.first)).cluster_time

    async def describe(self, database: str, collections: Collection[str]) -> Mapping[str, CollectionInfo]:
        return {
            name: CollectionInfo(images=self.oplog.images(database, name))
            for name in collections
            if self.oplog.exists(database, name)
        }

    async def oplog_window(self, *, first_age_s: float = 0.0) -> OplogWindow | None:
        first = self.oplog.entry(self.oplog.first).cluster_time
        return OplogWindow(first, self.operation_time_now(), self.oplog.images_expire_s)

    async def identity(self) -> str:
        return self.oplog.name
