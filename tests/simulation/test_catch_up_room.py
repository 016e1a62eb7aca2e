"""A full catch-up tail: two ways in which it stood still, found by the simulation but too rarely to rely on it."""

from __future__ import annotations

import pytest

from feedsvc.core.placement import Placement
from feedsvc.core.places import PlacementLimits
from feedsvc.core.positions import boundary
from feedsvc.core.subscription import Place, Subscription
from feedsvc.core.tail import Tail
from feedsvc.testing import MemoryConnection
from tests.support.placements import SomeOutlet, SomeTopic, build, change, record


def _read(placement: Placement, tail: Tail, times: range) -> None:
    for _ in placement.batch(tail, list(map(change, times)), None):
        pass


def _full_tail(outlet: SomeOutlet) -> tuple[Placement, Tail, Subscription]:
    """A live tail at time 100, and a catch-up tail from 10 to 15, full for a subscription that stands at 10."""
    placement = Placement(PlacementLimits(ring_records=3), build, MemoryConnection.write_each)
    placement.live_opened(boundary(100))
    subscription = Subscription(SomeTopic(), outlet, record(10))
    placement.attach(subscription)
    tail = placement.catch_up_opened(record(10))
    _read(placement, tail, range(11, 16))
    assert placement.is_full(tail)
    return placement, tail, subscription


def test_who_joins_a_full_tail_is_served_at_once() -> None:
    """No batch will come that would do it: the tail reads on only when its readers have moved."""
    placement, _, _ = _full_tail(SomeOutlet(writable=False))
    outlet = SomeOutlet(writable=True)
    joined = Subscription(SomeTopic(), outlet, record(12))
    placement.attach(joined)
    assert joined.place is Place.CATCHING
    assert outlet.taken == [b"subscribed", b"event 13", b"event 14", b"event 15"]


def test_a_tail_is_not_full_of_what_nobody_needs() -> None:
    """The slowest reader leaves; another one waits for its position further on."""
    placement, tail, slowest = _full_tail(SomeOutlet(writable=False))
    waiting = Subscription(SomeTopic(), SomeOutlet(writable=True), record(50))
    placement.attach(waiting)
    assert waiting.place is Place.SKIPPING
    placement.detach(slowest)
    assert not placement.is_full(tail)


def test_a_reader_that_takes_more_looks_at_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a storm of reconnects ten thousand share a tail, and each of their sockets has room again many times: to find
    the slowest each time took two milliseconds. Whether the tail may read on is asked once in a round."""
    outlet = SomeOutlet(writable=False)
    placement, tail, subscription = _full_tail(outlet)
    asked: list[Tail] = []
    slowest_cursor = Tail.slowest_cursor

    def counted(self: Tail) -> int | None:
        asked.append(self)
        return slowest_cursor(self)

    monkeypatch.setattr(Tail, "slowest_cursor", counted)
    outlet.connection.set_writable(True)
    placement.writable(subscription)
    assert outlet.taken[-1] == b"event 15" and not asked
    assert not placement.is_full(tail) and asked
