"""Admission: counts of what is bounded across connections, per process and per tenant."""

from __future__ import annotations

from collections import Counter

import msgspec

from feedsvc.core.changes import Namespace
from feedsvc.core.errors import Refusal
from feedsvc.core.limits import Limits
from feedsvc.core.match_load import MatchLoad
from feedsvc.core.topics import Topic
from feedsvc.runtime.quota import Quota

_RETRY_AFTER_MS = 10_000


class TenantLoad(msgspec.Struct, frozen=True, order=True):
    """What one tenant holds. `topics` are distinct."""

    connections: int
    subscriptions: int
    topics: int


class Admission:
    """Every `admit` and `enter` is paired with its opposite; what is over a limit is refused with a registry code."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._connections: Counter[str] = Counter()
        self._upgrades = Quota(limits.upgrades_per_minute)
        self._topics: dict[str, Counter[Topic]] = {}
        self._loads: dict[tuple[str, Namespace], MatchLoad] = {}
        self.waiting = 0
        """Sockets that were accepted without credentials and have shown none yet."""

    @property
    def connections(self) -> int:
        return sum(self._connections.values())

    @property
    def topics(self) -> int:
        """Distinct topics of all tenants."""
        return sum(map(len, self._topics.values()))

    def tenants(self) -> dict[str, TenantLoad]:
        """What each tenant holds that holds anything: linear in topics."""
        none: Counter[Topic] = Counter()
        return {
            tenant: TenantLoad(
                self._connections[tenant],
                self._topics.get(tenant, none).total(),
                len(self._topics.get(tenant, none)),
            )
            for tenant in self._connections.keys() | self._topics.keys()
        }

    def wait(self) -> None:
        """A socket without credentials. Raises `Refusal('connection_limit')`."""
        if self.waiting >= self._limits.waiting_sockets:
            message = "too many sockets wait for credentials; send them with the upgrade or come later"
            raise Refusal("connection_limit", message, retry_after_ms=_RETRY_AFTER_MS)
        self.waiting += 1

    def waited(self) -> None:
        self.waiting -= 1

    def check_pace(self, tenant: str, now: float) -> None:
        """Before an upgrade is accepted: raises `Refusal('rate_limited')` where `admit` would, and counts nothing."""
        self._upgrades.check(tenant, now)

    def admit(self, tenant: str, now: float) -> None:
        """A connection was authenticated. Raises `Refusal`: `rate_limited` where the tenant opens too many, one after
        another, `tenant_quota` where it holds too many."""
        self._upgrades.spend(tenant, now)
        limit = self._limits.connections_per_tenant
        if self._connections[tenant] >= limit:
            message = f"the tenant holds {limit} connections, the most it may"
            raise Refusal("tenant_quota", message, retry_after_ms=_RETRY_AFTER_MS)
        self._connections[tenant] += 1

    def leave(self, tenant: str) -> None:
        self._connections[tenant] -= 1
        if not self._connections[tenant]:
            del self._connections[tenant]

    def enter(self, tenant: str, topic: Topic) -> None:
        """A subscription to a topic. Raises `Refusal('topic_limit')` where it would be one distinct topic too many, or
        one whose filter each change of its collection would have to be asked about in vain too often."""
        topics = self._topics.get(tenant, Counter())
        if topic not in topics:
            limit = self._limits.topics_per_tenant
            if len(topics) >= limit:
                raise Refusal("topic_limit", f"the tenant holds {limit} topics, the most it may")
            self._load(tenant, topic)
        topics[topic] += 1
        self._topics[tenant] = topics

    def exit(self, tenant: str, topic: Topic) -> None:
        topics = self._topics[tenant]
        topics[topic] -= 1
        if topics[topic]:
            return
        del topics[topic]
        if not topics:
            del self._topics[tenant]
        self._unload(tenant, topic)

    def _load(self, tenant: str, topic: Topic) -> None:
        key = (tenant, topic.namespace)
        load = self._loads.setdefault(key, MatchLoad())
        before = load.conditions
        load.add(topic)
        # What costs nothing is never refused, however full the tenant is.
        if before < load.conditions > self._limits.conditions_per_change:
            self._unload(tenant, topic)
            raise Refusal(
                "topic_limit",
                "the tenant's filters on this collection take too long for each change; compare a field with $eq "
                "or $in, which costs nothing, or hold fewer topics",
            )
        if not load:
            del self._loads[key]

    def _unload(self, tenant: str, topic: Topic) -> None:
        key = (tenant, topic.namespace)
        load = self._loads.get(key)
        if load is not None:
            load.remove(topic)
            if not load:
                del self._loads[key]
