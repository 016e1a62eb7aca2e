"""The moves of a snapshot, beside those of `places.py`.

A snapshot is not placement's work but the runtime's. Placement says that one is due and fixes its position before it
is read, keeps quiet until it ends, and takes a loss meanwhile as what it is to everybody else. The topic is on the
live tail all the time, so what happens behind the position is in its log or, once it fell off there, a catch-up
tail's work, as for any other cursor. O(1), but for `check_snapshots`, which looks at each snapshot that is under way.
"""

from __future__ import annotations

from feedsvc.core.checkpoint_places import CheckpointPlaces
from feedsvc.core.positions import Position
from feedsvc.core.subscription import Place, Subscription


class SnapshotPlaces(CheckpointPlaces):
    """`CheckpointPlaces`, and what begins and ends in `Place.SNAPSHOT`."""

    def begin_snapshot(self, subscription: Subscription) -> Position | None:
        """Position first: what is read from here on has everything up to the live head, whose position this is.

        Begun anew it is a new position. None where no snapshot is owed any more.
        """
        if subscription.place is not Place.SNAPSHOT or subscription.closed:
            return None
        self.snapshots[subscription] = None
        subscription.cursor = self._live.ring.head_ordinal
        subscription.at = self._live.head
        return subscription.at

    def check_snapshots(self) -> None:
        """A loss behind the position of a snapshot: the rest of it would be read in vain."""
        for subscription in list(self.snapshots):
            logged = self.subscriptions[subscription]
            assert logged is not None
            if logged.loss is not None and logged.loss.ordinal > subscription.cursor:
                self.lose(subscription, logged.loss.loss or "event_unavailable")

    def end_snapshot(self, subscription: Subscription) -> bool:
        """Everything was written: go on behind the position. False where the connection is full: try again."""
        at = subscription.at
        if subscription not in self.snapshots or at is None or not subscription.outlet.writable:
            return False
        subscription.outlet.snapshot_end(subscription, at)
        subscription.told = at
        self._locate_live(subscription, subscription.cursor)
        self.pump(subscription)
        return True
