"""The shared filter vectors: what the subset covers agrees with MongoDB, what it does not cover is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from feedsvc.core import extjson
from feedsvc.core.filters.compile import compile_filter
from feedsvc.core.filters.parse import FilterError, parse_filter

_PATH = Path(__file__).parent.parent / "filter_vectors" / "filter-vectors.json"
CASES: list[dict[str, Any]] = json.loads(_PATH.read_text())["cases"]
OUTSIDE = frozenset(
    {"$type", "$mod", "$size", "$all", "$elemMatch", "$regex", "$options", "$regularExpression"}
)


def _keys(value: object) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {key for item in value.values() for key in _keys(item)}
    if isinstance(value, list):
        return {key for item in value for key in _keys(item)}
    return set()


INSIDE_CASES = [case for case in CASES if not _keys(case["filter"]) & OUTSIDE]
OUTSIDE_CASES = [case for case in CASES if _keys(case["filter"]) & OUTSIDE]


def test_no_vector_is_skipped_in_silence() -> None:
    """The split covers the file; a changed file changes these numbers."""
    assert (len(INSIDE_CASES), len(OUTSIDE_CASES)) == (54, 13)


@pytest.mark.parametrize("case", INSIDE_CASES, ids=lambda case: case["name"])
def test_vector_agrees(case: dict[str, Any]) -> None:
    """Every vector of the subset gives MongoDB's answer."""
    query, document = extjson.decode(case["filter"]), extjson.decode(case["document"])
    assert isinstance(query, dict) and isinstance(document, dict)
    assert compile_filter(parse_filter(query))(document) is case["matches"]


@pytest.mark.parametrize("case", OUTSIDE_CASES, ids=lambda case: case["name"])
def test_vector_outside_is_refused(case: dict[str, Any]) -> None:
    """Every vector with another operator is refused as unsupported."""
    query = extjson.decode(case["filter"])
    assert isinstance(query, dict)
    with pytest.raises(FilterError) as refusal:
        parse_filter(query)
    assert refusal.value.code == "filter_unsupported"
