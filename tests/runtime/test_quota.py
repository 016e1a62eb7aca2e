"""A quota fills steadily, for each tenant by itself, and is forgotten when it is full."""

from __future__ import annotations

import pytest

from feedsvc.core.errors import Refusal
from feedsvc.runtime.quota import Quota


def spent(quota: Quota, tenant: str, now: float) -> int:
    """How many are given at this time."""
    for number in range(1000):
        try:
            quota.spend(tenant, now)
        except Refusal:
            return number
    raise AssertionError("without bound")


def test_a_minutes_worth_at_once_and_then_at_the_pace() -> None:
    quota = Quota(60)
    assert spent(quota, "a", 0) == 60
    assert spent(quota, "a", 0.5) == 0
    assert spent(quota, "a", 1.5) == 1
    assert spent(quota, "a", 11.5) == 10
    assert spent(quota, "a", 1000) == 60


def test_tenants_do_not_share() -> None:
    quota = Quota(3)
    assert spent(quota, "a", 0) == 3
    assert spent(quota, "b", 0) == 3


def test_a_refusal_says_when_the_next_is_given_and_costs_nothing() -> None:
    quota = Quota(6)
    spent(quota, "a", 100)
    assert spent(quota, "a", 104) == 0
    with pytest.raises(Refusal) as caught:
        quota.spend("a", 104)
    assert caught.value.code == "rate_limited"
    assert caught.value.retry_after_ms == 6000
    quota.spend("a", 110)


def test_full_buckets_are_forgotten() -> None:
    """Each tenant that ever asked would be a leak."""
    quota = Quota(60)
    for number in range(1000):
        quota.spend(f"tenant-{number}", number)
    assert len(quota._empty_at) < 5
