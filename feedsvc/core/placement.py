"""Placement: all subscriptions of one scope, driven from outside, one step at a time.

This is `positions.md` as code: `places.py` and the classes that extend it have the moves, this module the steps. It
needs no event loop: the runtime opens streams, feeds what they return into `batch`, and says when a connection can
take more. What a client sees goes through the `Outlet` of its connection.

Rule 11 for whoever edits this: `batch` is a generator; it yields where the runtime may let others run, and every other
call that comes meanwhile is deferred to its end. Only `detach` acts at once, in that nothing more is written.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence

from feedsvc.core.changes import Change
from feedsvc.core.lockstep import WriteEach
from feedsvc.core.places import PlacementLimits
from feedsvc.core.positions import Position
from feedsvc.core.snapshot_places import SnapshotPlaces
from feedsvc.core.subscription import Place, Subscription
from feedsvc.core.tail import Build, EveryTopic, LoggedTopic, Router, Tail


class NotNow(enum.Enum):
    NOT_NOW = "not now"
    """A step is under way, or something is owed first."""


class Reached(enum.Enum):
    """How far a step has come."""

    MATCHED = "matched"
    """Everything is in the logs; what follows is written to connections."""


class Placement:
    """All subscriptions of one scope. `build` makes the frames of a change, `router` finds whom it may concern; see
    `core.tail`. `write_each` writes to the descriptors of the outlets."""

    def __init__(
        self,
        limits: PlacementLimits,
        build: Build,
        write_each: WriteEach,
        router: Callable[[], Router] = EveryTopic,
    ) -> None:
        self._places = SnapshotPlaces(limits, write_each)
        self._build = build
        self._router = router
        self._changed: Callable[[], None] = lambda: None
        self._busy = False
        self._deferred: list[Callable[[], None]] = []

    @property
    def live(self) -> Tail | None:
        return self._places.live

    @property
    def catch_ups(self) -> Sequence[Tail]:
        return self._places.catch_ups

    @property
    def subscriptions(self) -> int:
        return len(self._places.subscriptions)

    def all_subscriptions(self) -> list[Subscription]:
        return list(self._places.subscriptions)

    def on_change(self, changed: Callable[[], None]) -> None:
        """Run `changed` after every call that may have work for the runtime: a catch-up tail to open
        (`next_opening`), to close (`close_catch_up`) or to read on (`is_full`)."""
        self._changed = changed

    def live_opened(self, start: Position) -> None:
        """The live tail's first opening, at the current operation time (rule 5)."""

        def act() -> None:
            self._places.live = Tail(start, self._build, live=True, router=self._router)
            for subscription in list(self._places.subscriptions):
                self._places.attach(subscription)

        self._do(act)

    def attach(self, subscription: Subscription) -> None:
        """Take in a new subscription: fresh where it has no position, lost where it came with a reason."""
        self._do(lambda: self._places.register(subscription))

    def detach(self, subscription: Subscription) -> None:
        """Forget a subscription. Nothing is written for it from now on."""
        subscription.closed = True
        subscription.full()
        self._do(lambda: self._places.detach(subscription))

    def writable(self, subscription: Subscription) -> None:
        """Its connection can take more: continue from the cursor.

        What nobody needs any more is trimmed by the next batch, or by `is_full`: to find the slowest is a look at all.
        """
        self._do(lambda: self._places.pump(subscription))

    def checkpoint(self, subscription: Subscription, tell: Callable[[Subscription, Position], None]) -> None:
        """Call `tell` with the tail's head if nothing before it is owed to this client and it was not told yet; now, or
        behind the step that is under way."""

        def act() -> None:
            position = self._places.checkpoint(subscription)
            if position is not None:
                tell(subscription, position)

        self._do(act)

    def checkpoint_now(self, subscription: Subscription) -> Position | NotNow | None:
        """The same for one that is idle, as most are: the head, which it counts as told, or None where it was told
        already. `NOT_NOW`: nothing happened, ask `checkpoint`."""
        if self._busy or not self._places.is_quiet(subscription):
            return NotNow.NOT_NOW
        return self._places.note_head(subscription)

    def between_steps(self, act: Callable[[], None]) -> None:
        """Run `act` now, or behind the step that is under way and what was put off before."""
        self._do(act)

    def batch(
        self, tail: Tail, changes: Sequence[Change], boundary: Position | None
    ) -> Iterator[Reached | None]:
        """One step of a tail: append all, resolve waiters, pump all, trim last (rule 11).

        Exhaust it, with nothing but yields to the event loop in between. Raises `OrderError` from `Tail.append`.
        """
        if self._busy:
            raise RuntimeError("a step is under way on this placement")
        self._busy = True
        places = self._places
        try:
            touched: dict[LoggedTopic, None] = {}
            for change in changes:
                yield from tail.append(change, touched)
                yield None
            yield Reached.MATCHED
            if boundary is not None:
                tail.ring.advance(boundary)
            if tail.is_live:
                places.check_snapshots()
                for subscription in list(places.waiting):
                    places.place(subscription)
                # Not behind the last: a step that is over has no more turns to give.
                for logged in touched:
                    yield None
                    yield from places.fan_out(tail, logged)
            else:
                for subscription in list(tail.skipping):
                    places.resolve(tail, subscription)
                for reader in list(tail.readers):
                    places.pump(reader)
                    yield None
            self._trim(tail)
        finally:
            self._finish()

    def take_direct(self) -> tuple[int, int]:
        """Frames and bytes that went to sockets past their connections since the last call."""
        places = self._places
        taken = places.direct_frames, places.direct_bytes
        places.direct_frames = places.direct_bytes = 0
        return taken

    def live_lost(self, start: Position, reason: str) -> None:
        """The live tail lost its place and was opened again at now (rule 4)."""

        def act() -> None:
            live = self._places.live
            if live is None:
                raise RuntimeError("the live tail has not been opened")
            lost = [*live.readers, *self._places.snapshots]
            live.restart(start)
            for subscription in lost:
                self._places.lose(subscription, reason)
            for subscription in list(self._places.waiting):
                self._places.place(subscription)

        self._do(act)

    def begin_snapshot(self, subscription: Subscription) -> Position | None:
        """The position of a snapshot, fixed before its `find`; None where none is owed any more (look again when
        `snapshot_due` says so). Not while a step is under way."""
        if self._busy:
            raise RuntimeError("a step is under way on this placement")
        return self._places.begin_snapshot(subscription)

    def end_snapshot(self, subscription: Subscription) -> bool:
        """Tell the end of a snapshot and go on behind its position. False where the connection is full, or the
        snapshot was abandoned. Not while a step is under way."""
        if self._busy:
            raise RuntimeError("a step is under way on this placement")
        ended = False

        def act() -> None:
            nonlocal ended
            ended = self._places.end_snapshot(subscription)

        self._do(act)
        return ended

    @property
    def queued(self) -> int:
        """How many subscriptions wait for a catch-up tail."""
        return len(self._places.queue)

    def next_opening(self) -> Position | None:
        """Where the next catch-up tail opens: the least of the queue, a boundary first (rule 7)."""
        positions = [waiting.at for waiting in self._places.queue if waiting.at is not None]
        return min(positions, key=lambda at: (at.cluster_time, not at.is_boundary), default=None)

    def catch_up_opened(self, start: Position) -> Tail:
        """A stream was opened at `start`: all that are queued try to join it."""
        tail = Tail(start, self._build, live=False, router=self._router)

        def act() -> None:
            self._places.catch_ups.append(tail)
            for subscription in list(self._places.queue):
                self._places.join(tail, subscription)

        self._do(act)
        return tail

    def catch_up_lost(self, start: Position, tail: Tail | None, reason: str, *, history: bool) -> None:
        """A catch-up tail failed for good, or could not be opened at `start` (rule 13).

        `history`: the oplog no longer reaches `start` (286), so it reaches nothing at or before its time either.
        """
        places = self._places

        def act() -> None:
            concerned = list(places.queue)
            if tail is not None:
                concerned = list(tail.skipping)
                located = list(tail.readers)
                places.forget(tail)
                for subscription in located:
                    places.lose(subscription, places.told_reason(subscription, reason))
            for subscription in concerned:
                at = subscription.at
                if at is not None and (
                    at.same_as(start) or (history and at.cluster_time <= start.cluster_time)
                ):
                    places.lose(subscription, places.told_reason(subscription, reason))
                elif tail is not None:
                    places.enqueue(subscription)

        self._do(act)

    def catch_up_failed(self, tail: Tail) -> None:
        """A catch-up tail whose stream broke: nothing is lost, and nothing is kept while the next attempt has to wait.
        Those on it queue again from where they stand, as if they had fallen off a log."""
        places = self._places

        def act() -> None:
            concerned = [*tail.skipping, *tail.readers]
            places.forget(tail)
            for subscription in concerned:
                places.enqueue(subscription)

        self._do(act)

    def close_catch_up(self, tail: Tail) -> bool:
        """Forget a catch-up tail if no subscription is left on it; False if it must stay for now."""
        if self._busy or tail.topics:
            return False
        self._places.forget(tail)
        return True

    def is_full(self, tail: Tail) -> bool:
        """Whether a catch-up tail must not read on (rule 12). What nobody needs any more is trimmed first: who held the
        tail up may have left it."""
        limits = self._places.limits
        if tail.is_live or not tail.over(limits.ring_records, limits.log_bytes):
            return False
        self._trim(tail)
        return tail.over(limits.ring_records, limits.log_bytes)

    def holding_up(self, tail: Tail) -> list[Subscription]:
        """The located subscriptions that keep a full catch-up tail from reading on."""
        slowest = tail.slowest_cursor()
        return [
            reader for reader in tail.readers if reader.place is Place.CATCHING and reader.cursor == slowest
        ]

    def others_starve(self, tail: Tail) -> bool:
        """Whether somebody on a full catch-up tail is owed nothing of what it has read, and waits for more."""
        return bool(tail.skipping) or any(
            reader.place is Place.CATCHING
            and reader.logged is not None
            and reader.logged.log.next_ordinal(reader.cursor) is None
            for reader in tail.readers
        )

    def step_aside(self, tail: Tail) -> None:
        """Those in the older half of what a full catch-up tail keeps queue again, for another one: it can read on."""
        places = self._places

        def act() -> None:
            slowest = tail.slowest_cursor()
            if slowest is None:
                return
            middle = (slowest + tail.ring.head_ordinal) // 2
            behind = [
                reader
                for reader in tail.readers
                if reader.place is Place.CATCHING and reader.cursor <= middle
            ]
            for subscription in behind:
                places.enqueue(subscription, away_from=tail)
            self._trim(tail)

        self._do(act)

    def _trim(self, tail: Tail) -> None:
        tail.trim(self._places.limits.ring_records, self._places.limits.log_bytes)

    def _do(self, act: Callable[[], None]) -> None:
        if self._busy:
            self._deferred.append(act)
            return
        self._busy = True
        try:
            act()
        finally:
            self._finish()

    def _finish(self) -> None:
        try:
            while self._deferred:
                self._deferred.pop(0)()
        finally:
            self._busy = False
            self._changed()
