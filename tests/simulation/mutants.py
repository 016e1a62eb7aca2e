"""The mistakes that positions.md lists, and some more, each put into the real classes. The simulation must notice
all of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import pytest

from feedsvc.core.burst import Burst
from feedsvc.core.changes import Change, TailScope
from feedsvc.core.checkpoint_places import CheckpointPlaces
from feedsvc.core.lockstep import Given, Lockstep, WriteEach
from feedsvc.core.placement import Placement, Reached
from feedsvc.core.places import Places
from feedsvc.core.positions import Position, PositionKind
from feedsvc.core.ring import Found, Location, NotFound, Ring
from feedsvc.core.snapshot_places import SnapshotPlaces
from feedsvc.core.subscription import Place, Subscription
from feedsvc.core.tail import LoggedTopic, Tail
from feedsvc.core.topics import Topic
from feedsvc.ports import PositionLost
from feedsvc.runtime.beats import Beats
from feedsvc.runtime.held import Held
from feedsvc.runtime.snapshot import Snapshots
from feedsvc.testing import MemorySource, MemoryStream

Mutant = Callable[[pytest.MonkeyPatch], None]


def _attach_instead(
    patch: pytest.MonkeyPatch, where: Callable[[Places, Subscription, Location], int | None]
) -> None:
    """Attach a placed subscription at the ordinal that `where` gives, if any."""
    real = Places.place

    def place(self: Places, subscription: Subscription) -> None:
        assert subscription.at is not None
        ordinal = where(self, subscription, self._live.ring.locate(subscription.at))
        if ordinal is None:
            real(self, subscription)
            return
        self._locate_live(subscription, ordinal)
        self._announce(subscription, resumed=True)
        self.pump(subscription)

    patch.setattr(Places, "place", place)


def checkpoint_ahead_of_the_cursor(patch: pytest.MonkeyPatch) -> None:
    def checkpoint(self: CheckpointPlaces, subscription: Subscription) -> Position | None:
        tail = subscription.tail
        return tail.head if subscription.announced and subscription.located and tail is not None else None

    patch.setattr(CheckpointPlaces, "checkpoint", checkpoint)


def checkpoint_before_routing(patch: pytest.MonkeyPatch) -> None:
    """The head is the batch's last record while its frames are not in the logs yet, and a checkpoint is due."""
    real = Placement.batch

    def batch(
        self: Placement, tail: Tail, changes: Sequence[Change], boundary: Position | None
    ) -> Iterator[Reached | None]:
        if changes:
            head, tail.ring.head = tail.ring.head, changes[-1].position
            for subscription in self.all_subscriptions():
                outlet: Any = subscription.outlet
                self.checkpoint(subscription, outlet.checkpoint)
            tail.ring.head = head
        yield from real(self, tail, changes, boundary)

    patch.setattr(Placement, "batch", batch)


def attach_at_the_live_head(patch: pytest.MonkeyPatch) -> None:
    _attach_instead(
        patch,
        lambda places, _, found: places._live.ring.head_ordinal if isinstance(found, Found) else None,
    )


def attach_at_the_start_of_the_log(patch: pytest.MonkeyPatch) -> None:
    def where(places: Places, subscription: Subscription, found: Location) -> int | None:
        logged = places.subscriptions[subscription]
        assert logged is not None
        return logged.log.start if isinstance(found, Found) and found.ordinal >= logged.log.start else None

    _attach_instead(patch, where)


def boundary_taken_as_exclusive(patch: pytest.MonkeyPatch) -> None:
    real = Ring.locate

    def locate(self: Ring, position: Position) -> Location:
        found = real(self, position)
        if not position.is_boundary or not isinstance(found, Found):
            return found
        index = bisect_right(self._times, position.cluster_time, self._first)
        return Found(self.floor_ordinal + index - self._first)

    patch.setattr(Ring, "locate", locate)


def reopen_at_now_in_silence(patch: pytest.MonkeyPatch) -> None:
    def live_lost(self: Placement, start: Position, reason: str) -> None:
        live = self.live
        assert live is not None
        live.restart(start)
        for logged in live.topics.values():
            for reader in logged.readers:
                reader.cursor, reader.at = 0, start

    patch.setattr(Placement, "live_lost", live_lost)


