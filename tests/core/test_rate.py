"""A rate gives so many at once and then at its pace, whatever the order of asking; a refusal costs nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from feedsvc.core.rate import Rate


def taken(rate: Rate, now: float, amount: float = 1.0) -> int:
    """How many are given at this time."""
    number = 0
    while not rate.take(now, amount):
        number += 1
        assert number < 10_000, "without bound"
    return number


def test_so_many_at_once_and_then_at_the_pace() -> None:
    rate = Rate(50, 10)
    assert taken(rate, 100) == 50
    assert taken(rate, 100.05) == 0
    assert taken(rate, 100.125) == 1
    assert taken(rate, 1_000) == 50


def test_a_refusal_says_when_and_costs_nothing() -> None:
    rate = Rate(1, 2)
    assert rate.take(7) == 0
    assert [rate.take(7.25) for _ in range(5)] == [0.25] * 5
    assert rate.take(7.5) == 0


def test_amounts_count_as_parts() -> None:
    assert taken(Rate(3, 1), 0, 0.125) == 24


@given(st.lists(st.tuples(st.floats(0, 3), st.sampled_from([0.1, 1.0, 2.0])), max_size=60))
def test_no_order_of_asking_gets_more_than_the_pace(steps: list[tuple[float, float]]) -> None:
    """Over any stretch of time: what was there at its beginning, and what came in."""
    rate, now, given_at = Rate(5, 2), 1_000.0, list[tuple[float, float]]()
    for pause, amount in steps:
        now += pause
        wait_s = rate.take(now, amount)
        if not wait_s:
            given_at.append((now, amount))
    for index, (start, _) in enumerate(given_at):
        for stop in range(index, len(given_at)):
            total = sum(amount for _, amount in given_at[index : stop + 1])
            assert total <= 5 + 2 * (given_at[stop][0] - start) + 1e-6
