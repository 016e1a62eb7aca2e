"""The pace of one connection: which frames it counts, and how."""

from __future__ import annotations

from feedsvc.core.limits import Limits
from feedsvc.core.messages import Auth, Ping, Subscribe, TopicRequest, Unsubscribe
from feedsvc.core.pacing import Pacing

LIMITS = Limits(
    subscriptions_per_connection=3, requests_spare=2, requests_per_second=10, refused_per_minute=60
)
SUBSCRIBE = Subscribe("s", TopicRequest("orders"))


def passed(pacing: Pacing, frame: object, now: float) -> int:
    """How many of them pass at this time, of a thousand."""
    return sum(not pacing.wait_ms(frame, now) for _ in range(1_000))


def test_as_many_at_once_as_a_connection_may_hold_and_some_to_spare() -> None:
    pacing = Pacing(LIMITS)
    assert passed(pacing, SUBSCRIBE, 100) == 5
    assert pacing.wait_ms(Unsubscribe("t"), 100) == 100
    assert passed(pacing, Unsubscribe("t"), 100.25) == 2


def test_ten_pings_count_as_one_request() -> None:
    pacing = Pacing(LIMITS)
    assert passed(pacing, Ping(), 100) == 50
    assert pacing.wait_ms(SUBSCRIBE, 100) == 100


def test_what_has_a_bound_of_its_own_is_not_counted() -> None:
    pacing = Pacing(LIMITS)
    assert passed(pacing, Auth("j"), 100) == passed(pacing, "malformed", 100) == 1_000
    assert passed(pacing, SUBSCRIBE, 100) == 5


def test_refusals_are_bounded_too() -> None:
    pacing = Pacing(LIMITS)
    assert [pacing.may_refuse(5) for _ in range(61)] == [True] * 60 + [False]
    assert pacing.may_refuse(6.5)


def test_a_full_connection_can_subscribe_to_all_it_may_hold_without_waiting() -> None:
    """After a reconnect: the burst fits into what may wait behind the first of them."""
    limits = Limits()
    assert passed(Pacing(limits), SUBSCRIBE, 0) >= limits.subscriptions_per_connection
    assert limits.subscriptions_per_connection + limits.requests_spare <= limits.pending_frames
