"""Alert rules and dashboard name nothing that the page of metrics does not have, and each unit is the right one."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from feedsvc.adapters.telemetry.metric_kinds import Metric
from feedsvc.adapters.telemetry.metric_page import metrics_table, with_tables
from feedsvc.adapters.telemetry.metric_table import METRICS
from feedsvc.adapters.telemetry.metrics import PrometheusMetrics
from tests.ops.expressions import OPS, Expression, expressions, panels, read, rules

PAGE = OPS.parent / "docs" / "metrics.md"
SCRAPER_LABELS = {"instance", "job"}
"""What Prometheus adds to every series."""
COUNTED = frozenset({"short", "ops", "percentunit"})
UNITS = {
    "seconds": frozenset({"s", "percentunit"}),
    "bytes": frozenset({"bytes", "Bps"}),
    "ratio": frozenset({"percentunit"}),
    "count": COUNTED,
}


def series() -> dict[str, dict[str, set[str]]]:
    """Every series of the page: its labels and their values."""
    metrics = PrometheusMetrics("1")
    for metric in METRICS.values():
        if metric.each:
            metrics.gauge_each(metric.name, {"acme": 1})
    found: dict[str, dict[str, set[str]]] = {}
    for family in text_string_to_metric_families(metrics.render()[0].decode()):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return found


@pytest.fixture(scope="module")
def page() -> dict[str, dict[str, set[str]]]:
    return series()


@pytest.mark.parametrize("expression", expressions(), ids=lambda expression: expression.where)
def test_every_metric_label_and_value_exists(
    expression: Expression, page: dict[str, dict[str, set[str]]]
) -> None:
    labels = set(SCRAPER_LABELS)
    for selector in expression.selectors:
        assert selector.metric in page
        labels |= page[selector.metric].keys()
        for label, values in selector.matchers:
            if label in SCRAPER_LABELS:
                continue
            assert set(values) <= page[selector.metric][label]
    assert expression.selectors
    assert expression.grouped <= labels


@pytest.mark.parametrize("expression", expressions(), ids=lambda expression: expression.where)
def test_counters_are_read_over_a_time_and_gauges_are_not(expression: Expression) -> None:
    """A counter's value starts anew with the process, so it means nothing."""
    for selector in expression.selectors:
        counts = selector.metric.endswith(("_total", "_bucket", "_sum", "_count"))
        assert selector.ranged == counts, selector.metric


def metric_of(name: str) -> Metric | None:
    family = re.sub(r"_(total|bucket|sum|count)$", "", name)
    return next((metric for metric in METRICS.values() if metric.family == family), None)


def unit_of(name: str) -> str:
    metric = metric_of(name)
    if metric is not None:
        return metric.unit
    return next((unit for unit in ("seconds", "bytes") if f"_{unit}" in name), "count")


def test_each_panel_shows_the_unit_of_its_metrics() -> None:
    for panel in panels():
        for expression in panel.expressions:
            for selector in expression.selectors:
                unit, shown = unit_of(selector.metric), panel.unit
                assert shown in UNITS[unit], (panel.title, selector.metric)
                if unit == "count":
                    quotient = " / " in expression.text
                    assert shown == ("percentunit" if quotient else "ops" if selector.ranged else "short")
                if unit == "bytes":
                    assert shown == ("Bps" if selector.ranged else "bytes")
                if unit == "seconds" and shown == "percentunit":
                    assert "rate(" in expression.text, "seconds for each second"


def test_panels_do_not_overlap_and_fit_into_the_grid() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        grid = panel.grid
        assert grid["x"] + grid["w"] <= 24
        cells = {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not cells & taken, panel.title
        taken |= cells


def test_every_metric_is_of_use_somewhere() -> None:
    """What no rule and no panel shows, nobody looks at until it is too late; these few are for questions of detail."""
    found = [metric_of(selector.metric) for each in expressions() for selector in each.selectors]
    unused = METRICS.keys() - {metric.name for metric in found if metric is not None}
    assert unused <= {"catch_up_tails_lost", "explains", "tickets_issued", "status_streams"}


def test_each_rule_has_a_name_a_severity_and_words_for_people() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert re.fullmatch(r"Feedsvc[A-Za-z]+", rule["alert"])
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert all(text.endswith(".") for text in rule["annotations"].values())
        assert not re.search(r"\$labels\.(?!instance|kind)", rule["annotations"]["description"])


def test_the_page_has_every_metric_and_every_alert() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert with_tables(text) == text, "run python -m feedsvc.adapters.telemetry.metric_page docs/metrics.md"
    for metric in METRICS.values():
        assert f"| `{metric.page_name}` | {metric.kind} |" in metrics_table()
    for rule in rules():
        summary = rule["annotations"]["summary"]
        assert f"| `{rule['alert']}` | {rule['labels']['severity']} | {summary} |" in text


def test_what_the_pages_of_the_metrics_say_of_units_is_in_their_names() -> None:
    """Prometheus' rules of naming: base units, and the unit in the name."""
    for metric in METRICS.values():
        for word in ("milliseconds", "ms", "minutes", "kilobytes", "percent"):
            assert word not in metric.family.split("_")
        if metric.kind == "histogram":
            assert metric.unit == "seconds"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("feedsvc_no_such_metric > 1", "metric"),
        ('rate(feedsvc_closes_total{reason="1000"}[1m])', "label"),
        ('rate(feedsvc_closes_total{code="4999"}[1m])', "value"),
        ("sum by (tenant) (feedsvc_connections)", "group"),
    ],
)
def test_a_mistake_is_found(text: str, wrong: str, page: dict[str, dict[str, set[str]]]) -> None:
    with pytest.raises((AssertionError, KeyError)):
        test_every_metric_label_and_value_exists(read(wrong, text), page)
