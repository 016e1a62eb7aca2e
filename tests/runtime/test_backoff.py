"""Backoff: it doubles to a bound, is spread, and begins anew after a success."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from feedsvc.runtime.backoff import FIRST_S, LONGEST_S, Backoff


@given(st.lists(st.floats(0, 0.999), min_size=1, max_size=20))
def test_each_wait_is_from_the_upper_half_of_a_doubling_bound(chances: list[float]) -> None:
    """Never less than half of it (nobody is hot), never more (an election is not slept through)."""
    draws = iter(chances)
    backoff = Backoff(lambda: next(draws))
    for attempt in range(len(chances)):
        bound_s = min(FIRST_S * 2**attempt, LONGEST_S)
        assert 0.5 * bound_s <= backoff.next_s() <= bound_s


def test_reset() -> None:
    """After a success the next failure waits the shortest time again."""
    backoff = Backoff(lambda: 0.5, first_s=1, longest_s=4)
    assert [backoff.next_s() for _ in range(4)] == [0.75, 1.5, 3.0, 3.0]
    backoff.reset()
    assert backoff.next_s() == 0.75
