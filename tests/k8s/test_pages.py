"""The pages for who runs it say what the program and the manifests say."""

from __future__ import annotations

import re

import pytest

from feedsvc import app
from feedsvc.adapters.telemetry.metric_table import METRICS
from feedsvc.core.errors import REGISTRY
from feedsvc.core.limits import LIMITS, Limits
from feedsvc.settings.variables import unknown_name_warnings
from tests.k8s.built import ROOT, Manifests
from tests.k8s.rules import settings_of

PAGES = ("kubernetes", "rolling-updates", "sizing", "security")


def text_of(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text()


@pytest.mark.parametrize("page", PAGES)
def test_every_name_on_a_page_exists(page: str) -> None:
    """Variables, metrics, limits, codes, reasons, and files that are linked to."""
    text = text_of(page)
    assert unknown_name_warnings(re.findall(r"\bFEEDSVC_[A-Z_]*[A-Z]\b", text)) == []
    families = {metric.family + ("_total" if metric.kind == "counter" else "") for metric in METRICS.values()}
    reasons = {value for metric in METRICS.values() for values in metric.labels.values() for value in values}
    known = families | reasons | {*LIMITS, *REGISTRY, app.longest_shutdown_s.__name__, "tcp_wmem"}
    named = re.findall(r"`([a-z]+(?:_[a-z]+)+)\b", text)
    assert set(named) <= known
    assert set(re.findall(r"\bfeedsvc_[a-z_]+\b", text)) <= families
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (ROOT / "docs" / link).exists(), link


def test_the_timeline_of_a_rolling_update_is_that_of_the_base() -> None:
    """The table is for `k8s/base`; the sum under it is what the program may take."""
    text = text_of("rolling-updates")
    base = dict(
        line.split("=")
        for line in (ROOT / "k8s/base/environment.env").read_text().splitlines()
        if line[0] != "#"
    )
    announce_s, drain_s = int(base["FEEDSVC_ANNOUNCE"]), int(base["FEEDSVC_DRAIN"])
    assert f"`FEEDSVC_ANNOUNCE={announce_s}` and `FEEDSVC_DRAIN={drain_s}`" in text
    rest_s = app.longest_shutdown_s(Limits(announce_s=0, drain_s=0))
    assert f"grace period > `FEEDSVC_ANNOUNCE` + `FEEDSVC_DRAIN` + {rest_s:.0f} s" in text
    closed_s = announce_s + 0.8 * drain_s
    assert f"| {announce_s} to {closed_s:.0f} |" in text
    assert f"| at most {announce_s + drain_s + rest_s:.0f} |" in text
    grace = re.search(
        r"terminationGracePeriodSeconds: (\d+)", (ROOT / "k8s/base/deployment.yaml").read_text()
    )
    assert grace is not None
    assert f"| {grace[1]} | `terminationGracePeriodSeconds`" in text


def test_the_table_of_overlays_is_right() -> None:
    cells, graces = [], []
    for overlay in ("dev", "prod"):
        manifests = Manifests(overlay)
        drain_s = settings_of(manifests).limits.drain_s
        cells.append(manifests.one("Deployment")["metadata"]["namespace"])
        graces.append(f"{drain_s:.0f} s, {manifests.pod['terminationGracePeriodSeconds']} s")
    text = text_of("kubernetes")
    assert f"| namespace | `{cells[0]}` | `{cells[1]}` |" in text
    assert f"| `FEEDSVC_DRAIN`, grace period | {graces[0]} | {graces[1]} |" in text


def test_sizes_on_the_page_are_those_of_the_manifests() -> None:
    prod = Manifests("prod")
    limits = settings_of(prod).limits
    text = text_of("sizing")
    (clients,) = (
        int(metric["pods"]["target"]["averageValue"])
        for metric in prod.one("HorizontalPodAutoscaler")["spec"]["metrics"]
        if metric["type"] == "Pods"
    )
    assert f"by memory = clients / {clients:,}" in text
    assert f"{limits.max_tails} tails of {limits.log_bytes >> 20} MiB" in text
    assert (
        f"limit of `k8s/` is {prod.container['resources']['limits']['memory'].removesuffix('Gi')} GiB" in text
    )
    assert f"+ {limits.catch_up_tails} catch-ups) x (FEEDSVC_LOG_BYTES" in text
    assert f"({limits.catch_up_tails} catch-ups + {limits.snapshots} snapshots) x reply" in text
