"""Admission: counts of what is bounded across connections, per process and per tenant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from feedsvc.core.errors import Refusal
from feedsvc.core.limits import Limits

_RETRY_AFTER_MS = 10_000


class Admission:
    """Every `admit` and `enter` is paired with its opposite; what is over a limit is refused with a registry code."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._connections: Counter[str] = Counter()
        self._topics: dict[str, Counter[Hashable]] = {}
        self.waiting = 0
        """Sockets that were accepted without credentials and have shown none yet."""

    @property
    def connections(self) -> int:
        return sum(self._connections.values())

    @property
    def topics(self) -> int:
        """Distinct topics of all tenants."""
        return sum(map(len, self._topics.values()))

    def wait(self) -> None:
        """A socket without credentials. Raises `Refusal('connection_limit')`."""
        if self.waiting >= self._limits.waiting_sockets:
            message = "too many sockets wait for credentials; send them with the upgrade or come later"
            raise Refusal("connection_limit", message, retry_after_ms=_RETRY_AFTER_MS)
        self.waiting += 1

    def waited(self) -> None:
        self.waiting -= 1

    def admit(self, tenant: str) -> None:
        """A connection was authenticated. Raises `Refusal('tenant_quota')`."""
        limit = self._limits.connections_per_tenant
        if self._connections[tenant] >= limit:
            message = f"the tenant holds {limit} connections, the most it may"
            raise Refusal("tenant_quota", message, retry_after_ms=_RETRY_AFTER_MS)
        self._connections[tenant] += 1

    def leave(self, tenant: str) -> None:
        self._connections[tenant] -= 1
        if not self._connections[tenant]:
            del self._connections[tenant]

    def enter(self, tenant: str, topic: Hashable) -> None:
        """A subscription to a topic. Raises `Refusal('topic_limit')` where it would be one distinct topic too many."""
        topics = self._topics.get(tenant)
        if topics is None:
            topics = self._topics[tenant] = Counter()
        limit = self._limits.topics_per_tenant
        if topic not in topics and len(topics) >= limit:
            raise Refusal("topic_limit", f"the tenant holds {limit} topics, the most it may")
        topics[topic] += 1

    def exit(self, tenant: str, topic: Hashable) -> None:
        topics = self._topics[tenant]
        topics[topic] -= 1
        if not topics[topic]:
            del topics[topic]
        if not topics:
            del self._topics[tenant]
