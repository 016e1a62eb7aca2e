"""Topic logs and their shared space against a naive model of lists."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from feedsvc.core.positions import PositionKind, record_position
from feedsvc.core.topic_log import LogEntry, LogSpace, Run, TopicLog


def entry(ordinal: int, size: int, loss: str | None = None) -> LogEntry:
    position = record_position(PositionKind.EVENT, ordinal, f"{ordinal:x}")
    return LogEntry(ordinal, position, b"x" * size, loss)


class SpaceMachine(RuleBasedStateMachine):
    """Several logs in one space; the model is one list of (log number, entry) in order of arrival."""

    @initialize()
    def begin(self) -> None:
        self.space = LogSpace()
        self.ordinal = 0
        self.logs: dict[int, TopicLog] = {}
        self.starts: dict[int, int] = {}
        self.entries: list[tuple[int, LogEntry]] = []
        self.numbers = 0
        self.add_log()

    @rule()
    def add_log(self) -> None:
        self.numbers += 1
        self.logs[self.numbers] = TopicLog(self.ordinal)
        self.starts[self.numbers] = self.ordinal

    @precondition(lambda self: self.logs)
    @rule(
        data=st.data(), size=st.integers(0, 300), skip=st.integers(0, 2), count=st.sampled_from([1, 1, 2, 40])
    )
    def append(self, data: st.DataObject, size: int, skip: int, count: int) -> None:
        for _ in range(count):
            self.ordinal += 1 + skip
            number = data.draw(st.sampled_from(sorted(self.logs))) if count < 3 else min(self.logs)
            added = entry(self.ordinal, size)
            self.space.append(self.logs[number], added)
            self.entries.append((number, added))

    @rule(data=st.data())
    def append_to_all(self, data: st.DataObject) -> None:
        """One change that several topics see has one ordinal."""
        self.ordinal += 1
        for number, log in self.logs.items():
            added = entry(self.ordinal, number)
            self.space.append(log, added)
            self.entries.append((number, added))

    @rule(limit=st.integers(0, 3000), after=st.none() | st.integers(-30, 2))
    def trim(self, limit: int, after: int | None) -> None:
        keep_after = None if after is None else self.ordinal + after
        while self.entries and sum(kept.size_bytes for _, kept in self.entries) > limit:
            number, oldest = self.entries[0]
            if keep_after is not None and oldest.ordinal > keep_after:
                break
            del self.entries[0]
            self.starts[number] = oldest.ordinal
        self.space.trim(limit, keep_after)

    @precondition(lambda self: self.logs)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.logs)))
        log = self.logs.pop(number)
        del self.starts[number]
        self.entries = [(owner, kept) for owner, kept in self.entries if owner != number]
        self.space.forget(log)
        assert len(log) == 0

    @invariant()
    def sizes_and_starts(self) -> None:
        assert self.space.size_bytes == sum(kept.size_bytes for _, kept in self.entries)
        for number, log in self.logs.items():
            own = [kept for owner, kept in self.entries if owner == number]
            assert len(log) == len(own)
            assert log.size_bytes == sum(kept.size_bytes for kept in own)
            assert log.start == self.starts[number]
            if own:
                assert log.oldest_ordinal() == own[0].ordinal

    @invariant()
    def reads(self) -> None:
        """From every cursor the entries behind it, at least one, up to the bytes asked for."""
        for number, log in self.logs.items():
            own = [kept for owner, kept in self.entries if owner == number]
            for cursor in {log.start, self.ordinal - 1, *(kept.ordinal for kept in own[-2:])}:
                behind = [kept for kept in own if kept.ordinal > cursor]
                assert log.next_ordinal(cursor) == (behind[0].ordinal if behind else None)
                assert log.after(cursor, 1 << 30) == behind
                few = log.after(cursor, 300)
                sizes = [len(kept.frame) for kept in behind]
                taken = max([1, *(n for n in range(len(sizes) + 1) if sum(sizes[:n]) <= 300)])
                assert few == behind[:taken]

    @invariant()
    def the_order_is_bounded(self) -> None:
        """Topics that come and go leave nothing behind that grows."""
        assert len(self.space._order) <= 2 * len(self.entries) + 64


TestSpace = SpaceMachine.TestCase
TestSpace.settings = settings(max_examples=60, stateful_step_count=20)


def test_topics_that_come_and_go_do_not_grow_the_space() -> None:
    """One old entry that is never trimmed must not keep a trace of all that came after it."""
    space = LogSpace()
    space.append(TopicLog(0), entry(1, 10))
    for ordinal in range(2, 5_000):
        passing = TopicLog(ordinal - 1)
        space.append(passing, entry(ordinal, 10))
        space.forget(passing)
        space.trim(1 << 20)
    assert len(space._order) < 200
    assert space.size_bytes == entry(1, 10).size_bytes


def test_an_entry_costs_more_than_its_frame() -> None:
    """Empty frames (losses) count too, so that the bound on bytes is one on entries."""
    assert entry(1, 0, "overflow").size_bytes > 100
    assert entry(1, 50).size_bytes == entry(1, 0).size_bytes + 50


def test_a_log_of_many_entries_is_read_in_bounded_pieces() -> None:
    """One read never copies a whole log of small frames."""
    log = TopicLog(0)
    for ordinal in range(1, 2001):
        log.append(entry(ordinal, 1))
    assert [kept.ordinal for kept in log.after(700, 1 << 30)] == list(range(701, 701 + 512))


def filled(count: int, size: int) -> TopicLog:
    log = TopicLog(0)
    for ordinal in range(1, count + 1):
        log.append(entry(ordinal, size))
    return log


def read_all(log: TopicLog) -> list[Run]:
    cursor, runs = 0, []
    while (run := log.run(cursor, 10_000)) is not None:
        runs.append(run)
        cursor = run.ordinal
    return runs


@pytest.mark.parametrize("sharing", [True, False])
def test_a_burst_of_several_writes_is_made_once_for_all_who_read_it(sharing: bool) -> None:
    """Else each reader of a burst over one write would have all of it framed and compressed for itself."""
    log = filled(2_000 if sharing else 100, 1_000)
    log.sharing = sharing
    first, second = read_all(log), read_all(log)
    assert len(first) >= 10
    assert list(map(id, first)) == list(map(id, second))


def test_what_is_kept_of_runs_is_bounded_and_little_once_a_fan_out_is_over() -> None:
    log = filled(2_000, 1_000)
    read_all(log)
    assert sum(run.burst.size_bytes for run in log._made.values()) < 600_000
    log.sharing = True
    read_all(log)
    log.settle()
    assert sum(run.burst.size_bytes for run in log._made.values()) < 600_000


def test_a_run_does_not_outlive_its_entries() -> None:
    """What was trimmed is gone, or the bound on the bytes of all logs would be none."""
    log = filled(30, 1_000)
    runs = read_all(log)
    for _ in range(runs[0].ordinal + 1):
        log.drop_oldest()
    assert set(log._made) == {run.ordinal for run in runs[1:-1]}
    while log:
        log.drop_oldest()
    assert not log._made and not log._made_bytes
