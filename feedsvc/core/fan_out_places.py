"""The fan-out: a batch of the live tail to every reader of a topic.

The hot path of the service, once for each delivery. A reader whose `write` is set (see the rules of `places.py`) costs
that one call; any other goes by its outlet or by `pump`, with the same result. Rules for whoever edits this:

* `write` is read anew for each delivery: a write may fill the transport, and `full()` unsets it in the midst of it;
* at a yield others run: log and head stay as they are (rule 11), but a reader may be detached or full behind it.
"""

from __future__ import annotations

from collections.abc import Iterator

from feedsvc.core.places import PlacementLimits, Places
from feedsvc.core.subscription import Place, Subscription
from feedsvc.core.tail import LoggedTopic, Tail
from feedsvc.core.topic_log import Run, TopicLog

_YIELD_EVERY = 64
"""Deliveries between two yields of a fan-out: about half a millisecond of writes. Each yield costs as much as one."""


class FanOutPlaces(Places):
    """`Places`, and the delivery to all who are live."""

    def __init__(self, limits: PlacementLimits) -> None:
        super().__init__(limits)
        self.direct_frames = self.direct_bytes = 0
        """What was written to transports past their connections, since `Placement.take_direct`."""

    def fan_out(self, tail: Tail, logged: LoggedTopic) -> Iterator[None]:
        """Pump every reader of a topic on the live tail. Who is live, has room and is told all by one write
        is dealt with right here: the same as `pump` would do, at the cost of the write. Yields now and then."""
        log, head, head_ordinal = logged.log, tail.head, tail.ring.head_ordinal
        cursor, run, told = -1, None, head
        plain = b""
        readers = list(logged.readers)
        log.sharing = True
        try:
            for first in range(0, len(readers), _YIELD_EVERY):
                direct = 0
                for subscription in readers[first : first + _YIELD_EVERY]:
                    write = subscription.write
                    if write is None:
                        self._fan_out_by_outlet(tail, log, subscription)
                        continue
                    if subscription.cursor != cursor:
                        self._count_direct(run, direct)
                        cursor, direct = subscription.cursor, 0
                        run = self._whole_run(log, cursor)
                        if run is not None:
                            plain, told = run.burst.websocket, run.position
                    if run is None:
                        self.pump(subscription)
                        continue
                    write(run.burst.deflated if subscription.deflates else plain)
                    subscription.cursor, subscription.at, subscription.told = head_ordinal, head, told
                    direct += 1
                self._count_direct(run, direct)
                yield
        finally:
            log.settle()

    def _fan_out_by_outlet(self, tail: Tail, log: TopicLog, subscription: Subscription) -> None:
        if (
            subscription.place is Place.LIVE
            and subscription.went_live
            and not subscription.closed
            and subscription.outlet.writable
        ):
            run = self._whole_run(log, subscription.cursor)
            if run is not None:
                subscription.outlet.frames(run.burst)
                subscription.cursor, subscription.at = tail.ring.head_ordinal, tail.head
                subscription.told = run.position
                return
        self.pump(subscription)

    def _count_direct(self, run: Run | None, deliveries: int) -> None:
        if run is not None:
            self.direct_frames += deliveries * run.burst.count
            self.direct_bytes += deliveries * run.burst.size_bytes

    def _whole_run(self, log: TopicLog, cursor: int) -> Run | None:
        """All that is in a log behind a cursor, where one write can tell it."""
        run = log.run(cursor, self.limits.write_bytes) if cursor >= log.start else None
        return run if run is not None and run.last and run.loss is None else None
