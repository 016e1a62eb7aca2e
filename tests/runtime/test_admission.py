"""Admission: counts per process and tenant, and that every entry has its exit."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedsvc.core.errors import Refusal
from feedsvc.core.limits import Limits
from feedsvc.runtime.admission import Admission

LIMITS = Limits(connections_per_tenant=2, topics_per_tenant=2, waiting_sockets=2)


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
    admission.admit("acme")
    admission.admit("acme")
    with pytest.raises(Refusal) as caught:
        admission.admit("acme")
    assert (caught.value.code, caught.value.retry_after_ms) == ("tenant_quota", 10_000)
    assert "acme" not in caught.value.message
    admission.admit("globex")
    assert admission.connections == 3
    admission.leave("acme")
    admission.admit("acme")


def test_distinct_topics_are_bounded_per_tenant() -> None:
    """However many subscriptions share one; the last to go makes room."""
    admission = Admission(LIMITS)
    for topic in ("a", "b", "a", "b", "a"):
        admission.enter("acme", topic)
    with pytest.raises(Refusal) as caught:
        admission.enter("acme", "c")
    assert caught.value.code == "topic_limit"
    admission.enter("globex", "c")
    admission.exit("acme", "b")
    with pytest.raises(Refusal):
        admission.enter("acme", "c")
    admission.exit("acme", "b")
    admission.enter("acme", "c")
    assert admission.topics == 3


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
                admission.admit(tenant)
                connections[tenant] += 1
            except Refusal:
                assert connections[tenant] == 2
        elif not is_topic and connections[tenant]:
            admission.leave(tenant)
            connections[tenant] -= 1
        elif is_topic and enters:
            try:
                admission.enter(tenant, topic)
                topics[tenant, topic] += 1
            except Refusal:
                assert (
                    len(
                        {name for (owner, name), held in topics.items() if held and owner == tenant} - {topic}
                    )
                    == 2
                )
        elif is_topic and topics[tenant, topic]:
            admission.exit(tenant, topic)
            topics[tenant, topic] -= 1
        assert admission.connections == connections.total()
        assert admission.topics == sum(1 for held in topics.values() if held)
    for tenant, held in connections.items():
        for _ in range(held):
            admission.leave(tenant)
    for (tenant, topic), held in topics.items():
        for _ in range(held):
            admission.exit(tenant, topic)
    assert not admission._connections
    assert not admission._topics
