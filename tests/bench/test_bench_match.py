"""`python -m bench match refusal`: what the matcher costs, and a refusal. No figure is judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]

pytestmark = [pytest.mark.xdist_group("bench"), pytest.mark.verify]


def test_every_case_has_a_sample_and_every_crowd_a_ratio(tmp_path: Path) -> None:
    """One quick round: the case of one topic is the floor of all that share its look-up."""
    command = [sys.executable, "-m", "bench", "match", "refusal", "--quick", "--rounds", "1", "--json"]
    run = subprocess.run(
        [*command, "--results", str(tmp_path)], cwd=PROJECT, capture_output=True, text=True, timeout=100
    )
    assert run.returncode == 0, run.stderr
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    summaries = {line["case"]: line for line in lines if line["kind"] == "summary"}
    refusals = [line for line in summaries.values() if line["benchmark"] == "refusal"]
    assert [line["figure"] for line in refusals] == ["cpu_ms_per_refusal"]
    floors = {case: line["floor"] for case, line in summaries.items() if line["benchmark"] == "match"}
    assert len(floors) == 10
    assert {case for case, floor in floors.items() if floor is None} == {
        "1 topic",
        "1 topic on two fields",
        "1 range topic",
    }
    assert all(line["value"][1] > 0 for line in summaries.values())
