"""A feed: everything about one scope at run time: its placement, its live reader and its catch-up readers.

A feed lives as long as it has subscriptions, and a while longer (`tail_linger_s`), so that a client that reconnects
finds the live ring. Catch-up slots are shared by all feeds of the process.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from functools import partial
from typing import Any

from feedsvc.core.limits import Limits
from feedsvc.core.placement import Placement
from feedsvc.core.positions import Position
from feedsvc.core.subscription import Subscription
from feedsvc.runtime.backoff import Backoff
from feedsvc.runtime.catch_up_reader import CatchUpReader
from feedsvc.runtime.catch_up_slots import CatchUpSlots
from feedsvc.runtime.pulse import Pulse
from feedsvc.runtime.tail import LiveReader, Readers

_LAG_KEPT_S = 0.1


class Feed:
    def __init__(
        self,
        readers: Readers,
        slots: CatchUpSlots,
        limits: Limits,
    ) -> None:
        self.readers = readers
        self.placement: Placement = readers.placement
        self.live = LiveReader(readers)
        self.opened = asyncio.Event()
        """The live tail has been opened once, so that subscriptions can be answered."""
        self.idle_since: float | None = readers.clock.monotonic()
        self._slots = slots
        self._limits = limits
        self._tenant = readers.scope.database
        self._lag = (-math.inf, 0)
        self._backoff = Backoff(readers.random)
        self._tasks: set[asyncio.Task[None]] = set()
        self._opener: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._spawn(self.live.run(), "live")

    def attach(self, subscription: Subscription) -> None:
        self.idle_since = None  # at once: the placement may put the subscription off to the end of a step
        self.placement.attach(subscription)

    def detach(self, subscription: Subscription) -> None:
        self.placement.detach(subscription)

    def changed(self) -> None:
        """The placement changed: there may be a catch-up tail to open, to close or to read on."""
        self.readers.changed.set()
        if self.placement.live is not None:
            self.opened.set()
        if self.placement.subscriptions:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = self.readers.clock.monotonic()
        if (
            self._opener is None
            and not self.readers.closing.is_set()
            and self.placement.next_opening() is not None
        ):
            self._opener = self._spawn(self._open_catch_ups(), "opener")

    def idle_s(self, now: float) -> float:
        """Seconds without a subscription."""
        return 0.0 if self.idle_since is None else now - self.idle_since

    def silent(self, now: float, stall_after_s: float) -> bool:
        """Whether the upstream has not answered for too long, or has never answered."""
        return now - self.live.health.last_read > stall_after_s

    def frozen(self, now: float, stall_after_s: float, pulse: Pulse) -> bool:
        """Whether the upstream answers, but stands before an entry that was known `stall_after_s` ago already: its
        member is cut off, or the majority point does not move. A reader that is behind and moves is not frozen."""
        live, after_s = self.placement.live, max(stall_after_s, pulse.settles_s)
        if live is None or now - self.live.health.moved < after_s:
            return False
        entry = pulse.known_at(now - after_s)
        return entry is not None and live.head.cluster_time < entry

    def lag_s(self) -> float:
        """How far the live tail is behind, in seconds: the age of its head, or of its last answer when idle."""
        clock, health, live = self.readers.clock, self.live.health, self.placement.live
        if live is None or health.caught_up:
            return max(0.0, clock.monotonic() - health.last_read)
        return max(0.0, clock.wall() - (live.head.cluster_time >> 32))

    def lag_ms(self, now: float) -> int:
        """The same in ms, as it was a moment ago: many clients are told it in one round."""
        if now - self._lag[0] > _LAG_KEPT_S:
            self._lag = (now, int(self.lag_s() * 1000))
        return self._lag[1]

    async def close(self) -> None:
        """Let every reader end after its bounded read. Subscriptions are not told."""
        self.readers.closing.set()
        self.readers.changed.set()
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _open_catch_ups(self) -> None:
        """Open catch-up tails until nobody is queued. Positions that ask together share one."""
        readers = self.readers
        try:
            while not readers.closing.is_set() and self.placement.next_opening() is not None:
                await self._gather()
                await readers.pause(self._backoff.first_s(readers.clock.monotonic()))
                await readers.until_live()
                await self._slots.acquire(self._tenant)
                start = self.placement.next_opening()
                if start is None or readers.closing.is_set():
                    self._slots.release(self._tenant)
                    continue
                opened = asyncio.Event()
                self._spawn(self._catch_up(start, opened), "catch-up")
                await opened.wait()
        finally:
            self._opener = None

    async def _gather(self) -> None:
        """Wait for those that ask at the same time. One client waits for a window. In a storm, where the queue has
        grown by half within the last window, the next one is twice as long: whoever comes later with an older position
        needs another tail."""
        window_s, left_s = self._limits.catch_up_window_s, self._limits.catch_up_gather_s
        queued = 0
        while left_s > 0 and self.placement.queued > queued * 1.5:
            queued = self.placement.queued
            await self.readers.pause(min(window_s, left_s))
            left_s -= window_s
            window_s *= 2

    async def _catch_up(self, start: Position, opened: asyncio.Event) -> None:
        """One catch-up tail in one slot. `opened` is set once those it serves have left the queue, or it ended."""
        wanted = partial(self._slots.wanted, self._tenant)
        reader = CatchUpReader(self.readers, start, self._backoff, self._limits, opened.set, wanted)
        try:
            await reader.run()
        finally:
            self._slots.release(self._tenant)
            opened.set()

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(coroutine, name=f"feed-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