def lagging_instance_attaches_at_its_head(patch: pytest.MonkeyPatch) -> None:
    _attach_instead(
        patch,
        lambda places, _, found: places._live.ring.head_ordinal if found is NotFound.AHEAD else None,
    )


def late_hand_over_at_s(patch: pytest.MonkeyPatch) -> None:
    """The catch-up tail has read past S, and the subscription moves to S all the same."""
    real = Places._handover

    def handover(self: Places, subscription: Subscription) -> bool:
        live, catch, logged = self._live, subscription.tail, self.subscriptions[subscription]
        assert catch is not None and logged is not None
        start = max(logged.log.start, live.ring.floor_ordinal)
        if not isinstance(catch.ring.locate(live.ring.position(start)), Found):
            return real(self, subscription)
        self._locate_live(subscription, start)
        self._announce(subscription, resumed=True)
        return True

    patch.setattr(Places, "_handover", handover)


def continue_from_the_start_of_the_log(patch: pytest.MonkeyPatch) -> None:
    """Who fell off the log goes on with what is left of it."""
    real = Places.pump

    def pump(self: Places, subscription: Subscription) -> None:
        if subscription.place is Place.LIVE and subscription.logged is not None:
            subscription.cursor = max(subscription.cursor, subscription.logged.log.start)
        real(self, subscription)

    patch.setattr(Places, "pump", pump)


def resume_after_an_invalidate(patch: pytest.MonkeyPatch) -> None:
    """MongoDB refuses `resumeAfter` with the token of an invalidate; `startAfter` takes it."""
    real = MemorySource.open_now

    def open_now(self: MemorySource, scope: TailScope, position: Position) -> MemoryStream:
        if position.kind is PositionKind.INVALIDATE and position.data is not None:
            raise PositionLost("Attempting to resume a change stream from an invalidate", 260)
        return real(self, scope, position)

    patch.setattr(MemorySource, "open_now", open_now)


def waiters_resolved_by_time(patch: pytest.MonkeyPatch) -> None:
    def where(places: Places, subscription: Subscription, found: Location) -> int | None:
        assert subscription.at is not None
        ring = places._live.ring
        by_time = found is NotFound.AHEAD and ring.head.cluster_time >= subscription.at.cluster_time
        return ring.head_ordinal if by_time else None

    _attach_instead(patch, where)


def ring_keyed_by_token_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Position, "key", property(lambda self: self.digest))


def locate_among_matched_records_only(patch: pytest.MonkeyPatch) -> None:
    real = Tail.append

    def append(self: Tail, change: Change, touched: dict[LoggedTopic, None]) -> Iterator[None]:
        if any(self._route(change)):
            yield from real(self, change, touched)
        elif change.position.cluster_time >= self.ring.head.cluster_time:
            self.ring.head = change.position

    patch.setattr(Tail, "append", append)


def boundary_found_at_a_floor_of_its_time(patch: pytest.MonkeyPatch) -> None:
    """Rule 2: the head of that transaction may be below the ring."""
    real = Ring.locate

    def locate(self: Ring, position: Position) -> Location:
        if position.is_boundary and position.cluster_time == self.floor.cluster_time:
            return Found(self.floor_ordinal)
        return real(self, position)

    patch.setattr(Ring, "locate", locate)


def resumed_before_progress(patch: pytest.MonkeyPatch) -> None:
    """Rule 8: the first reply of a resumed stream proves nothing."""
    patch.setattr(Places, "_progressed", lambda self, subscription: True)


def catch_up_tail_trimmed_below_its_readers(patch: pytest.MonkeyPatch) -> None:
    """Rule 12."""
    patch.setattr(Tail, "slowest_cursor", lambda self: None)


def full_before_trimming(patch: pytest.MonkeyPatch) -> None:
    """A catch-up tail stays full of what nobody needs any more; found by this simulation.

    That those who hold a tail up step aside would hide it.
    """

    def is_full(self: Placement, tail: Tail) -> bool:
        limits = self._places.limits
        return not tail.is_live and tail.over(limits.ring_records, limits.log_bytes)

    patch.setattr(Placement, "is_full", is_full)
    patch.setattr(Placement, "step_aside", lambda *_: None)


def who_came_last_gets_it_twice(patch: pytest.MonkeyPatch) -> None:
    """One that has read what the others are still owed in this step falls in with them."""

    def fall_in(self: Places, subscription: Subscription) -> None:
        logged, direct = subscription.logged, subscription.outlet.direct
        if subscription.lockstep is not None or logged is None or direct is None:
            return
        if subscription.outlet.writable and not subscription.closed:
            logged.lockstep.join(subscription, direct)

    patch.setattr(Places, "_fall_in", fall_in)


