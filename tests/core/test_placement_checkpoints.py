"""A checkpoint that is asked for at any moment: never before what is owed, never twice, and put off during a step."""

from __future__ import annotations

import itertools

import pytest

from feedsvc.core.placement import NotNow, Placement
from feedsvc.core.places import PlacementLimits
from feedsvc.core.positions import Position, boundary
from feedsvc.core.subscription import Subscription
from feedsvc.testing import MemoryConnection
from tests.support.placements import SomeOutlet, SomeTopic, build, change, record

_START = boundary(100)
_NEXT = boundary(200)


def _placement(topics: int, direct: bool) -> tuple[Placement, dict[Subscription, SomeOutlet]]:
    """A live tail with one subscription to each topic."""
    placement = Placement(PlacementLimits(), build, MemoryConnection.write_each)
    placement.live_opened(_START)
    outlets = [SomeOutlet(direct=direct) for _ in range(topics)]
    subscriptions = {
        Subscription(SomeTopic(name=str(number)), outlet, None): outlet
        for number, outlet in enumerate(outlets)
    }
    for subscription in subscriptions:
        placement.attach(subscription)
    for outlet in outlets:
        assert outlet.taken == [b"subscribed", b"live"]
        outlet.taken.clear()
    return placement, subscriptions


def _read(placement: Placement, times: range, last: Position | None) -> None:
    assert placement.live is not None
    for _ in placement.batch(placement.live, list(map(change, times)), last):
        pass


@pytest.mark.parametrize("direct", [True, False])
def test_a_head_is_told_once(direct: bool) -> None:
    """What `subscribed` or an event has told is no news."""
    placement, subscriptions = _placement(1, direct)
    (subscription,) = subscriptions
    assert placement.checkpoint_now(subscription) is None
    _read(placement, range(110, 112), None)
    assert placement.checkpoint_now(subscription) is None
    _read(placement, range(0), _NEXT)
    assert placement.checkpoint_now(subscription) is _NEXT
    assert placement.checkpoint_now(subscription) is None
    assert subscriptions[subscription].taken == [b"event 110", b"event 111"]


@pytest.mark.parametrize("direct", [True, False])
def test_whatever_the_moment_of_a_step(direct: bool) -> None:
    """The head moves before the frames of the last topics are in their logs: there is nothing to tell at once, and what
    is told at the end of the step stands behind all of it."""
    told: list[Position] = []
    for moment in itertools.count(1):
        placement, subscriptions = _placement(3, direct)
        assert placement.live is not None
        step = placement.batch(placement.live, list(map(change, range(110, 112))), None)
        if len(list(itertools.islice(step, moment))) < moment:
            break
        for subscription in subscriptions:
            assert placement.checkpoint_now(subscription) is NotNow.NOT_NOW
            placement.checkpoint(subscription, lambda _, position: told.append(position))
        for _ in step:
            pass
        for subscription, outlet in subscriptions.items():
            subscription.settle()
            assert outlet.taken == [b"event 110", b"event 111"]
            assert subscription.told == record(111)
        assert not told  # by the last event
    assert moment > 6


@pytest.mark.parametrize("direct", [True, False])
def test_not_to_one_that_is_owed_something(direct: bool) -> None:
    """A connection without room is told nothing, and afterwards it is told behind what it was owed."""
    placement, subscriptions = _placement(1, direct)
    ((subscription, outlet),) = subscriptions.items()
    outlet.connection.on_room(lambda: None)
    outlet.connection.set_writable(False)
    _read(placement, range(110, 112), _NEXT)
    told: list[Position] = []
    assert placement.checkpoint_now(subscription) is NotNow.NOT_NOW
    placement.checkpoint(subscription, lambda _, position: told.append(position))
    assert not told and not outlet.taken
    outlet.connection.set_writable(True)
    placement.writable(subscription)
    assert outlet.taken == [b"event 110", b"event 111"]
    assert placement.checkpoint_now(subscription) is _NEXT


@pytest.mark.parametrize("direct", [True, False])
def test_not_to_one_that_is_full_though_it_is_owed_nothing(direct: bool) -> None:
    """Who takes nothing is not beaten into: it is told once it has room."""
    placement, subscriptions = _placement(1, direct)
    ((subscription, outlet),) = subscriptions.items()
    outlet.connection.set_writable(False)
    _read(placement, range(0), _NEXT)
    assert placement.checkpoint_now(subscription) is NotNow.NOT_NOW
    outlet.connection.set_writable(True)
    placement.writable(subscription)
    assert placement.checkpoint_now(subscription) is _NEXT


def test_one_that_fell_out_of_lockstep_is_taken_back() -> None:
    """The short way is for those who are in lockstep or never can be: any other is pumped, which takes it back."""
    placement, subscriptions = _placement(1, direct=True)
    (subscription,) = subscriptions
    subscription.full()
    assert placement.checkpoint_now(subscription) is NotNow.NOT_NOW
    placement.checkpoint(subscription, lambda _, position: None)
    assert subscription.lockstep is not None
