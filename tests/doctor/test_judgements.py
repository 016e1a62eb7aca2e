"""Where a number becomes a warning, and where an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from feedsvc.adapters.mongo.probe import Connections
from feedsvc.core.limits import Limits
from feedsvc.doctor.configuration import file_limit_findings
from feedsvc.doctor.findings import Findings
from feedsvc.doctor.judgements import judge_clock, judge_expiry, judge_oplog, judge_pool, judge_version
from feedsvc.ports import OplogWindow

HOUR_S = 3600


def judged(judge: Callable[[Findings], None]) -> list[tuple[str, str]]:
    """(subject, status) of what it finds, which always says what to do where there is something to do."""
    findings = Findings()
    judge(findings)
    found = findings.report("0", None, strict=False).findings
    for finding in found:
        assert bool(finding.remedy) == (finding.status in ("warning", "error")), finding
    return [(finding.subject, finding.status) for finding in found]


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ("5.0.31", "error"),
        ("6.0.0", "warning"),
        ("6.0.8", "warning"),
        ("6.0.9", "ok"),
        ("7.0.0-rc1", "ok"),
        ("10.0.0", "ok"),
        ("", "warning"),
    ],
)
def test_versions(version: str, status: str) -> None:
    assert judged(lambda findings: judge_version(findings, version)) == [("", status)]


@pytest.mark.parametrize(
    ("hours", "fill", "wanted_h", "status"),
    [
        (48, None, 24, "ok"),
        (24, 1.0, 24, "ok"),
        (23, 1.0, 24, "warning"),
        (0.9, 1.0, 24, "error"),
        (0.9, None, 24, "warning"),
        (0.9, 1.0, 0.5, "ok"),
        (1, 0.01, 24, "ok"),
        (1, 0.5, 24, "warning"),
        (0, 0.001, 24, "warning"),
    ],
)
def test_an_oplog_that_is_young_is_not_one_that_is_short(
    hours: float, fill: float | None, wanted_h: float, status: str
) -> None:
    window = OplogWindow(1_000 << 32, int(1_000 + hours * HOUR_S) << 32)
    assert judged(lambda findings: judge_oplog(findings, window, fill, wanted_h)) == [("", status)]


@pytest.mark.parametrize(
    ("expire_s", "status"), [(None, "ok"), (86_400, "ok"), (86_399, "warning"), (60, "warning")]
)
def test_expiry_of_images(expire_s: int | None, status: str) -> None:
    assert judged(lambda findings: judge_expiry(findings, expire_s, 24)) == [("", status)]


@pytest.mark.parametrize(
    ("ahead_s", "unsure_s", "cluster_ahead_s", "found"),
    [
        (0.0, 0.0, -9.0, [("", "ok")]),
        (1.9, 0.0, None, [("", "ok")]),
        (-2.1, 0.0, 0.5, [("", "warning")]),
        (4.0, 2.5, 0.0, [("", "ok")]),
        (5.0, 0.0, 0.0, [("", "error")]),
        (-60.0, 1.0, 0.0, [("", "error")]),
        (0.0, 0.0, 30.0, [("", "ok"), ("cluster time", "warning")]),
    ],
)
def test_clocks(
    ahead_s: float, unsure_s: float, cluster_ahead_s: float | None, found: list[tuple[str, str]]
) -> None:
    """A slow answer is no skew, and a cluster time that rests is none either."""
    assert judged(lambda findings: judge_clock(findings, ahead_s, unsure_s, cluster_ahead_s, 5.0)) == found


@pytest.mark.parametrize(
    ("hard", "status"), [(256, "error"), (2_000, "error"), (4_096, "warning"), (65_536, "ok"), (-1, "ok")]
)
def test_open_files(hard: int, status: str) -> None:
    assert judged(lambda findings: file_limit_findings(findings, Limits(), hard)) == [("", status)]


@pytest.mark.parametrize(
    ("connections", "status"),
    [(None, "ok"), (Connections(10, 50_000), "ok"), (Connections(900, 20), "warning")],
)
def test_room_at_the_server(connections: Connections | None, status: str) -> None:
    def judge(findings: Findings) -> None:
        judge_pool(findings, None, "deployment", Limits(), connections, sets_pool_size=False)

    ((_, found),) = judged(judge)
    assert found == status
