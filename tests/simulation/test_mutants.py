"""A check that notices nothing proves nothing: each known mistake must be caught."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.test_simulation import schedules
from tests.simulation.world import Violation

SEEDS = 300


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mistake_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation notices this mistake within a few schedules."""
    mutant(monkeypatch)
    with pytest.raises(Violation):
        schedules(0, SEEDS)
