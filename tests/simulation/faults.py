"""What goes wrong upstream: a source whose streams fail and cut their batches where MongoDB's may, and whose finds are
read from another member than the streams, a little later each time."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from random import Random

from feedsvc.core.changes import Document, Namespace, TailScope
from feedsvc.core.positions import Position
from feedsvc.ports import (
    Batch,
    ChangeStream,
    CollectionInfo,
    DocumentCursor,
    EventUnavailable,
    PositionLost,
    SourceError,
    SourceUnavailable,
)
from feedsvc.testing import MemoryOplog, MemorySource

_CUT_BEFORE_INVALIDATE = 0.3
_LATE_READ_S = 0.2
_SOCKET_S = 5.0
"""The `socketTimeoutMS` of the driver: a read is never waited for without end."""


class FaultySource(MemorySource):
    """`losses` counts the faults so far that lose a position: whoever was there may be told `resync`."""

    def __init__(self, oplog: MemoryOplog, rng: Random, max_records: int, pace_s: float) -> None:
        super().__init__(oplog, max_records=max_records, max_documents=rng.choice((1, 1, 2, 100)))
        self.ahead = MemorySource(oplog, max_documents=self.max_documents)
        """A member without any lag, from which every other find is read."""
        self.find_pace_s = rng.choice((0.0, 0.1, 0.5, 2.0))
        self.spoilt_finds = 0
        """Faults so far that end a snapshot for good."""
        self.pace_s = pace_s
        """How long a batch is on its way: so long its reader stands inside a transaction, say."""
        self.losses = 0
        self.last_loss = -1.0
        """When the last of them was raised, in seconds of the loop."""
        self._rng = rng
        self._streams: list[FaultyStream] = []
        self._cursors: list[SlowCursor] = []
        self._next_find_fault: SourceError | None = None
        self._question_faults: list[SourceError] = []

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    @property
    def open_finds(self) -> int:
        return len(self._cursors)

    def fail_a_stream(self, error: SourceError) -> None:
        """The next read of one of the open streams fails: the live one, or one that catches up."""
        if self._streams:
            self._one().fault = error
            self.oplog.wake()

    def fail_a_find(self, error: SourceError) -> None:
        """One of the open finds fails, or else the next one: at once, or after some reads."""
        if self._cursors:
            self._rng.choice(self._cursors).fault = error
        else:
            self._next_find_fault = error
        self.spoilt_finds += isinstance(error, EventUnavailable)

    async def find(self, namespace: Namespace, query: Document, after: int) -> DocumentCursor:  # type: ignore[override]
        fault, self._next_find_fault = self._next_find_fault, None
        reads_left = self._rng.choice((0, 1, 3, 4, 5))
        if fault is not None and reads_left == 5:
            raise fault
        source = self._rng.choice((self, self.ahead))
        cursor = SlowCursor(self, source.find_now(namespace, query, after), self._rng, fault, reads_left)
        self._cursors.append(cursor)
        return cursor

    def delay_a_stream(self, seconds: float) -> None:
        """One of the open streams finds nothing for a while: it reads from another member than the others."""
        if self._streams:
            self._one().late_until = asyncio.get_running_loop().time() + seconds

    def _one(self) -> FaultyStream:
        """Often the newest: those that catch up are soon done."""
        return self._streams[-1] if self._rng.random() < 0.5 else self._rng.choice(self._streams)

    def fail_next_question(self, error: SourceError) -> None:
        """The next answer that is not a stream's is this error."""
        self._question_faults.append(error)

    def heal(self) -> None:
        """Nothing fails and nothing lags from now on."""
        self._read_faults.clear()
        self._open_faults.clear()
        self._question_faults.clear()
        self._next_find_fault = None
        for cursor in self._cursors:
            cursor.fault = None
        self.pace_s = self.find_pace_s = 0.0
        for stream in self._streams:
            stream.fault = None
            stream.late_until = 0.0
        self.see_only(None)

    def count(self, fault: SourceError | None) -> None:
        if isinstance(fault, (PositionLost, EventUnavailable)):
            self.losses += 1
            self.last_loss = asyncio.get_running_loop().time()

    def take_read_fault(self) -> SourceError | None:
        fault = super().take_read_fault()
        self.count(fault)
        return fault

    async def open(  # type: ignore[override]
        self, scope: TailScope, position: Position, *, await_s: float | None = None
    ) -> ChangeStream:
        self.count(self._open_faults[0] if self._open_faults else None)
        stream = FaultyStream(self, self.open_now(scope, position), self._rng)
        self._streams.append(stream)
        return stream

    async def operation_time(self) -> int:
        self._answer()
        return await super().operation_time()

    async def describe(self, database: str, collections: Collection[str]) -> Mapping[str, CollectionInfo]:
        self._answer()
        return await super().describe(database, collections)

    def _answer(self) -> None:
        if self._question_faults:
            raise self._question_faults.pop(0)

    def closed(self, stream: FaultyStream) -> None:
        if stream in self._streams:
            self._streams.remove(stream)


class SlowCursor:
    """A cursor that can fail at any read, and each of whose replies is on its way for a while."""

    def __init__(
        self,
        source: FaultySource,
        inner: DocumentCursor,
        rng: Random,
        fault: SourceError | None,
        reads_left: int,
    ) -> None:
        self.fault = fault
        self._reads_left = reads_left
        self._source = source
        self._inner = inner
        self._rng = rng

    async def read(self) -> Sequence[Document]:
        try:
            async with asyncio.timeout(_SOCKET_S):
                documents = await self._inner.read()
        except TimeoutError:
            raise SourceUnavailable("no reply: the member does not reach the position of the find") from None
        if self._source.find_pace_s:
            await asyncio.sleep(self._source.find_pace_s * self._rng.random())
        self._reads_left -= 1
        if self.fault is not None and self._reads_left < 0:
            raise self.fault
        return documents

    async def close(self) -> None:
        self._source._cursors.remove(self)
        await self._inner.close()


class FaultyStream:
    """A stream that can fail at any read, and that may end a batch between a drop and the invalidate behind it."""

    def __init__(self, source: FaultySource, inner: ChangeStream, rng: Random) -> None:
        self.fault: SourceError | None = None
        self.late_until = 0.0
        self._source = source
        self._inner = inner
        self._rng = rng
        self._held: Batch | None = None

    async def read(self) -> Batch:
        if asyncio.get_running_loop().time() < self.late_until:
            await asyncio.sleep(_LATE_READ_S)
            return Batch([])
        held, self._held = self._held, None
        batch = held or await self._inner.read()
        if batch.changes and self._source.pace_s:
            await asyncio.sleep(self._source.pace_s * self._rng.random())
        if self.fault is not None:
            self._source.count(self.fault)
            raise self.fault
        if (
            held is None
            and batch.ended
            and len(batch.changes) > 1
            and self._rng.random() < _CUT_BEFORE_INVALIDATE
        ):
            self._held = Batch(batch.changes[-1:], batch.boundary, batch.ended)
            return Batch(batch.changes[:-1])
        return batch

    async def close(self) -> None:
        self._source.closed(self)
        await self._inner.close()
