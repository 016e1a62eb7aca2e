"""The load of a tenant's topics on a change: what is scanned adds up, what look-ups tell apart does not."""

from __future__ import annotations

import random
from typing import Any

import pytest

from feedsvc.core.match_load import MatchLoad
from feedsvc.core.matcher import plan
from feedsvc.core.topics import Topic
from tests.core.match_cases import Draw, topic

RANGE: dict[str, Any] = {"$gt": 5, "$lt": 9}


def load_of(*filters: dict[str, Any]) -> int:
    load = MatchLoad()
    for wanted in filters:
        load.add(topic(wanted))
    return load.conditions


def test_equalities_cost_nothing() -> None:
    """A hash look-up says all of them, and a topic without a filter is never asked in vain."""
    assert load_of({}, *({"a": n, "b": {"$in": [n, n + 1]}} for n in range(50))) == 0


def test_what_is_scanned_adds_up() -> None:
    """Each range is asked of both images of every update."""
    assert load_of(*({"a": {"$gt": n}} for n in range(50))) == 100


def test_of_what_look_ups_tell_apart_the_dearest_counts() -> None:
    """One document has one value for a path: 50 values with a range each cost what one costs; 50 at one value, all."""
    apart = [{"a": n, "v": RANGE} for n in range(50)]
    assert load_of(*apart) == load_of(apart[0]) == 6
    assert load_of(*({"a": 1, "v": {"$gt": n, "$lt": n + 1}} for n in range(50))) == 300
    other = {"b": 1, "v": RANGE}
    assert load_of(*apart, other) == 12


@pytest.mark.parametrize("seed", range(20))
def test_what_was_added_can_be_removed_in_any_order(seed: int) -> None:
    """The load is that of the topics that are left, and nothing is kept of the others."""
    draw, load = Draw(seed), MatchLoad()
    topics = list({draw.topic(): None for _ in range(30)})
    for one in topics:
        load.add(one)
    random.Random(seed).shuffle(topics)
    while topics:
        load.remove(topics.pop())
        left = MatchLoad()
        for one in topics:
            left.add(one)
        assert load.conditions == left.conditions
    assert not load


def costs(one: Topic) -> tuple[bool, int]:
    return plan(one).scanned, plan(one).cost


def test_what_a_change_may_cost_in_vain() -> None:
    """Without images and policy filter an update is told anyhow; a delete has one image; `fields` cost nothing."""
    wanted = {"v": RANGE}
    assert costs(topic(wanted)) == (True, 4)
    assert costs(topic(wanted, operations=["insert", "delete"])) == (True, 2)
    assert costs(topic(wanted, images=False)) == (True, 2)
    assert costs(topic(wanted, images=False, operations=["update"])) == (True, 0)
    assert costs(topic(wanted, images=False, policy={"t": 1})) == (False, 3)
