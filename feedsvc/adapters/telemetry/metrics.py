"""`ports.Metrics` as a Prometheus page.

Counters are counted where things happen. Gauges that are sizes of what exists (connections, tails, ...) are not kept
up to date: `on_scrape` takes the function that sets them, and it runs before each page is made.

A mistake in a name or label must not end a connection: outside of tests it is counted in
`feedsvc_metric_mistakes_total` and otherwise ignored; `strict` raises.
"""

from __future__ import annotations

import itertools
import platform
from collections.abc import Callable, Mapping

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from feedsvc import ports
from feedsvc.adapters.telemetry.metric_kinds import OTHER, Kind, Metric
from feedsvc.adapters.telemetry.metric_table import METRICS

_Family = Counter | Gauge | Histogram


class PrometheusMetrics:
    """All metrics of one process, on a registry of its own. Thread-safe as prometheus_client is.

    `version` goes into `feedsvc_build_info`. Unknown names, kinds and labels raise ValueError where `strict`.
    """

    def __init__(self, version: str, *, strict: bool = False) -> None:
        # Process-wide by the library's choice: the `_created` series double the page and mean nothing here.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._strict = strict
        self._registry = CollectorRegistry()
        self._refresh: Callable[[ports.Metrics], None] = lambda metrics: None
        self._families = {name: _family(metric, self._registry) for name, metric in METRICS.items()}
        self._known: dict[tuple[object, ...], _Family] = {}
        """By use, as the code names it: to check one takes longer than to count."""
        self._mistakes = Counter(
            "feedsvc_metric_mistakes", "Uses of a metric that is not declared.", registry=self._registry
        )
        info = Gauge("feedsvc_build_info", "Constant 1.", ("version", "python"), registry=self._registry)
        info.labels(version, platform.python_version()).set(1)
        prometheus_client.ProcessCollector(registry=self._registry)

    def on_scrape(self, refresh: Callable[[ports.Metrics], None]) -> None:
        """Take the one function that sets the gauges; every `render` calls it first, with these metrics."""
        self._refresh = refresh

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        family = self._find("counter", name, labels)
        if isinstance(family, Counter):
            family.inc(amount)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        family = self._find("gauge", name, labels)
        if isinstance(family, Gauge):
            family.set(value)

    def gauge_each(self, name: str, values: Mapping[str, float]) -> None:
        metric = METRICS.get(name)
        if metric is None or not metric.each:
            self._mistaken(f"{name!r} is no gauge of which each value is set")
            return
        family = self._families[name]
        family.clear()
        for value, number in values.items():
            child = family.labels(value)
            assert isinstance(child, Gauge)
            child.set(number)

    def observe(self, name: str, value: float, **labels: str) -> None:
        family = self._find("histogram", name, labels)
        if isinstance(family, Histogram):
            family.observe(value)

    def totals(self, name: str) -> dict[str, int]:
        """What a counter with one label has counted, by the label's value. ValueError for another metric."""
        metric = METRICS.get(name)
        if metric is None or metric.kind != "counter" or len(metric.labels) != 1:
            raise ValueError(f"{name!r} is no counter with one label")
        (label,) = metric.labels
        # Not by `get_sample_value` of the registry: that collects all that there is, for each value anew.
        samples = (sample for family in self._families[name].collect() for sample in family.samples)
        return {s.labels[label]: int(s.value) for s in samples if s.name == f"{metric.family}_total"}

    def render(self) -> tuple[bytes, str]:
        """The page and its content type (text format 0.0.4, which every scraper reads)."""
        self._refresh(self)
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4

    def _find(self, kind: Kind, name: str, labels: dict[str, str]) -> _Family | None:
        """The child for these labels; None where the use is a mistake."""
        use = (kind, name, *labels.items())
        known = self._known.get(use)
        if known is not None:
            return known
        try:
            values = _label_values(kind, name, labels)
        except ValueError as error:
            self._mistaken(str(error))
            return None
        family = self._families[name]
        child = family.labels(*values) if values else family
        if OTHER not in values:  # what stands for others, anybody may make up
            self._known[use] = child
        return child

    def _mistaken(self, why: str) -> None:
        if self._strict:
            raise ValueError(why)
        self._mistakes.inc()


def _label_values(kind: Kind, name: str, labels: dict[str, str]) -> list[str]:
    """The values in declared order, `other` for what an open set does not hold. Raises ValueError for a mistake."""
    metric = METRICS.get(name)
    if metric is None or metric.kind != kind:
        raise ValueError(f"there is no {kind} {name!r}")
    if labels.keys() != metric.labels.keys():
        raise ValueError(f"{name} has the labels {sorted(metric.labels)}, not {sorted(labels)}")
    values = []
    for label, allowed in metric.labels.items():
        value = labels[label]
        if value not in allowed:
            if OTHER not in allowed:
                raise ValueError(f"{name}: {value!r} is not a value of {label}")
            value = OTHER
        values.append(value)
    return values


def _family(metric: Metric, registry: CollectorRegistry) -> _Family:
    """A family with all its series, so that each starts at zero and not with its first increase."""
    family: _Family
    names = tuple(metric.labels)
    if metric.kind == "counter":
        family = Counter(metric.family, metric.help, names, registry=registry)
    elif metric.kind == "gauge":
        family = Gauge(metric.family, metric.help, names, registry=registry)
    else:
        family = Histogram(metric.family, metric.help, names, registry=registry, buckets=metric.buckets)
    if names and not metric.each:
        for values in itertools.product(*metric.labels.values()):
            family.labels(*values)
    return family
