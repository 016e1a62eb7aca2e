"""`ports.DocumentCursor` in memory: a collection scan that goes on while others write.

Each read shows the documents as its source sees them at that moment, in the order in which they were inserted, behind
the last one that it gave out. So, as on a server, a document can come twice (deleted, and inserted again behind the
scan), not at all (deleted before the scan came there), or in a later state than others; and a collection that is
dropped or renamed ends the scan with an error. The first read waits until the source has reached `after`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from feedsvc.core.changes import Document, Namespace
from feedsvc.core.filters.compile import compile_filter
from feedsvc.core.filters.parse import FilterError, parse_filter
from feedsvc.ports import SourceError, SourceRefused, SourceUnavailable
from feedsvc.testing.oplog import MemoryOplog
from feedsvc.testing.polled import Polled

_BEFORE_ALL = -1


class View(Protocol):
    """What a cursor needs of its source."""

    oplog: MemoryOplog
    max_documents: int

    @property
    def visible(self) -> int: ...

    def operation_time_now(self) -> int: ...

    def take_cursor_fault(self) -> SourceError | None: ...


class MemoryCursor(Polled[Sequence[Document]]):
    """`closed` is called once, by the first close."""

    def __init__(
        self, source: View, namespace: Namespace, query: Document, after: int, closed: Callable[[], None]
    ) -> None:
        try:
            self._matches = compile_filter(parse_filter(dict(query)))
        except FilterError as error:
            raise SourceRefused(f"the query cannot be run: {error}", 2) from None
        super().__init__(source.oplog, "cursor")
        self._source = source
        self._namespace = namespace
        self._after = after
        self._behind = _BEFORE_ALL
        self._ends: int | None = None  # how many collections of this name had ended when the scan began
        self._when_closed = closed

    async def read(self) -> Sequence[Document]:
        while (documents := self.poll()) is None:
            await self._until_more()
        return documents

    def close_now(self) -> None:
        if not self._closed:
            self._when_closed()
        super().close_now()

    def _poll(self) -> Sequence[Document] | None:
        fault = self._source.take_cursor_fault()
        if fault is not None:
            raise fault
        if self._source.operation_time_now() < self._after:
            return None
        versions, visible = self._source.oplog.versions, self._source.visible
        ends = versions.ends(self._namespace, visible)
        if self._ends not in (None, ends):
            raise SourceUnavailable("the collection was dropped under the cursor", 175)
        self._ends = ends
        documents = []
        for record, document in versions.scan(self._namespace, self._behind, visible):
            self._behind = record
            if self._matches(document):
                documents.append(document)
                if len(documents) == self._source.max_documents:
                    break
        return documents
