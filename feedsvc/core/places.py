"""Places: where each subscription of a scope stands, and how it moves on: the moves of `positions.md`.

States of a subscription::

    attach -> LIVE | WAITING | QUEUED | LOST          LIVE:     cursor into the live tail's log
    WAITING --batch--> LIVE | QUEUED | LOST           WAITING:  its cluster time is not complete on the live tail
    QUEUED  --join---> SKIPPING                       QUEUED:   needs a catch-up tail
    SKIPPING -batch--> CATCHING | QUEUED | LOST       SKIPPING: on a catch-up tail, before its position
    CATCHING -pump---> LIVE | WAITING                 CATCHING: cursor into a catch-up tail's log
    CATCHING -aside--> QUEUED | SKIPPING                        (it held up others)
    LIVE    --pump---> QUEUED                         LOST:     owes its client a resync once it can take one
    LOST    --pump---> LIVE | SNAPSHOT                SNAPSHOT: owes its client a snapshot, or is in one
    SNAPSHOT --end---> LIVE | QUEUED | LOST

A chain of classes has them: `Places` here, `FanOutPlaces`, `CheckpointPlaces`, `SnapshotPlaces`. Only `Placement`
calls them, one call at a time. Rules for whoever edits one:

* never keep S from registration (rule 3), never decide by time without `Ring.locate`;
* never write before `writable`, but for `subscribed`, which the number of subscriptions bounds;
* who may write to a socket past its connection: `fan_out`, to those in `Lockstep`. They come by `_fall_in` alone:
  LIVE, gone live, with room and owed nothing. Whatever ends one of these takes them out at once: `_leave` the place,
  `pump` the rest, and the connection itself the room (`Direct.full`), in the middle of a write, too;
* the simulation in `tests/simulation` runs these classes under random schedules: a new move needs a fault there.
"""

from __future__ import annotations

import msgspec

from feedsvc.core.ring import Found, NotFound
from feedsvc.core.subscription import Place, Subscription
from feedsvc.core.tail import LoggedTopic, Tail


class PlacementLimits(msgspec.Struct, frozen=True):
    """Bounds; a tail may pass the first two by one batch. `write_bytes`: frames joined in one write."""

    ring_records: int = 10_000
    log_bytes: int = 64 << 20
    replay_bytes: int = 1 << 30
    write_bytes: int = 64 << 10


