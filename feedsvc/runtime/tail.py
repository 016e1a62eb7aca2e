"""Readers: the tasks that keep the upstream streams of one scope open and feed them into its placement.

One live reader per scope, opened at the current operation time and reopened from its head for ever; catch-up readers
for positions that are older, a few at a time. A read is never cancelled (decision 13): a reader ends when `closing`
is set and its bounded read has returned. Nothing here decides about positions; that is `core.placement`.

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
        try:
            async with asyncio.timeout(seconds):
                await self.closing.wait()
        except TimeoutError:
            return

    async def until_live(self) -> None:
        """Wait while the live tail fails: what fails it fails a catch-up tail too, which could not hand over."""
        while asyncio.get_running_loop().time() < self.live_failed_until and not self.closing.is_set():
            await self.pause(_LIVE_CHECK_S)

    async def wait_changed(self, seconds: float) -> bool:
        """Wait until the placement changed; False after `seconds` without a change."""
        self.changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self.changed.wait()
        except TimeoutError:
            return False
        return True


def _is_gone(change: Change) -> bool:
    return change.operation in COLLECTION_GONE_OPERATIONS


def _named(scope: TailScope, error: Exception) -> dict[str, object]:
    return {"scope": scope, "error": f"{type(error).__name__}: {error}"}


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


class CatchUpReader:
    """Serves one catch-up tail from `start` until nobody is left on it.

    `opened` is called once the stream is open and those it can serve have joined. A reader whose stream fails does not
    try again: it would keep a slot and a log while it waits, and other topics would wait for a fault of this one.
    """

    def __init__(
        self,
        readers: Readers,
        start: Position,
        backoff: Backoff,
        opened: Callable[[], None] = lambda: None,
    ) -> None:
        self._readers = readers
        self._start = start
        self._opened = opened
        self._tail: Tail | None = None
        self._backoff = backoff
        self._doubt = Doubt()

    async def run(self) -> None:
        readers = self._readers
        while not readers.closing.is_set():
            try:
                with readers.tracer.span("feedsvc.catch_up", level=readers.scope.level):
                    if await self._read_on():
                        return
            except PositionLost as error:
                # Not counted: it costs as many opens as there are dead positions, and others must not wait for them.
                await self._give_up(error)
                return
            except EventUnavailable as error:
                if self._doubt.is_new(error, self._start if self._tail is None else self._tail.head):
                    readers.report("catch_up.failed", _named(readers.scope, error))
                    await readers.pause(self._backoff.after(error, readers.clock.monotonic()))
                    continue
                self._backoff.given_up(error)
                await self._give_up(error)
                return
            except SourceError as error:
                readers.report("catch_up.failed", _named(readers.scope, error))
                if self._tail is not None:
                    async with readers.lock:
                        readers.placement.catch_up_failed(self._tail)
                await readers.pause(self._backoff.given_up(error))
                return
            except Exception as error:
                readers.report("catch_up.broken", _named(readers.scope, error))
                self._backoff.given_up(error)
                await self._give_up(error)
                return

    async def _read_on(self) -> bool:
        """Open and read until nobody is left (True) or the stream ended behind an invalidate (False: open again)."""
        readers, placement = self._readers, self._readers.placement
        if self._tail is not None:
            self._start = self._tail.head
        stream = await readers.source.open(readers.scope, self._start)
        opened, answered = readers.clock.monotonic(), False
        readers.metrics.count("catch_ups_opened", level=readers.scope.level)
        try:
            if self._tail is None:
                async with readers.lock:
                    self._tail = placement.catch_up_opened(self._start)
                self._opened()
            tail = self._tail
            while not readers.closing.is_set():
                if placement.close_catch_up(tail):
                    if answered:
                        self._backoff.reset()
                    return True
                if placement.is_full(tail):
                    await self._wait_for_room(tail)
                    continue
                batch = await readers.read(stream)
                answered = True
                self._backoff.healthy(opened, readers.clock.monotonic())
                await readers.step(tail, batch)
                if batch.ended:
                    return False
            return True
        finally:
            await stream.close()

    async def _wait_for_room(self, tail: Tail) -> None:
        """Stop reading until the slowest reader moved; who does not move for too long is closed as slow."""
        readers = self._readers
        before, deadline = tail.slowest_cursor(), readers.clock.monotonic() + readers.slow_after_s
        while readers.placement.is_full(tail) and not readers.closing.is_set():
            left_s = deadline - readers.clock.monotonic()
            if left_s <= 0:
                for subscription in readers.placement.holding_up(tail):
                    subscription.outlet.too_slow(subscription)
                return
            await readers.wait_changed(min(left_s, 1.0))
            if tail.slowest_cursor() != before:
                return

    async def _give_up(self, error: Exception) -> None:
        reason = "token_expired" if isinstance(error, PositionLost) else "event_unavailable"
        history = isinstance(error, PositionLost) and error.history
        readers = self._readers
        readers.metrics.count("catch_up_tails_lost", reason=reason)
        async with readers.lock:
            readers.placement.catch_up_lost(self._start, self._tail, reason, history=history)
        if history:
            await self._give_up_older(reason)

    async def _give_up_older(self, reason: str) -> None:
        """All that the oplog does not reach any more is lost, or each position would cost an open to find that out."""
        readers = self._readers
        try:
            window = await readers.source.oplog_window()
        except SourceError:
            return
        if window is not None:
            async with readers.lock:
                readers.placement.catch_up_lost(boundary(window.first - 1), None, reason, history=True)
