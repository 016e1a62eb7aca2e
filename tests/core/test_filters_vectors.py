"""The shared filter vectors: every one gives MongoDB's answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from feedsvc.core import extjson
from feedsvc.core.filters.compile import compile_filter
from feedsvc.core.filters.parse import parse_filter

_PATH = Path(__file__).parent.parent / "filter_vectors" / "filter-vectors.json"
CASES: list[dict[str, Any]] = json.loads(_PATH.read_text())["cases"]


def test_no_vector_is_lost() -> None:
    """The file is whole, and each case has a name of its own."""
    assert len({case["name"] for case in CASES}) == len(CASES) == 67


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_vector_agrees(case: dict[str, Any]) -> None:
    """The filter is accepted, and matches the document exactly where MongoDB's `find` does."""
    query, document = extjson.decode(case["filter"]), extjson.decode(case["document"])
    assert isinstance(query, dict) and isinstance(document, dict)
    assert compile_filter(parse_filter(query))(document) is case["matches"]