class Places:
    """The live tail, the catch-up tails, and every subscription with the topic it holds on the live tail."""

    def __init__(self, limits: PlacementLimits) -> None:
        self.limits = limits
        self.live: Tail | None = None
        self.catch_ups: list[Tail] = []
        self.queue: dict[Subscription, None] = {}
        self.waiting: dict[Subscription, None] = {}
        self.subscriptions: dict[Subscription, LoggedTopic | None] = {}
        self.snapshots: dict[Subscription, None] = {}
        """Those whose snapshot has begun, each with the cursor and the position at which it did."""

    @property
    def _live(self) -> Tail:
        if self.live is None:
            raise RuntimeError("the live tail has not been opened")
        return self.live

    def register(self, subscription: Subscription) -> None:
        if subscription.closed:
            return
        self.subscriptions[subscription] = None
        if self.live is not None:
            self.attach(subscription)

    def attach(self, subscription: Subscription) -> None:
        self.subscriptions[subscription] = self._live.hold(subscription.topic)
        if subscription.reason is not None:
            self.lose(subscription, subscription.reason)
        elif subscription.snapshot == "always":
            subscription.at = None
            self._announce(subscription, resumed=False)
            self._owe_snapshot(subscription)
        elif subscription.at is None:
            self._locate_live(subscription, self._live.ring.head_ordinal)
            subscription.at = self._live.head
            self._announce(subscription, resumed=False)
            self.pump(subscription)
        else:
            self.place(subscription)

    def detach(self, subscription: Subscription) -> None:
        if subscription not in self.subscriptions:
            return
        self._leave(subscription)
        held = self.subscriptions.pop(subscription)
        if held is not None:
            self._live.release(held)
        subscription.place = Place.CLOSED

    def _leave(self, subscription: Subscription) -> None:
        """Take a subscription from wherever it stands; the caller says where it goes."""
        subscription.full()
        self.queue.pop(subscription, None)
        self.waiting.pop(subscription, None)
        self.snapshots.pop(subscription, None)
        tail, logged = subscription.tail, subscription.logged
        subscription.tail = subscription.logged = None
        if tail is None or logged is None:
            return
        tail.skipping.pop(subscription, None)
        logged.readers.pop(subscription, None)
        logged.lockstep.apart.pop(subscription, None)
        if not tail.is_live:
            tail.release(logged)

    def forget(self, tail: Tail) -> None:
        for subscription in list(tail.skipping):
            self._leave(subscription)
        for subscription in list(tail.readers):
            self._leave(subscription)
        if tail in self.catch_ups:
            self.catch_ups.remove(tail)

    def _locate_live(self, subscription: Subscription, ordinal: int) -> None:
        self._leave(subscription)
        logged = self.subscriptions[subscription]
        assert logged is not None
        subscription.place = Place.LIVE
        subscription.tail, subscription.logged = self._live, logged
        subscription.cursor = ordinal
        logged.readers[subscription] = logged.lockstep.apart[subscription] = None

    def _announce(self, subscription: Subscription, *, resumed: bool) -> None:
        if subscription.announced:
            return
        subscription.announced = True
        subscription.replaying = resumed
        subscription.told = subscription.at
        if not subscription.closed:
            subscription.outlet.subscribed(subscription, resumed=resumed, position=subscription.at)

    def place(self, subscription: Subscription) -> None:
        """Find a position on the live tail: there, wait, lost, or a catch-up tail's work."""
        at, logged = subscription.at, self.subscriptions[subscription]
        assert at is not None and logged is not None
        location = self._live.ring.locate(at)
        if isinstance(location, Found) and location.ordinal >= logged.log.start:
            self._locate_live(subscription, location.ordinal)
            self._announce(subscription, resumed=True)
            self.pump(subscription)
        elif location is NotFound.AHEAD:
            self._leave(subscription)
            subscription.place = Place.WAITING
            self.waiting[subscription] = None
        elif location is NotFound.ABSENT:
            self.lose(subscription, self.told_reason(subscription, "token_expired"))
        else:
            self.enqueue(subscription)

    def enqueue(self, subscription: Subscription, *, away_from: Tail | None = None) -> None:
        self._leave(subscription)
        subscription.place = Place.QUEUED
        self.queue[subscription] = None
        for tail in self.catch_ups:
            if tail is not away_from and self.join(tail, subscription):
                return

    def join(self, tail: Tail, subscription: Subscription) -> bool:
        """Rule 6: only if nothing of this topic behind the position was read before its log began."""
        at = subscription.at
        assert at is not None
        location, logged = tail.ring.locate(at), tail.topics.get(subscription.topic)
        if isinstance(location, Found):
            start = tail.ring.head_ordinal if logged is None else logged.log.start
            if location.ordinal < start:
                return False
        elif location is not NotFound.AHEAD:
            return False
        floor = tail.ring.floor
        self._leave(subscription)
        subscription.strict = floor.cluster_time < at.cluster_time or floor.is_boundary
        subscription.place = Place.SKIPPING
        subscription.tail, subscription.logged = tail, tail.hold(subscription.topic)
        tail.skipping[subscription] = None
        self.resolve(tail, subscription)
        # What the tail has read already is owed now: it may be full, and no further batch would pump.
        if subscription.place is Place.CATCHING:
            self.pump(subscription)
        return True

    def resolve(self, tail: Tail, subscription: Subscription) -> None:
        """Whether a catch-up tail has reached the position of one that waits on it."""
        at, logged = subscription.at, subscription.logged
        assert at is not None and logged is not None
        location = tail.ring.locate(at)
        if isinstance(location, Found) and location.ordinal >= logged.log.start:
            del tail.skipping[subscription]
            logged.readers[subscription] = None
            subscription.place = Place.CATCHING
            subscription.cursor = location.ordinal
        elif location is NotFound.AHEAD:
            return
        elif location is NotFound.ABSENT or (location is NotFound.BELOW and subscription.strict):
            self.lose(subscription, self.told_reason(subscription, "token_expired"))
        else:
            self.enqueue(subscription)

    def pump(self, subscription: Subscription) -> None:
        """Write what is owed, as far as the connection takes it: the one function for push and pull."""
        if subscription.place is Place.LOST and not self._resync(subscription):
            return
        subscription.full()  # from here on it stands by itself; `_idle` takes it back
        outlet = subscription.outlet
        while not subscription.closed:
            if subscription.place is Place.CATCHING:
                if self._handover(subscription):
                    continue
                if not subscription.announced:
                    if not self._progressed(subscription):
                        return
                    self._announce(subscription, resumed=True)
            elif subscription.place is not Place.LIVE:
                return
            tail, logged = subscription.tail, subscription.logged
            assert tail is not None and logged is not None
            on_log = subscription.cursor >= logged.log.start
            if not outlet.writable:
                # Off the log it stays, too: a catch-up stream for a reader that takes nothing would only fill up.
                if on_log:
                    self._note_place(subscription, tail, logged)
                return
            if not on_log:
                self.enqueue(subscription)
                return
            if not subscription.went_live and not subscription.replaying:
                self._go_live(subscription)
                continue
            run = logged.log.run(subscription.cursor, self.limits.write_bytes)
            if run is None:
                self._idle(subscription, tail)
                return
            if run.loss is not None:
                self.lose(subscription, run.loss)
                continue
            outlet.frames(run.burst)
            subscription.cursor = run.ordinal
            subscription.at = subscription.told = run.position
            if subscription.place is Place.CATCHING:
                subscription.replayed_bytes += run.burst.size_bytes
                if subscription.replayed_bytes > self.limits.replay_bytes:
                    self.lose(subscription, "replay_too_large")

    def _idle(self, subscription: Subscription, tail: Tail) -> None:
        subscription.cursor = tail.ring.head_ordinal
        subscription.at = tail.head
        if subscription.place is Place.LIVE:
            subscription.replayed_bytes = 0
            if not subscription.went_live:
                self._go_live(subscription)
            self._fall_in(subscription)

    def _fall_in(self, subscription: Subscription) -> None:
        """One that is live and has read its log to the end: from now on with those who stand alike.

        Not if the others are still owed what it has read already, in this step: then the next fan-out does it.
        """
        logged, direct = subscription.logged, subscription.outlet.direct
        if subscription.lockstep is not None or logged is None or direct is None:
            return
        if subscription.closed or not subscription.outlet.writable:
            return
        given = logged.lockstep.given
        if given is None or logged.log.next_ordinal(given.cursor) is None:
            logged.lockstep.join(subscription, direct)

    def _go_live(self, subscription: Subscription) -> None:
        """Once for each `subscribed` and `resync`; where nothing is replayed it comes before the first event."""
        subscription.went_live = True
        subscription.replaying = False
        subscription.outlet.live(subscription)

    def _note_place(self, subscription: Subscription, tail: Tail, logged: LoggedTopic) -> None:
        """The connection is full: note the last position before the first frame that is owed, while the ring has it."""
        owed = logged.log.next_ordinal(subscription.cursor)
        before = tail.ring.head_ordinal if owed is None else owed - 1
        if before > subscription.cursor and before >= tail.ring.floor_ordinal:
            subscription.cursor = before
            subscription.at = tail.head if owed is None else tail.ring.position(before)

    def _progressed(self, subscription: Subscription) -> bool:
        """Rule 8: the upstream has answered past the position."""
        tail, at = subscription.tail, subscription.at
        assert tail is not None and at is not None
        head = tail.head
        return tail.ring.head_ordinal > subscription.cursor or (
            head.is_boundary and head.cluster_time > at.cluster_time
        )

    def _handover(self, subscription: Subscription) -> bool:
        """Move from a catch-up tail to the live log if that skips and repeats nothing; True if it moved."""
        live, catch, logged = self._live, subscription.tail, subscription.logged
        live_logged = self.subscriptions[subscription]
        assert catch is not None and logged is not None and live_logged is not None
        start = max(live_logged.log.start, live.ring.floor_ordinal)
        location = catch.ring.locate(live.ring.position(start))
        if location is NotFound.AHEAD:
            return False
        if isinstance(location, Found) and location.ordinal >= subscription.cursor:
            owed = logged.log.next_ordinal(subscription.cursor)
            if owed is not None and owed <= location.ordinal:
                return False
            self._locate_live(subscription, start)
            self._announce(subscription, resumed=True)
            subscription.at = live.ring.position(start)
            return True
        at = catch.ring.position(subscription.cursor)
        there = live.ring.locate(at)
        if isinstance(there, Found) and there.ordinal >= live_logged.log.start:
            self._locate_live(subscription, there.ordinal)
            self._announce(subscription, resumed=True)
            return True
        if there is NotFound.AHEAD:
            self._leave(subscription)
            subscription.place = Place.WAITING
            self.waiting[subscription] = None
            return True
        return False

    @staticmethod
    def told_reason(subscription: Subscription, reason: str) -> str:
        """What a client that was connected all along is told when neither log nor oplog can serve it."""
        return "overflow" if subscription.announced and reason == "token_expired" else reason

    def lose(self, subscription: Subscription, reason: str) -> None:
        self._leave(subscription)
        subscription.place = Place.LOST
        subscription.reason = reason
        self.pump(subscription)

    def _resync(self, subscription: Subscription) -> bool:
        """Rule 10: written only when the connection can take it. The new place is the live head, or a snapshot."""
        if self.live is None or subscription.closed or not subscription.outlet.writable:
            return False
        if not subscription.announced:
            subscription.at = None
            self._announce(subscription, resumed=False)
        head = self.live.head
        subscription.resyncs += 1
        subscription.outlet.resync(subscription, subscription.reason or "history_lost", head)
        subscription.reason = None
        subscription.at = subscription.told = head
        subscription.went_live = subscription.replaying = False
        subscription.replayed_bytes = 0
        if subscription.takes_snapshots:
            self._owe_snapshot(subscription)
        else:
            self._locate_live(subscription, self.live.ring.head_ordinal)
        return True

    def _owe_snapshot(self, subscription: Subscription) -> None:
        self._leave(subscription)
        subscription.place = Place.SNAPSHOT
        subscription.snapshots_owed += 1
        if not subscription.closed:
            subscription.outlet.snapshot_due(subscription)
