"""Refusals as HTTP answers: status, type and headers come from the registry."""

from __future__ import annotations

import json

import pytest

from feedsvc.adapters.web.problems import problem_response
from feedsvc.core.errors import REGISTRY, Refusal


@pytest.mark.parametrize("code", sorted(REGISTRY))
def test_every_code_has_a_problem_document(code: str) -> None:
    response = problem_response(Refusal(code, "what and why"))
    entry = REGISTRY[code]
    assert json.loads(bytes(response.body)) == {
        "type": f"urn:feedsvc:error:{code}",
        "title": entry.meaning,
        "status": entry.status,
        "code": code,
        "detail": "what and why",
        "retryable": entry.retryable,
    }
    assert response.status_code == entry.status
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["cache-control"] == "no-store"
    assert ("www-authenticate" in response.headers) is (entry.status == 401)
    assert "retry-after" not in response.headers


@pytest.mark.parametrize(
    ("retry_after_ms", "seconds"), [(1, "1"), (1_000, "1"), (1_001, "2"), (10_000, "10")]
)
def test_a_time_to_wait_is_told_in_whole_seconds_and_never_as_zero(retry_after_ms: int, seconds: str) -> None:
    response = problem_response(Refusal("going_away", "later", retry_after_ms=retry_after_ms))
    assert response.headers["retry-after"] == seconds
