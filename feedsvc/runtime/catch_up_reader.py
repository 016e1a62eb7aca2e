"""The reader of one catch-up tail: what `tail.py` has for the live one, for as long as somebody needs it.

It ends by itself: once nobody is left on its tail, or when its stream fails. What each failure means is in the table of
`tail.py`. A tail that is full is not read on until its slowest reader has moved (rule 12). A reader may be slow without
being stuck: where others wait for it, on its tail or for the slot, it steps aside and queues for another tail.
"""

from __future__ import annotations

from collections.abc import Callable

from feedsvc.core.changes import TailScope
from feedsvc.core.limits import Limits
from feedsvc.core.positions import Position, boundary
from feedsvc.core.tail import Tail
from feedsvc.ports import EventUnavailable, PositionLost, SourceError
from feedsvc.runtime.backoff import Backoff
from feedsvc.runtime.tail import Doubt, Readers

_AWAIT_S = 0.25
"""Whoever resumes into quiet waits for answers without changes, of which a confirmed boundary may take four."""


class CatchUpReader:
    """Serves one catch-up tail from `start` until nobody is left on it.

    `opened` is called once the stream is open and those it can serve have joined; `wanted` says whether somebody waits
    for a slot. A reader whose stream fails does not try again: it would keep a slot and a log while it waits, and other
    topics would wait for a fault of this one.
    """

    def __init__(
        self,
        readers: Readers,
        start: Position,
        backoff: Backoff,
        limits: Limits,
        opened: Callable[[], None],
        wanted: Callable[[], bool],
    ) -> None:
        self._readers = readers
        self._start = start
        self._limits = limits
        self._opened = opened
        self._wanted = wanted
        self._starved_s = self._wanted_s = 0.0
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
        stream = await readers.source.open(readers.scope, self._start, await_s=_AWAIT_S)
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
            asked = readers.clock.monotonic()
            await readers.wait_changed(min(left_s, 1.0))
            await self._part(tail, readers.clock.monotonic() - asked)
            if tail.slowest_cursor() != before:
                return

    async def _part(self, tail: Tail, waited_s: float) -> None:
        """Note for whom the tail was held up once more, and part with those who do it once that is too long."""
        readers = self._readers
        if readers.placement.others_starve(tail):
            self._starved_s += waited_s
        elif self._wanted():
            self._wanted_s += waited_s
        limits = self._limits
        if self._starved_s >= limits.step_aside_after_s or self._wanted_s >= limits.catch_up_turn_s:
            self._starved_s = self._wanted_s = 0.0
            async with readers.lock:
                readers.placement.step_aside(tail)

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


def _named(scope: TailScope, error: Exception) -> dict[str, object]:
    return {"scope": scope, "error": f"{type(error).__name__}: {error}"}
