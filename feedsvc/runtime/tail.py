"""Readers: the tasks that keep the upstream streams of one scope open and feed them into its placement.

One live reader per scope, opened at the current operation time and reopened from its head for ever; catch-up readers
(`catch_up_reader.py`) for positions that are older, a few at a time. A read is never cancelled (decision 13): a reader
ends when `closing` is set and its bounded read has returned. Nothing here decides about positions; that is
`core.placement`.

What can fail, and what follows:

=====================  ==========================================  ==============================================
raised by the source   live tail                                   catch-up tail
=====================  ==========================================  ==============================================
SourceUnavailable      reopen after the head                       its subscriptions queue again
PositionLost           reopen at now, located are lost (rule 4)    rule 13: lost, or queued again
EventUnavailable       as PositionLost: `event_unavailable`        the same
SourceRefused          reopen after the head                       its subscriptions queue again
anything else          logged; reopen at now                       logged; its subscriptions are lost
=====================  ==========================================  ==============================================

Each of them is followed by a wait (`runtime.backoff`): one series for the live tail, one for all catch-up tails of the
scope. A position that is lost is never opened again, and the readers are the only ones that resume anything: the
driver's own attempts are switched off.

An event that came and could not be read (`EventUnavailable` without a code: the server has not refused it) is asked
for once more, after the same wait, before it counts as unavailable: a reply may have been spoilt on its way.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping

import msgspec

from feedsvc.core.changes import COLLECTION_GONE_OPERATIONS, Change, TailScope
from feedsvc.core.placement import Placement, Reached
from feedsvc.core.positions import Position, boundary
from feedsvc.core.tail import Tail
from feedsvc.ports import (
    NO_TRACER,
    Batch,
    ChangeSource,
    ChangeStream,
    Clock,
    EventUnavailable,
    Metrics,
    PositionLost,
    SourceError,
    Tracer,
)
from feedsvc.runtime.backoff import Backoff
from feedsvc.runtime.set_within import set_within

SLICE_S = 0.005
"""How long one step may hold the event loop before it lets others run."""

_LIVE_CHECK_S = 0.1
_PROVEN_S = 0.25
_PROVEN_AGAIN_S = 1.0
"""A live stream that has not failed for so long after its opening is believed; it takes more where one failed before:
a read may wait half a second for the driver to look at the server again."""

Report = Callable[[str, Mapping[str, object]], None]
"""Takes a stable event name and its fields; the composition root turns it into a log line."""


class ReaderHealth(msgspec.Struct):
    """What is known of one reader. Times are monotonic seconds; `moved` is when its tail's head last did; `caught_up`:
    the last read found nothing more."""

    last_read: float
    moved: float
    caught_up: bool = True
    error: str | None = None


class Readers:
    """What all readers of one scope share: the source, the placement and the lock of its steps (rule 11)."""

    def __init__(
        self,
        scope: TailScope,
        source: ChangeSource,
        placement: Placement,
        clock: Clock,
        metrics: Metrics,
        report: Report,
        random: Callable[[], float],
        slow_after_s: float,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self.scope = scope
        self.source = source
        self.placement = placement
        self.clock = clock
        self.metrics = metrics
        self.report = report
        self.random = random
        self.slow_after_s = slow_after_s
        self.tracer = tracer
        self.closing = asyncio.Event()
        self.changed = asyncio.Event()
        self.live_failed_until = 0.0
        """In seconds of the loop: the live tail does not read until then, as far as its reader knows."""
        self.lock = asyncio.Lock()
        """Held for every step, and to change which tails there are."""

    async def step(self, tail: Tail, batch: Batch) -> None:
        """Feed one batch, in slices; everything else on this placement is deferred to its end."""
        now, metrics = self.clock.monotonic, self.metrics
        arrived, worked_s, match_s = now(), 0.0, 0.0
        async with self.lock:
            started = now()
            for reached in self.placement.batch(tail, batch.changes, batch.boundary):
                slice_s = now() - started
                if reached is Reached.MATCHED:
                    match_s = worked_s + slice_s
                if slice_s > SLICE_S:
                    worked_s += slice_s
                    await asyncio.sleep(0)
                    started = now()
            ended = now()
        if batch.changes:
            kind = "live" if tail.is_live else "catch_up"
            metrics.count("changes_read", len(batch.changes), level=self.scope.level)
            metrics.observe("match_seconds", match_s, tail=kind)
            metrics.observe("pump_seconds", worked_s + ended - started - match_s, tail=kind)
            metrics.observe("pump_delay_seconds", ended - arrived, tail=kind)
        frames, size_bytes = self.placement.take_direct()
        if frames:
            metrics.count("frames_sent", frames)
            metrics.count("bytes_sent", size_bytes)

    async def read(self, stream: ChangeStream) -> Batch:
        """One batch; at scope `collection` a drop or rename never comes without the invalidate behind it."""
        batch = await stream.read()
        while (
            self.scope.level == "collection"
            and batch.changes
            and not batch.ended
            and _is_gone(batch.changes[-1])
        ):
            if self.closing.is_set():
                return Batch(batch.changes[:-1])
            more = await stream.read()
            batch = Batch(batch.changes + more.changes, more.boundary, more.ended)
        return batch

    async def pause(self, seconds: float) -> None:
        """Wait, but no longer than until closing."""
        await set_within(self.closing, seconds)

    async def until_live(self) -> None:
        """Wait while the live tail fails: what fails it fails a catch-up tail too, which could not hand over."""
        while asyncio.get_running_loop().time() < self.live_failed_until and not self.closing.is_set():
            await self.pause(_LIVE_CHECK_S)

    async def wait_changed(self, seconds: float) -> bool:
        """Wait until the placement changed; False after `seconds` without a change."""
        self.changed.clear()
        return await set_within(self.changed, seconds)


def _is_gone(change: Change) -> bool:
    return change.operation in COLLECTION_GONE_OPERATIONS


class Doubt:
    """Which event could not be read the last time, named by the position before it."""

    def __init__(self) -> None:
        self._before: Position | None = None

    def is_new(self, error: Exception, before: Position) -> bool:
        """Whether to ask once more for what follows `before`."""
        if not isinstance(error, EventUnavailable) or error.code is not None or before == self._before:
            return False
        self._before = before
        return True


class LiveReader:
    """Keeps the live tail of a scope open. `health` is what heartbeats and readiness are made from."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._backoff = Backoff(readers.random)
        self._lost: str | None = None
        self._doubt = Doubt()
        now = readers.clock.monotonic()
        self.health = ReaderHealth(last_read=now, moved=now)

    async def run(self) -> None:
        """Until closing. Never raises but for cancellation of the whole process."""
        readers = self._readers
        while not readers.closing.is_set():
            try:
                await self._read_on()
            except Exception as error:
                tail = readers.placement.live
                if tail is not None and self._doubt.is_new(error, tail.head):
                    pass
                elif isinstance(error, EventUnavailable):
                    self._lost = "event_unavailable"
                elif isinstance(error, PositionLost) or not isinstance(error, SourceError):
                    self._lost = "history_lost"
                self._note(error)
                await readers.pause(self._backoff.after(error, readers.clock.monotonic()))

    async def _read_on(self) -> None:
        """Open where the tail stands and read until the stream ends or fails."""
        readers, health = self._readers, self.health
        stream, tail = await self._open()
        opened = readers.clock.monotonic()
        readers.live_failed_until = asyncio.get_running_loop().time() + (
            _PROVEN_AGAIN_S if readers.live_failed_until == math.inf else _PROVEN_S
        )
        try:
            while not readers.closing.is_set():
                batch = await readers.read(stream)
                now = health.last_read = readers.clock.monotonic()
                health.caught_up = batch.boundary is not None or not batch.changes
                health.error = None
                self._backoff.healthy(opened, now)
                before = tail.head
                await readers.step(tail, batch)
                if tail.head is not before:
                    health.moved = now
                if batch.ended:
                    return
        except Exception:
            # At once: closing says goodbye to a server that may not answer.
            readers.live_failed_until = math.inf
            raise
        finally:
            await stream.close()

    async def _open(self) -> tuple[ChangeStream, Tail]:
        readers, placement = self._readers, self._readers.placement
        tail = placement.live
        if tail is not None and self._lost is None:
            return await readers.source.open(readers.scope, tail.head), tail
        start = boundary(await readers.source.operation_time())
        stream = await readers.source.open(readers.scope, start)
        async with readers.lock:
            if tail is None:
                placement.live_opened(start)
            else:
                placement.live_lost(start, self._lost or "history_lost")
                readers.metrics.count("live_tails_lost")
        self._lost = None
        self.health.moved = readers.clock.monotonic()
        tail = placement.live
        assert tail is not None
        return stream, tail

    def _note(self, error: Exception) -> None:
        name = f"{type(error).__name__}: {error}"
        if self.health.error != name:
            self._readers.report(
                "tail.failed", {"scope": self._readers.scope, "error": name, "lost": self._lost}
            )
        self.health.error = name
        self._readers.live_failed_until = math.inf
        self._readers.metrics.count("tail_errors", kind=type(error).__name__)
