"""A full catch-up tail: two ways in which it stood still, found by the simulation but too rarely to rely on it."""

from __future__ import annotations

import msgspec
import pytest

from feedsvc.core.burst import Burst
from feedsvc.core.changes import Change, ChangeBody, Namespace
from feedsvc.core.placement import Placement
from feedsvc.core.places import PlacementLimits
from feedsvc.core.positions import Position, PositionKind, boundary, record_position
from feedsvc.core.subscription import Place, Subscription, TopicKey
from feedsvc.core.tail import Tail
from feedsvc.testing import MemoryConnection

_THERE = Namespace("app", "x")


class _Topic(msgspec.Struct, frozen=True):
    namespace: Namespace = _THERE


class _Outlet:
    """Takes everything while `writable`."""

    direct = None

    def __init__(self, writable: bool) -> None:
        self.writable = writable
        self.taken: list[bytes] = []

    def subscribed(self, subscription: Subscription, *, resumed: bool, position: Position | None) -> None:
        self.taken.append(b"subscribed")

    def frames(self, burst: Burst) -> None:
        self.taken += burst.frames

    def live(self, subscription: Subscription) -> None:
        self.taken.append(b"live")

    def resync(self, subscription: Subscription, reason: str, position: Position) -> None:
        raise AssertionError("nothing is lost here")

    def snapshot_due(self, subscription: Subscription) -> None:
        raise AssertionError("nobody takes snapshots here")

    def snapshot_end(self, subscription: Subscription, position: Position) -> None:
        raise AssertionError("nobody takes snapshots here")

    def too_slow(self, subscription: Subscription) -> None:
        raise AssertionError("nobody asks here")


def _record(time: int) -> Position:
    return record_position(PositionKind.EVENT, time, f"token {time}")


def _build(topic: TopicKey, change: Change) -> bytes:
    return b"event %d" % change.position.cluster_time


def _read(placement: Placement, tail: Tail, times: range) -> None:
    changes = [Change(_record(time), "insert", _THERE, ChangeBody) for time in times]
    for _ in placement.batch(tail, changes, None):
        pass


def _full_tail(outlet: _Outlet) -> tuple[Placement, Tail, Subscription]:
    """A live tail at time 100, and a catch-up tail from 10 to 15, full for a subscription that stands at 10."""
    placement = Placement(PlacementLimits(ring_records=3), _build, MemoryConnection.write_each)
    placement.live_opened(boundary(100))
    subscription = Subscription(_Topic(), outlet, _record(10))
    placement.attach(subscription)
    tail = placement.catch_up_opened(_record(10))
    _read(placement, tail, range(11, 16))
    assert placement.is_full(tail)
    return placement, tail, subscription


def test_who_joins_a_full_tail_is_served_at_once() -> None:
    """No batch will come that would do it: the tail reads on only when its readers have moved."""
    placement, _, _ = _full_tail(_Outlet(writable=False))
    outlet = _Outlet(writable=True)
    joined = Subscription(_Topic(), outlet, _record(12))
    placement.attach(joined)
    assert joined.place is Place.CATCHING
    assert outlet.taken == [b"subscribed", b"event 13", b"event 14", b"event 15"]


def test_a_tail_is_not_full_of_what_nobody_needs() -> None:
    """The slowest reader leaves; another one waits for its position further on."""
    placement, tail, slowest = _full_tail(_Outlet(writable=False))
    waiting = Subscription(_Topic(), _Outlet(writable=True), _record(50))
    placement.attach(waiting)
    assert waiting.place is Place.SKIPPING
    placement.detach(slowest)
    assert not placement.is_full(tail)


def test_a_reader_that_takes_more_looks_at_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a storm of reconnects ten thousand share a tail, and each of their sockets has room again many times: to find
    the slowest each time took two milliseconds. Whether the tail may read on is asked once in a round."""
    outlet = _Outlet(writable=False)
    placement, tail, subscription = _full_tail(outlet)
    asked: list[Tail] = []
    slowest_cursor = Tail.slowest_cursor

    def counted(self: Tail) -> int | None:
        asked.append(self)
        return slowest_cursor(self)

    monkeypatch.setattr(Tail, "slowest_cursor", counted)
    outlet.writable = True
    placement.writable(subscription)
    assert outlet.taken[-1] == b"event 15" and not asked
    assert not placement.is_full(tail) and asked
