"""Backoff: at most three opens in ten seconds whatever fails when, and quick where no server was asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedsvc.ports import EventUnavailable, SourceUnavailable
from feedsvc.runtime.backoff import HEALTHY_S, UNREACHED_S, WAITS_S, Backoff

FAILED = SourceUnavailable("it was reset")
UNREACHED = SourceUnavailable("nobody there", reached=False)

lives = st.floats(0, 2 * HEALTHY_S)
"""For how long a stream answers before it fails; some of these are as long as a healthy one."""


@given(st.lists(st.tuples(lives, st.floats(0, 0.999)), min_size=4, max_size=20))
def test_never_more_than_three_opens_in_ten_seconds(history: list[tuple[float, float]]) -> None:
    """Streams that open, answer for a while and fail, as long as one likes."""
    chances = iter([chance for _, chance in history])
    backoff = Backoff(lambda: next(chances))
    now, opens = 0.0, []
    for alive_s, _ in history:
        opens.append(now)
        backoff.healthy(now, now + alive_s)
        now += alive_s + backoff.after(FAILED, now + alive_s)
    for first, fourth in zip(opens, opens[3:], strict=False):
        assert fourth - first > 10


@given(st.lists(st.floats(0, 0.999), min_size=1, max_size=20))
def test_each_wait_is_from_the_upper_fifth_of_its_bound(chances: list[float]) -> None:
    """Never much less than it (nobody is hot), never more (an election is not slept through)."""
    draws = iter(chances)
    backoff, now = Backoff(lambda: next(draws)), 0.0
    for attempt in range(len(chances)):
        bound_s = WAITS_S[min(attempt, len(WAITS_S) - 1)]
        wait_s = backoff.after(EventUnavailable("gone"), now)
        assert 0.8 * bound_s <= wait_s + 1e-9
        assert wait_s <= bound_s + 1e-9
        now += wait_s


def test_attempts_that_reach_no_server_come_often_and_are_not_counted() -> None:
    """An outage is over as soon as somebody answers."""
    backoff = Backoff(lambda: 0.999)
    for now in range(50):
        assert 0.8 * UNREACHED_S <= backoff.after(UNREACHED, now) <= UNREACHED_S
    assert backoff.first_s(50) == 0.0
    assert backoff.after(FAILED, 50) == pytest.approx(WAITS_S[0], rel=0.01)


@pytest.mark.parametrize("alive_s, waits_s", [(HEALTHY_S, WAITS_S[0]), (HEALTHY_S - 0.1, WAITS_S[1])])
def test_only_a_stream_that_was_healthy_for_long_begins_anew(alive_s: float, waits_s: float) -> None:
    backoff = Backoff(lambda: 0.999)
    opened = backoff.after(FAILED, 0)
    backoff.healthy(opened, opened + alive_s)
    assert backoff.after(FAILED, opened + alive_s) == pytest.approx(waits_s, rel=0.01)


def test_readers_that_share_a_series_take_turns() -> None:
    """Ten that fail at once do not open at once either, and a newcomer waits its turn."""
    backoff = Backoff(lambda: 0.999)
    turns = [backoff.after(FAILED, 0) for _ in range(10)]
    turns.append(backoff.first_s(0))
    assert turns == sorted(turns)
    assert min(fourth - first for first, fourth in zip(turns, turns[3:], strict=False)) > 10
    backoff.reset()
    assert backoff.first_s(0) == 0.0


def test_one_that_gives_up_is_counted_for_those_who_come_after() -> None:
    """An event that cannot be read, each time: every one is another reader, and none tries twice."""
    backoff, now, opens = Backoff(lambda: 0.0), 0.0, []
    for _ in range(6):
        now += backoff.first_s(now)
        opens.append(now)
        assert backoff.given_up(EventUnavailable("too large")) == 0.0
    assert opens[0] == 0.0
    assert min(fourth - first for first, fourth in zip(opens, opens[3:], strict=False)) > 10
