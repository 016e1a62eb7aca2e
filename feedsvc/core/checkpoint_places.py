"""The moves of a checkpoint: a subscription that is owed nothing stands at the head of its tail, and is told so.

A position is told only where nothing before it is owed, and only once: `told` is the last one. `is_quiet` and
`note_head` are `checkpoint` for one that is live and idle, as most are, where nothing has to be pumped first.
"""

from __future__ import annotations

from feedsvc.core.fan_out_places import FanOutPlaces
from feedsvc.core.positions import Position
from feedsvc.core.subscription import Subscription


class CheckpointPlaces(FanOutPlaces):
    """`FanOutPlaces`, and the positions that clients are told between their events."""

    def is_quiet(self, subscription: Subscription) -> bool:
        """Live, with room, and with nothing owed: nothing moves before its checkpoint."""
        lockstep, logged = subscription.lockstep, subscription.logged
        if logged is None:
            return False
        if lockstep is not None:
            lockstep.settle(subscription)
        elif subscription.outlet.direct is not None or not self._takes(subscription):
            return False  # one that could be in lockstep is taken back into it by `pump`
        cursor, log = subscription.cursor, logged.log
        return cursor >= log.start and log.next_ordinal(cursor) is None

    def note_head(self, subscription: Subscription) -> Position | None:
        """The head of its tail, the position of one that is owed nothing; None where it was told already."""
        tail, told = subscription.tail, subscription.told
        assert tail is not None
        ring = tail.ring
        head = ring.head
        if told is head or (told is not None and told.same_as(head)):
            return None
        subscription.cursor = ring.head_ordinal
        subscription.at = subscription.told = head
        return head

    def checkpoint(self, subscription: Subscription) -> Position | None:
        if not subscription.announced or not subscription.located:
            return None
        self.pump(subscription)
        logged = subscription.logged
        if not subscription.located or subscription.closed or logged is None:
            return None
        if not subscription.outlet.writable or logged.log.next_ordinal(subscription.cursor) is not None:
            return None
        return self.note_head(subscription)
