"""What a scrape of the metrics gathers: sizes of what exists, and what would cost too much to count as it happens.

Linear in clients and subscriptions, below a microsecond for each, and nothing between two scrapes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping

from feedsvc.ports import Metrics
from feedsvc.runtime.admission import TenantLoad
from feedsvc.runtime.hub import Hub
from feedsvc.runtime.lifecycle import Lifecycle

REST = "(others)"
"""Stands for the tenants that are not named; none can have this name."""


class Measure:
    """Call it before each page of metrics."""

    def __init__(self, hub: Hub, lifecycle: Lifecycle) -> None:
        self._hub = hub
        self._lifecycle = lifecycle
        self._sent = (0, 0)

    def __call__(self, metrics: Metrics) -> None:
        hub, admission, limits = self._hub, self._hub.admission, self._hub.limits
        metrics.gauge("source_up", float(hub.deployment.answers))
        metrics.gauge("connections", admission.connections)
        metrics.gauge("waiting_sockets", admission.waiting)
        metrics.gauge("waiting_sockets_limit", limits.waiting_sockets)
        metrics.gauge("topics", admission.topics)
        metrics.gauge("snapshots_running", hub.snapshots.running)
        metrics.gauge("snapshots_waiting", hub.snapshots.waiting)
        self._tails(metrics)
        self._positions(metrics)
        self._tenants(metrics)
        self._traffic(metrics)

    def _tails(self, metrics: Metrics) -> None:
        hub = self._hub
        feeds = list(hub.feeds.values())
        metrics.gauge("tails", len(feeds))
        metrics.gauge("tails_limit", hub.limits.max_tails)
        metrics.gauge("catch_up_tails", sum(len(feed.placement.catch_ups) for feed in feeds))
        metrics.gauge("catch_ups_waiting", sum(feed.placement.queued for feed in feeds))
        metrics.gauge("subscriptions", sum(feed.placement.subscriptions for feed in feeds))
        metrics.gauge("tails_stalled", len(hub.stalls.in_use()))
        metrics.gauge("tail_lag_seconds", max((feed.lag_s() for feed in feeds), default=0.0))

    def _positions(self, metrics: Metrics) -> None:
        window_s, oldest = self._hub.window_seconds(), self._hub.oldest_position()
        age_s, used = (0, 0.0) if oldest is None else (oldest.age_seconds, oldest.used_ratio)
        metrics.gauge("oplog_window_seconds", math.nan if window_s is None else window_s)
        metrics.gauge("oldest_position_used_ratio", math.nan if window_s is None or used is None else used)
        metrics.gauge("oldest_position_age_seconds", age_s)

    def _tenants(self, metrics: Metrics) -> None:
        limits = self._hub.limits
        loads = self._hub.admission.tenants()
        most = max((load.connections for load in loads.values()), default=0)
        metrics.gauge("fullest_tenant_connections_ratio", most / limits.connections_per_tenant)
        most = max((load.topics for load in loads.values()), default=0)
        metrics.gauge("fullest_tenant_topics_ratio", most / limits.topics_per_tenant)
        named = bounded(loads, limits.metric_tenants)
        metrics.gauge_each("tenant_connections", {name: load.connections for name, load in named.items()})
        metrics.gauge_each("tenant_subscriptions", {name: load.subscriptions for name, load in named.items()})
        metrics.gauge_each("tenant_topics", {name: load.topics for name, load in named.items()})

    def _traffic(self, metrics: Metrics) -> None:
        before, self._sent = self._sent, self._lifecycle.sent()
        metrics.count("frames_sent", self._sent[0] - before[0])
        metrics.count("bytes_sent", self._sent[1] - before[1])


def bounded(loads: Mapping[str, TenantLoad], most: int) -> dict[str, TenantLoad]:
    """The `most` tenants with the most connections by name, and the sum of the others."""
    first = heapq.nsmallest(
        most, loads.items(), key=lambda item: (-item[1].connections, -item[1].topics, item[0])
    )
    named = dict(first)
    rest = [load for name, load in loads.items() if name not in named]
    named[REST] = TenantLoad(
        sum(load.connections for load in rest),
        sum(load.subscriptions for load in rest),
        sum(load.topics for load in rest),
    )
    return named
