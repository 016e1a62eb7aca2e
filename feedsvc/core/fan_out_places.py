"""The fan-out: a batch of the live tail to every reader of a topic.

The hot path of the service, once for each delivery. Those in lockstep cost one call each (`lockstep.py`); any other
goes by its outlet or by `pump`, with the same result. At a yield others run: log and head stay as they are (rule 11),
but a reader may be detached or full behind it.
"""

from __future__ import annotations

from collections.abc import Iterator

from feedsvc.core.lockstep import Given, WriteEach
from feedsvc.core.places import PlacementLimits, Places
from feedsvc.core.subscription import Place, Subscription
from feedsvc.core.tail import LoggedTopic, Tail
from feedsvc.core.topic_log import Run, TopicLog

_YIELD_EVERY = 64
"""Subscriptions that are dealt with one by one between two yields."""


class FanOutPlaces(Places):
    """`Places`, and the delivery to all who are live."""

    def __init__(self, limits: PlacementLimits, write_each: WriteEach) -> None:
        super().__init__(limits)
        self._write_each = write_each
        self.direct_frames = self.direct_bytes = 0
        """What was written to sockets past their connections, since `Placement.take_direct`."""

    def fan_out(self, tail: Tail, logged: LoggedTopic) -> Iterator[None]:
        """Pump every reader of a topic on the live tail. Those who stand alike, have room and are told all by one
        write are dealt with together, at the cost of the write; the others one by one. Yields now and then."""
        log = logged.log
        apart = list(logged.lockstep.apart)
        log.sharing = True
        try:
            yield from self._together(tail, logged, apart)
            for first in range(0, len(apart), _YIELD_EVERY):
                yield
                for subscription in apart[first : first + _YIELD_EVERY]:
                    self._one(tail, log, subscription)
        finally:
            log.settle()

    def _together(self, tail: Tail, logged: LoggedTopic, apart: list[Subscription]) -> Iterator[None]:
        """Give to all in lockstep what one write holds; where more is owed they leave it, and join `apart`."""
        lockstep = logged.lockstep
        if lockstep.given is None:
            return
        run = self._whole_run(logged.log, lockstep.given.cursor)
        if run is None:
            apart += lockstep.dissolve()
            return
        burst, given = run.burst, Given(tail.ring.head_ordinal, tail.head, run.position)
        deliveries = yield from lockstep.give(self._write_each, burst, given)
        self.direct_frames += deliveries * burst.count
        self.direct_bytes += deliveries * burst.size_bytes

    def _one(self, tail: Tail, log: TopicLog, subscription: Subscription) -> None:
        if self._takes(subscription):
            run = self._whole_run(log, subscription.cursor)
            if run is not None:
                subscription.outlet.frames(run.burst)
                subscription.cursor, subscription.at = tail.ring.head_ordinal, tail.head
                subscription.told = run.position
                self._fall_in(subscription)
                return
        self.pump(subscription)

    @staticmethod
    def _takes(subscription: Subscription) -> bool:
        """Whether one that is not in lockstep is live, was told so, and has room."""
        return (
            subscription.place is Place.LIVE
            and subscription.went_live
            and not subscription.closed
            and subscription.outlet.writable
        )

    def _whole_run(self, log: TopicLog, cursor: int) -> Run | None:
        """All that is in a log behind a cursor, where one write can tell it."""
        run = log.run(cursor, self.limits.write_bytes) if cursor >= log.start else None
        return run if run is not None and run.last and run.loss is None else None
