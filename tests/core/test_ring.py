"""The ring against a naive model that keeps everything and searches lists, by the pseudo-code of positions.md."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from feedsvc.core import ring as ring_module
from feedsvc.core.positions import Position, PositionKind, boundary, record_position
from feedsvc.core.ring import Found, NotFound, Ring

EVENT, DROP, INVALIDATE = PositionKind.EVENT, PositionKind.DROP, PositionKind.INVALIDATE


class Model:
    """`locate` word by word; `records` are never forgotten, `floor_ordinal` says how many the ring has dropped."""

    def __init__(self, start: Position) -> None:
        self.start = start
        self.records: list[Position] = []
        self.floor_ordinal = 0
        self.head = start

    @property
    def floor(self) -> Position:
        return self.records[self.floor_ordinal - 1] if self.floor_ordinal else self.start

    @property
    def known(self) -> list[tuple[int, Position]]:
        return [(i + 1, at) for i, at in enumerate(self.records) if i + 1 > self.floor_ordinal]

    def locate(self, at: Position) -> Found | NotFound:
        floor, head, time = self.floor, self.head, at.cluster_time
        if at.is_boundary:
            if time < floor.cluster_time or (time == floor.cluster_time and not floor.is_boundary):
                return NotFound.BELOW
            if head.cluster_time < time:
                return NotFound.AHEAD
            before = [ordinal for ordinal, record in self.known if record.cluster_time < time]
            return Found(max(before, default=self.floor_ordinal))
        for ordinal, record in self.known:
            if record.key == at.key:
                return Found(ordinal)
        if at.same_as(floor):
            return Found(self.floor_ordinal)
        if time < floor.cluster_time:
            return NotFound.BELOW
        if not head.cluster_time > time:
            return NotFound.AHEAD
        if time == floor.cluster_time and not floor.is_boundary:
            return NotFound.BELOW
        return NotFound.ABSENT


def starts() -> st.SearchStrategy[Position]:
    return st.one_of(
        st.integers(0, 3).map(boundary),
        st.integers(0, 3).map(lambda time: record_position(EVENT, time, "start")),
    )


class RingMachine(RuleBasedStateMachine):
    """Appends (equal times, and one token under two kinds), boundaries and trims; every known place is asked for."""

    @initialize(start=starts())
    def open(self, start: Position) -> None:
        self.ring = Ring(start)
        self.model = Model(start)
        self.tokens = 0
        self.last_drop: Position | None = None

    @rule(step=st.integers(0, 2), kind=st.sampled_from([EVENT, EVENT, DROP]))
    def append(self, step: int, kind: PositionKind) -> None:
        self.tokens += 1
        self.append_record(record_position(kind, self.ring.head.cluster_time + step, f"{self.tokens:x}"))

    @rule()
    def append_invalidate_of_a_drop(self) -> None:
        """The same token again, of another kind."""
        last = self.model.records[-1] if self.model.records else None
        if last is not None and last.kind is DROP and last.data and self.ring.head is last:
            self.append_record(record_position(INVALIDATE, last.cluster_time, last.data))

    def append_record(self, record: Position) -> None:
        self.model.records.append(record)
        self.model.head = record
        assert self.ring.append(record) == len(self.model.records)

    @rule(step=st.integers(-1, 2))
    def idle(self, step: int) -> None:
        time = max(0, self.ring.head.cluster_time + step)
        moved = time > self.model.head.cluster_time
        if moved:
            self.model.head = boundary(time)
        assert self.ring.advance(boundary(time)) is moved

    @rule(keep=st.integers(0, 6), after=st.none() | st.integers(-2, 8))
    def trim(self, keep: int, after: int | None) -> None:
        keep_after = None if after is None else self.model.floor_ordinal + after
        surplus = len(self.model.known) - keep
        if keep_after is not None:
            surplus = min(surplus, keep_after - self.model.floor_ordinal)
        self.model.floor_ordinal += max(0, surplus)
        self.ring.trim(keep, keep_after)

    @invariant()
    def the_ring_is_the_model(self) -> None:
        ring, model = self.ring, self.model
        assert len(ring) == len(model.known)
        assert (ring.floor, ring.floor_ordinal, ring.head) == (model.floor, model.floor_ordinal, model.head)
        assert ring.head_ordinal == len(model.records)
        assert ring.position(ring.floor_ordinal) == model.floor
        for ordinal, record in model.known:
            assert ring.position(ordinal) is record
            assert record in ring
        for outside in (ring.floor_ordinal - 1, ring.head_ordinal + 1):
            with pytest.raises(IndexError):
                ring.position(outside)

    @invariant()
    def every_place_is_where_the_model_says(self) -> None:
        """Whatever was ever appended, its digest form, its token under another kind and at other times, boundaries."""
        top = self.model.head.cluster_time + 2
        asked = [boundary(time) for time in range(top + 1)] + [self.model.start]
        for record in self.model.records[-12:]:
            assert record.data is not None
            asked.append(record)
            asked.append(Position(record.kind, record.cluster_time, None, record.digest))
            asked += [
                record_position(kind, record.cluster_time, record.data) for kind in (EVENT, DROP, INVALIDATE)
            ]
        asked += [record_position(EVENT, time, "nowhere") for time in range(top + 1)]
        for at in asked:
            assert self.ring.locate(at) == self.model.locate(at), at


class CompactingRingMachine(RingMachine):
    """The same with many records at a time, so that lists are compacted."""

    @rule(count=st.integers(1000, 1600))
    def append_many(self, count: int) -> None:
        for _ in range(count):
            self.append(1, EVENT)

    @rule()
    def trim_many(self) -> None:
        self.trim(100, None)

    @invariant()
    def the_ring_is_the_model(self) -> None:
        assert len(self.ring) == len(self.model.known)
        for ordinal, record in self.model.known[:3] + self.model.known[-3:]:
            assert self.ring.position(ordinal) is record
            assert self.ring.locate(record) == Found(ordinal)

    @invariant()
    def every_place_is_where_the_model_says(self) -> None:
        times = [record.cluster_time for _, record in self.model.known[::97]]
        for time in times:
            assert self.ring.locate(boundary(time)) == self.model.locate(boundary(time))


TestRing = RingMachine.TestCase
TestRing.settings = settings(max_examples=150, stateful_step_count=25)
TestCompactingRing = CompactingRingMachine.TestCase
TestCompactingRing.settings = settings(max_examples=8, stateful_step_count=12)


@given(st.integers(1, 5000), st.integers(0, 50))
@settings(max_examples=10)
def test_memory_is_bounded_by_what_is_kept(count: int, keep: int) -> None:
    """After trims the ring holds at most twice what it keeps, or a constant."""
    ring = Ring(boundary(0))
    for number in range(count):
        ring.append(record_position(EVENT, number + 1, f"{number:x}"))
        ring.trim(keep)
    assert len(ring._records) <= max(2 * keep, ring_module._COMPACT_AT) + keep + 1
    assert len(ring._records) == len(ring._times)
    assert len(ring._ordinal_of) == len(ring)


@pytest.mark.parametrize(
    "make",
    [lambda: record_position(EVENT, 5, "x"), lambda: boundary(5)],
    ids=["record", "boundary"],
)
def test_a_transaction_that_is_cut_by_the_floor_is_not_taken_for_complete(
    make: Callable[[], Position],
) -> None:
    """Rule 2: with a record as floor its time may have had earlier records; with a boundary it had none."""
    floor = make()
    ring = Ring(floor)
    ring.append(record_position(EVENT, 5, "y"))
    ring.advance(boundary(9))
    expected = Found(0) if floor.is_boundary else NotFound.BELOW
    assert ring.locate(boundary(5)) == expected
    absent = ring.locate(record_position(EVENT, 5, "z"))
    assert absent is (NotFound.ABSENT if floor.is_boundary else NotFound.BELOW)


def test_only_a_complete_time_proves_absence() -> None:
    """Rule 1: at the head's own time the record may still come."""
    ring = Ring(boundary(1))
    ring.append(record_position(EVENT, 5, "a"))
    assert ring.locate(record_position(EVENT, 5, "b")) is NotFound.AHEAD
    ring.advance(boundary(6))
    assert ring.locate(record_position(EVENT, 5, "b")) is NotFound.ABSENT
