"""What a metric is made of, and the sets from which labels take their values.

A label's values are known here, so that no client can make series: codes come from the error registry, reasons from the
protocol. The one exception is `tenant`, whose values the scrape bounds (`runtime.measure`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import msgspec

from feedsvc.core.changes import ScopeLevel
from feedsvc.core.errors import REGISTRY
from feedsvc.core.messages import ResyncReason

Kind = Literal["counter", "gauge", "histogram"]

OTHER = "other"
"""Stands for every value outside an open set."""

CODES = tuple(REGISTRY)
RESYNC_REASONS: tuple[str, ...] = get_args(ResyncReason)
SCOPE_LEVELS: tuple[str, ...] = get_args(ScopeLevel)
_RFC_CLOSE_CODES = (1000, 1001, 1002, 1003, 1005, 1006, 1007, 1009, 1011, 1012)
"""RFC 6455 section 7.4.1 and what stands for no code at all; a peer may send any other."""
_OUR_CLOSE_CODES = sorted({entry.close_code for entry in REGISTRY.values() if entry.close_code is not None})
CLOSE_CODES = (*map(str, (*_RFC_CLOSE_CODES, *_OUR_CLOSE_CODES)), OTHER)
SOURCE_ERRORS = (
    "SourceUnavailable",
    "PositionLost",
    "EventUnavailable",
    "SourceRefused",
    "SourceError",
    OTHER,
)
TAILS = ("live", "catch_up")
STEP_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metric(msgspec.Struct, frozen=True):
    """`name` is the code's. `labels`: label to its possible values; where `other` is one, all else counts as it.

    `each`: a gauge with one label whose values are set together, at each scrape. `exported` is the name on the page
    without the prefix `feedsvc_` and the suffix `_total`, where Prometheus' rules of naming ask for another order of
    words than the code. `advice`: what an operator does about it, for docs/metrics.md.
    """

    name: str
    kind: Kind
    help: str
    advice: str
    labels: Mapping[str, tuple[str, ...]] = {}
    buckets: tuple[float, ...] = ()
    exported: str = ""
    each: bool = False

    @property
    def family(self) -> str:
        return f"feedsvc_{self.exported or self.name}"

    @property
    def page_name(self) -> str:
        """As rules and dashboards write it; a histogram has `_bucket`, `_sum` and `_count` behind it."""
        return f"{self.family}_total" if self.kind == "counter" else self.family

    @property
    def unit(self) -> str:
        """By Prometheus' convention the name says it."""
        words = self.family.split("_")
        return next((unit for unit in ("seconds", "bytes", "ratio") if unit in words), "count")


def counter(name: str, text: str, advice: str, exported: str = "", **labels: tuple[str, ...]) -> Metric:
    return Metric(name, "counter", text, advice, labels, exported=exported)


def gauge(name: str, text: str, advice: str) -> Metric:
    return Metric(name, "gauge", text, advice)


def by_tenant(name: str, text: str, advice: str) -> Metric:
    return Metric(name, "gauge", text, advice, {"tenant": ()}, each=True)


def per_step(name: str, text: str, advice: str) -> Metric:
    return Metric(name, "histogram", text, advice, {"tail": TAILS}, STEP_BUCKETS_S)
