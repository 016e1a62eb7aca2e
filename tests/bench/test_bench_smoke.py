"""`python -m bench` as a process: what it prints can be read by a program. No figure is judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).parents[2]

pytestmark = pytest.mark.verify  # it takes ten seconds and judges no figure


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What one quick round of the latency benchmark prints."""
    results = tmp_path_factory.mktemp("results")
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "bench",
            "latency",
            "--quick",
            "--rounds",
            "1",
            "--json",
            "--results",
            results,
        ],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr
    (written,) = results.iterdir()
    assert written.read_text() == run.stdout
    return [json.loads(line) for line in run.stdout.splitlines()]


def of_kind(lines: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["kind"] == kind]


def test_the_first_line_says_where_and_how_it_was_measured(lines: list[dict[str, Any]]) -> None:
    run = lines[0]
    assert run["kind"] == "run"
    assert {"started", "machine", "cores", "load", "python", "pymongo"} <= set(run)
    assert (run["rounds"], run["quick"]) == (1, True)


def test_each_case_gives_one_sample_with_its_percentiles_for_each_round(lines: list[dict[str, Any]]) -> None:
    samples = of_kind(lines, "sample")
    assert [(sample["case"], sample["round"]) for sample in samples] == [
        ("bare", 1),
        ("service", 1),
        ("client behind loop, both reading", 1),
    ]
    for sample in samples[:2]:
        figures = sample["figures"]
        assert set(figures) == {
            f"from_{start}_{percent}_ms" for start in ("ack", "send") for percent in ("p50", "p99")
        }
        assert 0 < figures["from_send_p50_ms"] <= figures["from_send_p99_ms"]
        assert figures["from_ack_p50_ms"] < figures["from_send_p50_ms"]


def test_the_ratio_is_that_of_the_service_to_the_bare_loop_of_the_same_round(
    lines: list[dict[str, Any]],
) -> None:
    figures = {sample["case"]: sample["figures"] for sample in of_kind(lines, "sample")}
    summaries = {(line["case"], line["figure"]): line for line in of_kind(lines, "summary")}
    for figure in ("from_send_p50_ms", "from_send_p99_ms"):
        summary = summaries["service", figure]
        expected = figures["service"][figure] / figures["bare"][figure]
        assert (summary["floor"], summary["ratio"]) == ("bare", pytest.approx([expected] * 3))
        assert summaries["bare", figure]["ratio"] is None


def test_there_is_no_ratio_to_a_floor_at_or_below_zero(lines: list[dict[str, Any]]) -> None:
    (bare,) = (sample for sample in of_kind(lines, "sample") if sample["case"] == "bare")
    for summary in of_kind(lines, "summary"):
        if summary["case"] == "service":
            assert (summary["ratio"] is None) == (bare["figures"][summary["figure"]] <= 0)
