"""docs/cases.md: each reported failure case is held to tests that exist, and what is left out is told."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

import pytest

from tests.support.node_ids import ROOT, text_of

NUMBERS = {
    "SRC": (1, 2, 3, 5, 6, 7, 9, 10, 12, 14),
    "RES": (1, 3, 4, 6, 7, 8, 10, 11, 13, 15),
    "FIL": (1, 3, 4, 6, 7, 8, 10),
    "AUT": (1, 3, 4, 5, 7, 8, 9, 10, 13),
    "BPR": (1, 2, 5, 6, 7, 8, 10),
    "TRA": (1, 2, 3, 4, 6, 7, 9, 10),
    "DEP": (1, 2, 3, 5, 7, 8, 10),
}
CASES = [f"{kind}-{number:02}" for kind, numbers in NUMBERS.items() for number in numbers]


class Row(NamedTuple):
    tests: list[str]
    left_out: str


@cache
def rows() -> dict[str, Row]:
    found: dict[str, Row] = {}
    for line in (ROOT / "docs" / "cases.md").read_text().splitlines():
        if re.match(r"\| [A-Z]{3}-\d\d \|", line):
            case, _, tests, left_out = (cell.strip() for cell in line.strip("|").split("|"))
            assert case not in found, f"{case} stands there twice"
            found[case] = Row(re.findall(r"`([^`]+)`", tests), left_out)
    return found


def test_every_case_has_its_row() -> None:
    assert list(rows()) == CASES


@pytest.mark.parametrize("case", CASES)
def test_a_case_is_shown_by_tests_that_exist_and_what_is_left_out_is_told(case: str) -> None:
    row = rows()[case]
    assert row.tests or row.left_out
    for node in row.tests:
        assert text_of(node)
    told = (ROOT / "docs" / "not-verified.md").read_text()
    assert (case in told) == bool(row.left_out)


def test_a_test_that_names_a_case_names_one_of_them() -> None:
    """A typing mistake in a docstring would hide that a case has no test."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        for case in re.findall(rf"\b(?:{'|'.join(NUMBERS)})-\d\d\b", path.read_text()):
            assert case in CASES, f"{case} in {path.name}"
