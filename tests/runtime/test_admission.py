"""Admission: counts per process and tenant, and that every entry has its exit."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedsvc.core.changes import Namespace
from feedsvc.core.errors import Refusal
from feedsvc.core.limits import Limits
from feedsvc.core.matcher import plan
from feedsvc.core.messages import TopicRequest
from feedsvc.core.policy import Grant
from feedsvc.core.topics import Topic, effective_topic
from feedsvc.runtime.admission import Admission

LIMITS = Limits(connections_per_tenant=2, topics_per_tenant=2, waiting_sockets=2)


def topic(filter: dict[str, Any], collection: str = "orders", tenant: str = "acme") -> Topic:
    grant = Grant(tenant, "app", collection, {}, {}, False)
    return effective_topic(grant, TopicRequest(collection, filter=filter), images=True)


TOPICS = {name: topic({"name": name}) for name in "abc"}


def test_waiting_sockets_are_bounded_in_all() -> None:
    """They have no tenant to charge; one that shows credentials or goes makes room."""
    admission = Admission(LIMITS)
    admission.wait()
    admission.wait()
    with pytest.raises(Refusal) as caught:
        admission.wait()
    assert (caught.value.code, caught.value.retry_after_ms) == ("connection_limit", 10_000)
    admission.waited()
    admission.wait()
    assert admission.waiting == 2


def test_connections_are_bounded_per_tenant() -> None:
    """One tenant's connections cost another nothing, and the message repeats no tenant."""
    admission = Admission(LIMITS)
    admission.admit("acme", 0)
    admission.admit("acme", 0)
    with pytest.raises(Refusal) as caught:
        admission.admit("acme", 0)
    assert (caught.value.code, caught.value.retry_after_ms) == ("tenant_quota", 10_000)
    assert "acme" not in caught.value.message
    admission.admit("globex", 0)
    assert admission.connections == 3
    admission.leave("acme")
    admission.admit("acme", 0)


def test_distinct_topics_are_bounded_per_tenant() -> None:
    """However many subscriptions share one; the last to go makes room."""
    admission = Admission(LIMITS)
    a, b, c = TOPICS.values()
    for held in (a, b, a, b, a):
        admission.enter("acme", held)
    with pytest.raises(Refusal) as caught:
        admission.enter("acme", c)
    assert caught.value.code == "topic_limit"
    admission.enter("globex", c)
    admission.exit("acme", b)
    with pytest.raises(Refusal):
        admission.enter("acme", c)
    admission.exit("acme", b)
    admission.enter("acme", c)
    assert admission.topics == 3


def test_filters_that_every_change_is_asked_are_bounded_per_tenant_and_collection() -> None:
    """What would go over is refused with what to do about it, and leaves nothing behind; equalities always fit."""
    admission = Admission(Limits(conditions_per_change=4))
    ranges = [topic({"v": {"$gt": n}}) for n in range(3)]
    for held in (*ranges[:2], ranges[0]):
        admission.enter("acme", held)
    for _ in range(2):
        with pytest.raises(Refusal) as caught:
            admission.enter("acme", ranges[2])
        assert caught.value.code == "topic_limit"
        assert "$eq or $in" in caught.value.message
    admission.enter("acme", TOPICS["a"])
    admission.enter("acme", topic({"v": {"$gt": 2}}, "users"))
    admission.enter("globex", topic({"v": {"$gt": 2}}, tenant="globex"))
    admission.exit("acme", ranges[0])
    with pytest.raises(Refusal):
        admission.enter("acme", ranges[2])
    admission.exit("acme", ranges[0])
    admission.enter("acme", ranges[2])
    for held in (ranges[1], ranges[2], TOPICS["a"]):
        admission.exit("acme", held)
    assert list(admission._loads) == [
        ("acme", Namespace("app", "users")),
        ("globex", Namespace("app", "orders")),
    ]


def test_ten_thousand_ranges_fit() -> None:
    """The default is some 10 ms of each change, which is 10,000 topics with two conditions on both images."""
    cost = plan(topic({"v": {"$gte": 1, "$lt": 2}})).cost
    assert Limits().conditions_per_change == 10_000 * cost


@given(
    st.lists(
        st.tuples(st.booleans(), st.booleans(), st.sampled_from(["acme", "globex"]), st.sampled_from("abc"))
    )
)
def test_counts_are_those_of_a_naive_model(steps: list[tuple[bool, bool, str, str]]) -> None:
    """Under any order of entries and exits; and what is empty leaves nothing behind."""
    admission = Admission(LIMITS)
    connections: Counter[str] = Counter()
    topics: Counter[tuple[str, str]] = Counter()
    for enters, is_topic, tenant, topic in steps:
        if not is_topic and enters:
            try:
                admission.admit(tenant, 0)
                connections[tenant] += 1
            except Refusal:
                assert connections[tenant] == 2
        elif not is_topic and connections[tenant]:
            admission.leave(tenant)
            connections[tenant] -= 1
        elif is_topic and enters:
            try:
                admission.enter(tenant, TOPICS[topic])
                topics[tenant, topic] += 1
            except Refusal:
                assert (
                    len(
                        {name for (owner, name), held in topics.items() if held and owner == tenant} - {topic}
                    )
                    == 2
                )
        elif is_topic and topics[tenant, topic]:
            admission.exit(tenant, TOPICS[topic])
            topics[tenant, topic] -= 1
        assert admission.connections == connections.total()
        assert admission.topics == sum(1 for held in topics.values() if held)
    for tenant, held in connections.items():
        for _ in range(held):
            admission.leave(tenant)
    for (tenant, topic), held in topics.items():
        for _ in range(held):
            admission.exit(tenant, TOPICS[topic])
    assert not admission._connections
    assert not admission._topics
    assert not admission._loads
