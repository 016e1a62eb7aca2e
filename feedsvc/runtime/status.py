"""What `GET /v1/status` tells, gathered when it is asked: linear in tails and tenants, and in subscriptions for the one
figure of `runtime.oldest`."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from feedsvc.core.status import (
    MOST_TENANTS,
    OplogStatus,
    RecentError,
    ScopeStatus,
    Status,
    TailStatus,
    TenantStatus,
    kind_of,
)
from feedsvc.ports import Clock
from feedsvc.runtime.hub import Hub
from feedsvc.runtime.lifecycle import Lifecycle

Totals = Callable[[str], Mapping[str, int]]
"""What a counter with one label has counted since the start, by the label's value."""


class StatusReport:
    """Create it at the start: uptime counts from there. `errors` returns the last warnings and errors of the log."""

    def __init__(
        self,
        hub: Hub,
        lifecycle: Lifecycle,
        clock: Clock,
        totals: Totals,
        errors: Callable[[], Sequence[RecentError]],
        version: str,
    ) -> None:
        self._hub = hub
        self._lifecycle = lifecycle
        self._clock = clock
        self._totals = totals
        self._errors = errors
        self._version = version
        self._started = clock.monotonic()
        self._started_at_ms = int(clock.wall() * 1000)

    def __call__(self) -> Status:
        hub, admission = self._hub, self._hub.admission
        tails = self._tails()
        tenants = admission.tenants()
        return Status(
            version=self._version,
            started_at_ms=self._started_at_ms,
            uptime_seconds=int(self._clock.monotonic() - self._started),
            state=self._state(),
            source_error=kind_of(hub.deployment.failure),
            connections=admission.connections,
            waiting_sockets=admission.waiting,
            subscriptions=sum(tail.subscriptions for tail in tails),
            topics=admission.topics,
            snapshots_running=hub.snapshots.running,
            snapshots_waiting=hub.snapshots.waiting,
            max_tails=hub.limits.max_tails,
            tails=tails,
            resyncs=dict(self._totals("resyncs")),
            tail_errors=dict(self._totals("tail_errors")),
            closes={code: count for code, count in self._totals("closes").items() if count},
            catch_ups_opened=sum(self._totals("catch_ups_opened").values()),
            oplog=OplogStatus(hub.window_seconds(), hub.window_seconds(exact=True)),
            oldest_position=hub.oldest_position(),
            recent_errors=list(self._errors()),
            tenant_count=len(tenants),
            tenants=[
                TenantStatus(tenant, load.connections, load.subscriptions, load.topics)
                for tenant, load in heapq.nlargest(MOST_TENANTS, tenants.items(), key=lambda item: item[1])
            ],
        )

    def _state(self) -> Literal["starting", "serving", "draining"]:
        if self._lifecycle.leaving:
            return "draining"
        return "serving" if self._hub.deployment.identified.is_set() else "starting"

    def _tails(self) -> list[TailStatus]:
        now, stalled = self._clock.monotonic(), set(self._hub.stalls.in_use())
        return [
            TailStatus(
                scope=ScopeStatus(scope.level, scope.database, scope.collection),
                opened=feed.opened.is_set(),
                lag_ms=int(feed.lag_s() * 1000),
                stalled=scope in stalled,
                error=kind_of(feed.live.health.error),
                subscriptions=feed.placement.subscriptions,
                catch_ups=len(feed.placement.catch_ups),
                waiting=feed.placement.queued,
                idle_seconds=None if feed.idle_since is None else int(feed.idle_s(now)),
            )
            for scope, feed in self._hub.feeds.items()
        ]