def what_a_socket_did_not_take_is_lost(patch: pytest.MonkeyPatch) -> None:
    """A fan-out that believes that every write was whole."""
    real = Lockstep.give

    def give(self: Lockstep, write_each: WriteEach, burst: Burst, given: Given) -> Generator[None, None, int]:
        def write(descriptors: Sequence[int], data: bytes) -> list[tuple[int, memoryview]]:
            write_each(descriptors, data)
            return []

        return real(self, write, burst, given)

    patch.setattr(Lockstep, "give", give)


def position_taken_after_the_find(patch: pytest.MonkeyPatch) -> None:
    """A snapshot that ends at the head of its end: what was written while it was read is nowhere."""
    real = SnapshotPlaces.end_snapshot

    def end_snapshot(self: SnapshotPlaces, subscription: Subscription) -> bool:
        subscription.cursor, subscription.at = self._live.ring.head_ordinal, self._live.head
        return real(self, subscription)

    patch.setattr(SnapshotPlaces, "end_snapshot", end_snapshot)


def event_before_the_end_of_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    """Who is in a snapshot reads its log like everybody else."""
    real = SnapshotPlaces.begin_snapshot

    def begin_snapshot(self: SnapshotPlaces, subscription: Subscription) -> Position | None:
        position = real(self, subscription)
        if position is not None:
            self._locate_live(subscription, subscription.cursor)
            self.snapshots[subscription] = None
        return position

    patch.setattr(SnapshotPlaces, "begin_snapshot", begin_snapshot)
    # The reader of the snapshot must go on for all that.
    patch.setattr(
        Snapshots, "_wanted", lambda self, job, owed: not job.subscription.closed and not self._closing
    )


def checkpoint_of_one_that_is_full(patch: pytest.MonkeyPatch) -> None:
    """The short way to a checkpoint, for one that takes nothing: what is owed is passed over."""
    real = CheckpointPlaces.is_quiet

    def is_quiet(self: CheckpointPlaces, subscription: Subscription) -> bool:
        if subscription.place is Place.LIVE and subscription.went_live and not subscription.outlet.writable:
            return True
        return real(self, subscription)

    patch.setattr(CheckpointPlaces, "is_quiet", is_quiet)


def told_what_another_was_told_before(patch: pytest.MonkeyPatch) -> None:
    """What is made once for all who stand alike, and never made anew."""
    real = Beats.alike
    kept: dict[tuple[Beats, Topic], Burst] = {}

    def alike(self: Beats, helds: Mapping[str, Held], now: float) -> Burst | None:
        burst = real(self, helds, now)
        return burst and kept.setdefault((self, next(iter(helds.values())).topic), burst)

    patch.setattr(Beats, "alike", alike)


def checkpoint_during_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    real = CheckpointPlaces.checkpoint

    def checkpoint(self: CheckpointPlaces, subscription: Subscription) -> Position | None:
        if subscription.place is Place.SNAPSHOT and subscription.outlet.writable:
            return self._live.head
        return real(self, subscription)

    patch.setattr(CheckpointPlaces, "checkpoint", checkpoint)


MUTANTS: tuple[Mutant, ...] = (
    position_taken_after_the_find,
    event_before_the_end_of_a_snapshot,
    checkpoint_during_a_snapshot,
    checkpoint_of_one_that_is_full,
    told_what_another_was_told_before,
    checkpoint_ahead_of_the_cursor,
    checkpoint_before_routing,
    attach_at_the_live_head,
    attach_at_the_start_of_the_log,
    boundary_taken_as_exclusive,
    reopen_at_now_in_silence,
    lagging_instance_attaches_at_its_head,
    late_hand_over_at_s,
    continue_from_the_start_of_the_log,
    resume_after_an_invalidate,
    waiters_resolved_by_time,
    ring_keyed_by_token_only,
    locate_among_matched_records_only,
    boundary_found_at_a_floor_of_its_time,
    resumed_before_progress,
    catch_up_tail_trimmed_below_its_readers,
    full_before_trimming,
    who_came_last_gets_it_twice,
    what_a_socket_did_not_take_is_lost,
)
