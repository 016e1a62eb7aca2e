"""Prometheus' own tool over the rules: they are valid, and each fires when it should and only then.

The series of the other rules are made here: constant gauges and counters of a constant rate, once in health and once in
trouble.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from feedsvc.adapters.telemetry.metric_table import METRICS
from feedsvc.adapters.telemetry.metrics import PrometheusMetrics
from tests.ops.expressions import OPS, RULES, rules

pytestmark = pytest.mark.verify


class Scene(msgspec.Struct, frozen=True):
    """What a rule sees: value of each series; for a counter, what is added in each half minute."""

    health: Mapping[str, float]
    trouble: Mapping[str, float]


def _counts(trouble: str, over: float, health: float = 0.0, **steady: float) -> Scene:
    """A counter that is the trouble, beside gauges that stay."""
    return Scene({trouble: health, **steady}, {trouble: over, **steady})


SCENES: Mapping[str, Scene] = {
    "FeedsvcOplogShort": Scene(
        {"feedsvc_oplog_window_seconds": 3600}, {"feedsvc_oplog_window_seconds": 3599}
    ),
    "FeedsvcResyncs": _counts('feedsvc_resyncs_total{reason="overflow"}', 6, 5, feedsvc_subscriptions=10_000),
    "FeedsvcTailLost": _counts("feedsvc_live_tails_lost_total", 1),
    "FeedsvcSourceUnavailable": Scene({"feedsvc_source_up": 1}, {"feedsvc_source_up": 0}),
    "FeedsvcTailStalled": Scene({"feedsvc_tails_stalled": 0}, {"feedsvc_tails_stalled": 1}),
    "FeedsvcTailFailing": _counts('feedsvc_tail_errors_total{kind="SourceRefused"}', 1, 0.2),
    "FeedsvcTailLag": Scene({"feedsvc_tail_lag_seconds": 9}, {"feedsvc_tail_lag_seconds": 11}),
    "FeedsvcCatchUpsWaiting": Scene({"feedsvc_catch_ups_waiting": 0}, {"feedsvc_catch_ups_waiting": 3}),
    "FeedsvcSnapshotsFailing": _counts('feedsvc_snapshots_total{outcome="failed"}', 1, 0.1),
    "FeedsvcPumpDelay": Scene(
        {
            'feedsvc_pump_delay_seconds_bucket{tail="live",le="0.1"}': 100,
            'feedsvc_pump_delay_seconds_bucket{tail="live",le="+Inf"}': 100,
        },
        {
            'feedsvc_pump_delay_seconds_bucket{tail="live",le="0.1"}': 10,
            'feedsvc_pump_delay_seconds_bucket{tail="live",le="2.5"}': 100,
            'feedsvc_pump_delay_seconds_bucket{tail="live",le="+Inf"}': 100,
        },
    ),
    "FeedsvcConnectionsNearLimit": Scene(
        {"process_open_fds": 800, "process_max_fds": 1000, "feedsvc_connections": 700},
        {"process_open_fds": 801, "process_max_fds": 1000, "feedsvc_connections": 700},
    ),
    "FeedsvcTenantNearLimit": Scene(
        {"feedsvc_fullest_tenant_connections_ratio": 0.9, "feedsvc_fullest_tenant_topics_ratio": 0.9},
        {"feedsvc_fullest_tenant_connections_ratio": 0.1, "feedsvc_fullest_tenant_topics_ratio": 0.91},
    ),
    "FeedsvcTailsNearLimit": Scene(
        {"feedsvc_tails": 57, "feedsvc_tails_limit": 64}, {"feedsvc_tails": 58, "feedsvc_tails_limit": 64}
    ),
    "FeedsvcWaitingSocketsNearLimit": Scene(
        {"feedsvc_waiting_sockets": 800, "feedsvc_waiting_sockets_limit": 1000},
        {"feedsvc_waiting_sockets": 801, "feedsvc_waiting_sockets_limit": 1000},
    ),
    # 1,000 connections: 55 in a half minute are 550 in five.
    "FeedsvcReconnectStorm": _counts("feedsvc_connections_opened_total", 60, 50, feedsvc_connections=1000),
    "FeedsvcSlowConsumers": _counts('feedsvc_closes_total{code="4201"}', 2, 0.9, feedsvc_connections=1000),
    "FeedsvcJwksFailing": Scene(
        {
            'feedsvc_jwks_fetches_total{outcome="failed"}': 1,
            'feedsvc_jwks_fetches_total{outcome="unchanged"}': 1,
        },
        {
            'feedsvc_jwks_fetches_total{outcome="failed"}': 1,
            'feedsvc_jwks_fetches_total{outcome="unchanged"}': 0,
        },
    ),
    "FeedsvcAuthRefused": Scene(
        {'feedsvc_auth_refused_total{code="auth_invalid"}': 10, "feedsvc_connections_opened_total": 10},
        {'feedsvc_auth_refused_total{code="auth_invalid"}': 12, "feedsvc_connections_opened_total": 10},
    ),
    "FeedsvcInternalErrors": Scene(
        _INTERNAL := {
            "feedsvc_events_failed_total": 0,
            'feedsvc_errors_sent_total{code="internal"}': 0,
            'feedsvc_requests_refused_total{code="internal"}': 0,
            'feedsvc_closes_total{code="4203"}': 0,
        },
        {**_INTERNAL, 'feedsvc_errors_sent_total{code="internal"}': 1},
    ),
    "FeedsvcAbsent": Scene({"feedsvc_build_info": 1}, {}),
}
IN_A_FILE = {"FeedsvcOplogDistance", "FeedsvcOplogDistanceCritical"}
"""Tested in ops/alerts-test.yaml, with their words."""
STEPS = 60
EVALUATED = "25m"


def promtool(*arguments: object, page: bytes = b"") -> str:
    """What it says. The tool stands beside Python (.ci/run puts it there) or in the PATH."""
    beside = Path(sys.executable).parent / "promtool"
    tool = str(beside) if beside.exists() else shutil.which("promtool")
    assert tool is not None, "promtool is missing: it is in Debian's package prometheus"
    run = subprocess.run(
        [tool, *map(str, arguments)], input=page, capture_output=True, check=False, timeout=60
    )
    said = (run.stdout + run.stderr).decode()
    assert run.returncode == 0, said
    return said


def series(values: Mapping[str, float]) -> list[dict[str, str]]:
    """As promtool reads them: a start, a step and how often."""
    found = []
    for name, value in values.items():
        labelled = f'{name[:-1]},instance="a"}}' if name.endswith("}") else f'{name}{{instance="a"}}'
        counter = "_total" in name or "_bucket" in name
        start, step = (0, value) if counter else (value, 0)
        found.append({"series": labelled, "values": f"{start}+{step}x{STEPS}"})
    return found


def firing(rule: Mapping[str, Any], values: Mapping[str, float], *, fires: bool) -> dict[str, Any]:
    """A test of promtool: whether the alert fires after 25 minutes of this. Words and values are not compared."""
    matched = f'ALERTS{{alertname="{rule["alert"]}",alertstate="firing"}}'
    expected = [{"labels": "{}", "value": 1}] if fires else []
    return {
        "interval": "30s",
        "input_series": series(values),
        "promql_expr_test": [{"expr": f"count({matched})", "eval_time": EVALUATED, "exp_samples": expected}],
    }


def test_the_page_of_metrics_follows_prometheus_rules_of_naming() -> None:
    """The format, and what its linter says of names, units and help."""
    metrics = PrometheusMetrics("1", strict=True)
    for metric in METRICS.values():
        if metric.each:
            metrics.gauge_each(metric.name, {"acme": 1})
    page, _ = metrics.render()
    assert promtool("check", "metrics", page=page) == ""
    with pytest.raises(AssertionError, match="_total"):
        promtool("check", "metrics", page=page.replace(b"feedsvc_closes_total", b"feedsvc_closes"))


def test_the_rules_are_valid() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", RULES)


def test_the_alert_on_oplog_distance_with_its_words() -> None:
    assert "SUCCESS" in promtool("test", "rules", OPS / "alerts-test.yaml")


def test_every_other_rule_fires_in_trouble_and_not_in_health(tmp_path: Path) -> None:
    assert {rule["alert"] for rule in rules()} == SCENES.keys() | IN_A_FILE
    tests = []
    for rule in rules():
        scene = SCENES.get(rule["alert"])
        if scene is not None:
            tests += [
                firing(rule, scene.health, fires=False),
                firing(rule, scene.trouble, fires=True),
            ]
    path = tmp_path / "tests.yaml"
    path.write_text(
        yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "30s", "tests": tests})
    )
    assert "SUCCESS" in promtool("test", "rules", path)
    print(f"\n{len(rules())} rules, {len(tests)} scenes")
