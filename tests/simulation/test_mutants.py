"""A check that notices nothing proves nothing: each known mistake must be caught."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import (
    MUTANTS,
    Mutant,
    boundary_found_at_a_floor_of_its_time,
    catch_up_tail_trimmed_below_its_readers,
    full_before_trimming,
    reopen_at_now_in_silence,
    resumed_before_progress,
    told_what_another_was_told_before,
    what_a_socket_did_not_take_is_lost,
)
from tests.simulation.test_simulation import schedules
from tests.simulation.world import Violation

SEEDS = 300


SLOW = {full_before_trimming, catch_up_tail_trimmed_below_its_readers}
"""Noticed late: these take as long as all others together."""


FIRST: dict[Mutant, int] = {
    boundary_found_at_a_floor_of_its_time: 2_840,
    reopen_at_now_in_silence: 70,
    resumed_before_progress: 100,
    told_what_another_was_told_before: 190,
    what_a_socket_did_not_take_is_lost: 110,
}
"""Where to begin with those that the first schedules do not meet."""


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(mutant, marks=pytest.mark.verify) if mutant in SLOW else mutant for mutant in MUTANTS],
    ids=lambda mutant: mutant.__name__,
)
def test_mistake_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation notices this mistake within a few schedules."""
    mutant(monkeypatch)
    first = FIRST.get(mutant, 0)
    with pytest.raises(Violation):
        schedules(first, SEEDS)
