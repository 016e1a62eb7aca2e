"""Metrics are declared once, named by Prometheus' rules, bounded in their labels, and used as declared."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import REGISTRY as GLOBAL_REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from feedsvc.adapters.telemetry.metric_kinds import OTHER
from feedsvc.adapters.telemetry.metric_table import METRICS
from feedsvc.adapters.telemetry.metrics import PrometheusMetrics
from feedsvc.core.errors import REGISTRY

PACKAGE = Path(__file__).parents[2] / "feedsvc"
MOST_SERIES = 40


def used(method: str) -> set[str]:
    """Names of metrics in calls like `metrics.count("name"` anywhere in the package."""
    call = re.compile(rf"metrics\s*\.(?:{method})\(\s*\"([a-z_]+)\"")
    return {name for path in PACKAGE.rglob("*.py") for name in call.findall(path.read_text(encoding="utf-8"))}


def page(metrics: PrometheusMetrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    body, _ = metrics.render()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


@pytest.mark.parametrize(
    ("method", "kind"), [("count", "counter"), ("gauge|gauge_each", "gauge"), ("observe", "histogram")]
)
def test_the_source_uses_what_the_table_declares_and_nothing_else(method: str, kind: str) -> None:
    assert used(method) == {metric.name for metric in METRICS.values() if metric.kind == kind}


def test_names_and_labels_are_few_and_follow_the_rules() -> None:
    for metric in METRICS.values():
        assert re.fullmatch(r"feedsvc_[a-z][a-z_]*[a-z]", metric.family), metric.name
        assert not metric.family.endswith("_total"), "prometheus_client adds it to counters"
        assert metric.help.endswith(".") and metric.advice.endswith(".")
        series = 1
        for values in metric.labels.values():
            assert len(set(values)) == len(values)
            series *= len(values)
        assert series <= MOST_SERIES, f"{metric.name} has {series} series"


def test_counters_start_at_zero_with_every_label_and_count() -> None:
    metrics = PrometheusMetrics("1.2.3", strict=True)
    before = page(metrics)
    for code in REGISTRY:
        assert before["feedsvc_errors_sent_total", (("code", code),)] == 0
    metrics.count("errors_sent", code="forbidden")
    metrics.count("errors_sent", 2, code="forbidden")
    metrics.count("bytes_sent", 500)
    after = page(metrics)
    assert after["feedsvc_errors_sent_total", (("code", "forbidden"),)] == 3
    assert after["feedsvc_sent_bytes_total", ()] == 500


def test_gauges_are_set() -> None:
    metrics = PrometheusMetrics("1.2.3", strict=True)
    metrics.gauge("connections", 7)
    metrics.gauge("connections", 5)
    assert page(metrics)["feedsvc_connections", ()] == 5


def test_gauges_are_refreshed_before_each_page() -> None:
    metrics = PrometheusMetrics("1.2.3", strict=True)
    sizes = iter((3, 4))
    metrics.on_scrape(lambda port: port.gauge("topics", next(sizes)))
    assert [page(metrics)["feedsvc_topics", ()] for _ in range(2)] == [3, 4]


def test_a_gauge_of_each_value_forgets_those_that_are_left_out() -> None:
    metrics = PrometheusMetrics("1.2.3", strict=True)
    metrics.gauge_each("tenant_topics", {"acme": 3, "globex": 1})
    metrics.gauge_each("tenant_topics", {"globex": 2, "initech": 0})
    found = {
        labels: value for (name, labels), value in page(metrics).items() if name == "feedsvc_tenant_topics"
    }
    assert found == {(("tenant", "globex"),): 2, (("tenant", "initech"),): 0}


@pytest.mark.parametrize("name", ["no_such_metric", "connections", "errors_sent"])
def test_another_metric_cannot_be_set_for_each_value(name: str) -> None:
    with pytest.raises(ValueError):
        PrometheusMetrics("1", strict=True).gauge_each(name, {"a": 1})
    lenient = PrometheusMetrics("1")
    lenient.gauge_each(name, {"a": 1})
    assert page(lenient)["feedsvc_metric_mistakes_total", ()] == 1


def test_a_histogram_has_its_buckets_for_every_label() -> None:
    metrics = PrometheusMetrics("1", strict=True)
    metrics.observe("match_seconds", 0.003, tail="live")
    series = page(metrics)
    assert series["feedsvc_match_seconds_bucket", (("le", "0.005"), ("tail", "live"))] == 1
    assert series["feedsvc_match_seconds_bucket", (("le", "0.0025"), ("tail", "live"))] == 0
    assert series["feedsvc_match_seconds_count", (("tail", "catch_up"),)] == 0


def test_the_page_tells_the_build_and_the_process() -> None:
    series = page(PrometheusMetrics("1.2.3"))
    assert any(name == "feedsvc_build_info" and ("version", "1.2.3") in labels for name, labels in series)
    assert series["process_open_fds", ()] > 0
    assert not any(name.endswith("_created") for name, _ in series)


def test_the_content_type_is_the_text_format() -> None:
    _, content_type = PrometheusMetrics("1").render()
    assert content_type.startswith("text/plain; version=0.0.4")


def test_two_processes_in_one_share_nothing() -> None:
    one, two = PrometheusMetrics("1"), PrometheusMetrics("1")
    one.count("events_failed")
    assert page(two)["feedsvc_events_failed_total", ()] == 0
    assert GLOBAL_REGISTRY.get_sample_value("feedsvc_events_failed_total") is None


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("no_such_metric", {}),
        ("connections", {}),
        ("errors_sent", {}),
        ("errors_sent", {"code": "forbidden", "tenant": "acme"}),
        ("errors_sent", {"code": "invented"}),
    ],
)
def test_a_mistake_raises_where_strict_and_is_counted_in_service(name: str, labels: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        PrometheusMetrics("1", strict=True).count(name, 1, **labels)
    lenient = PrometheusMetrics("1")
    before = page(lenient).keys()
    lenient.count(name, 1, **labels)
    after = page(lenient)
    assert after["feedsvc_metric_mistakes_total", ()] == 1
    assert after.keys() == before, "no series came into being"


def test_what_a_peer_or_library_may_choose_becomes_other() -> None:
    metrics = PrometheusMetrics("1", strict=True)
    metrics.count("closes", code="3999")
    metrics.count("tail_errors", kind="ZeroDivisionError")
    series = page(metrics)
    assert series["feedsvc_closes_total", (("code", OTHER),)] == 1
    assert series["feedsvc_tail_errors_total", (("kind", OTHER),)] == 1


def test_the_totals_of_a_counter_cost_a_part_of_a_page() -> None:
    """A status asks for them each second: to collect all metrics for each value would hold up every client."""
    metrics = PrometheusMetrics("1.2.3", strict=True)

    def best_s(act: Callable[[], object]) -> float:
        times = []
        for _ in range(5):
            began = time.perf_counter()
            act()
            times.append(time.perf_counter() - began)
        return min(times)

    assert best_s(lambda: metrics.totals("closes")) < best_s(metrics.render) / 2
