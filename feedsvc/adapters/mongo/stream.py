"""One upstream stream: a reader task that never stops in the middle of a read, and the batches it collected.

Cancelling `try_next()` closes a PyMongo stream, so only the reader awaits it. The reader fills a bounded buffer and
pauses when that is full; `read()` takes whatever is there and may be cancelled without loss. `close()` sets a flag
and waits until the bounded await is over; only a server that does not answer is cut off.

Order in the buffer: changes, then at most one idle boundary, then the end or an error. A change that arrives behind
an unread boundary makes it void: the change says more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from feedsvc.adapters.mongo.clients import Upstream
from feedsvc.adapters.mongo.decode import decode
from feedsvc.adapters.mongo.errors import classify
from feedsvc.adapters.mongo.seek import Past, Seek
from feedsvc.adapters.mongo.split import Reassembly
from feedsvc.adapters.mongo.upstream_token import IdleProgress
from feedsvc.core.changes import COLLECTION_GONE_OPERATIONS, Change, ScopeLevel
from feedsvc.core.positions import Position, PositionKind
from feedsvc.ports import Batch, SourceError, SourceUnavailable

BUFFER_CHANGES = 1_000
BUFFER_BYTES = 16 * 1024 * 1024
"""Read ahead of the runtime by no more than this and one event; then stop asking MongoDB."""

_SLICE = 200
"""Buffered events cost no suspension, so the reader lets others run after this many (about 2 ms)."""

_CUT_OFF_S = 1.0


class MongoStream:
    """`ports.ChangeStream` over one change stream of a driver, which it owns.

    `start` is the position that it was opened at. `seek` discards up to the record of a position that was opened by
    time. `reopen` gives the stream after a position; it is needed where that record is the invalidate that ends the
    first stream. `await_s` is the longest time that one `try_next()` takes on a healthy server.
    """

    def __init__(
        self,
        upstream: Upstream,
        level: ScopeLevel,
        start: Position,
        *,
        await_s: float,
        seek: Seek | Past | None = None,
        reopen: Callable[[Position], Awaitable[Upstream]] | None = None,
    ) -> None:
        self._upstream = upstream
        self._level: ScopeLevel = level
        self._await_s = await_s
        self._seek = seek
        self._reopen = reopen
        self._progress = IdleProgress(start)
        self._fragments = Reassembly()
        self._held: tuple[Change, ...] = ()  # a drop whose upstream invalidate is about to follow
        self._last: PositionKind | None = None
        self._changes: list[Change] = []
        self._bytes = 0
        self._idle = False
        self._boundary: Position | None = None
        self._ended = False
        self._error: SourceError | None = None
        self._closing = False
        self._something = asyncio.Event()
        self._room = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="feedsvc-stream-reader")

    async def read(self) -> Batch:
        await self._something.wait()
        if self._closing:
            raise SourceUnavailable("the stream is closed")
        if not self._changes and not self._idle and self._error is not None:
            raise self._error
        batch = Batch(self._changes, self._boundary, self._ended)
        self._changes, self._bytes, self._idle, self._boundary = [], 0, False, None
        self._room.set()
        if not self._ended and self._error is None:
            self._something.clear()
        return batch

    async def close(self) -> None:
        self._closing = True
        self._something.set()
        self._room.set()
        await asyncio.wait({self._task}, timeout=self._await_s + _CUT_OFF_S)
        while not self._task.done():
            # The driver tries to kill the cursor on the way out, which a dead server holds up once more.
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=_CUT_OFF_S)

    async def _run(self) -> None:
        try:
            await self._read_all()
        except Exception as error:
            self._error = classify(error)
        finally:
            if self._error is None and not self._ended:
                self._error = SourceUnavailable("the stream was stopped")
            self._something.set()
            await self._release()

    async def _read_all(self) -> None:
        steps = 0
        loop = asyncio.get_running_loop()
        me = asyncio.current_task()
        assert me is not None
        # The driver may swallow a cancellation (when a loop shuts down it cancels the socket's tasks too, which looks
        # like a network error, and the driver resumes), so ask for it as well.
        while not self._closing and not self._ended and not me.cancelling():
            if len(self._changes) >= BUFFER_CHANGES or self._bytes >= BUFFER_BYTES:
                self._room.clear()
                await self._room.wait()
                continue
            asked_s = loop.time()
            event = await self._upstream.try_next()
            if event is not None:
                whole = self._fragments.whole(event)
                if whole is not None:
                    self._take(decode(whole, self._level))
            elif self._upstream.alive:
                self._take_idle(asked_s, loop.time())
            if not self._upstream.alive:
                await self._take_end()
            steps += 1
            if steps % _SLICE == 0:
                await asyncio.sleep(0)

    def _take(self, changes: tuple[Change, ...]) -> None:
        operation, position = changes[0].operation, changes[0].position
        self._last = position.kind
        self._progress.record(position.cluster_time)
        size = changes[0].size_bytes
        if self._seek is not None:
            changes = self._seek.after(changes)
        if operation in COLLECTION_GONE_OPERATIONS and position.kind is PositionKind.EVENT:
            self._held = changes
            return
        self._append((*self._held, *changes), size)

    def _append(self, changes: tuple[Change, ...], size_bytes: int) -> None:
        self._held = ()
        if not changes:
            return
        self._changes.extend(changes)
        self._bytes += size_bytes
        self._idle, self._boundary = False, None
        self._something.set()

    def _take_idle(self, asked_s: float, now_s: float) -> None:
        if self._fragments.pending:
            # The server answers, but its position is in the middle of an event.
            self._idle = True
            self._something.set()
            return
        self._append(self._held, 0)
        reached = self._progress.idle(self._upstream.resume_token, asked_s, now_s)
        if self._seek is not None and reached is not None:
            self._seek.idle(reached.cluster_time)
            if self._seek.found is None:
                reached = None
        self._idle, self._boundary = True, reached
        self._something.set()

    async def _take_end(self) -> None:
        if self._last is not PositionKind.INVALIDATE:
            raise SourceUnavailable("the server closed the stream")
        found = self._seek.found if self._seek is not None else None
        if found is not None and found.kind is PositionKind.INVALIDATE and self._reopen is not None:
            # The position asked for is the end of this stream: what comes after it is another stream.
            self._seek = None
            await self._upstream.close()
            self._upstream = await self._reopen(found)
            return
        self._ended = True

    async def _release(self) -> None:
        """Kill the cursor, but do not wait long for a server that may be gone."""
        try:
            async with asyncio.timeout(_CUT_OFF_S):
                await self._upstream.close()
        except Exception:
            # The server forgets an idle cursor by itself.
            return
