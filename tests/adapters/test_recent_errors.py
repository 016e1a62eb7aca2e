"""The last errors for operators: bounded, newest first, with the service's own words and nobody else's."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from feedsvc.adapters.telemetry.recent_errors import RecentErrors
from feedsvc.core.changes import TailScope
from feedsvc.core.status import MOST_ERRORS, RecentError, ScopeStatus

SCOPE = TailScope("collection", "app_acme", "orders")


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, Mapping[str, object]]] = []
        self.errors = RecentErrors(self.report, lambda: 1_700_000_000.5)

    def report(self, event: str, fields: Mapping[str, object]) -> None:
        self.lines.append((event, fields))


def kept(event: str, **fields: object) -> RecentError:
    log = Log()
    log.errors.report(event, fields)
    (error,) = log.errors.latest()
    return error


def test_a_failure_of_mongodb_is_told_with_time_kind_scope_and_text() -> None:
    error = kept("tail.failed", scope=SCOPE, error="SourceUnavailable: MongoDB failed: error (code 91)")
    assert error == RecentError(
        1_700_000_000_500,
        "tail.failed",
        "SourceUnavailable",
        ScopeStatus("collection", "app_acme", "orders"),
        "MongoDB failed: error (code 91)",
    )


@pytest.mark.parametrize(
    ("event", "error"),
    [
        ("client.failed", "KeyError: 'a-secret-value'"),
        ("request.failed", "ValueError: a-secret-value\nof two lines"),
        ("source.failed", "RuntimeError: a-secret-value"),
        ("source.failed", "a-secret-value without any kind"),
    ],
)
def test_what_nobody_foresaw_is_told_without_its_text(event: str, error: str) -> None:
    found = kept(event, error=error)
    assert "a-secret-value" not in str(found)
    assert found.event == event


def test_what_the_service_says_itself_is_told_and_redacted() -> None:
    assert kept("jwks.failed", reason="the key server answered 503").text == "the key server answered 503"
    assert "eyJ" not in kept("jwks.failed", reason="got eyJhbGciOiJIUzI1NiJ9.e30.c2ln").text
    assert len(kept("jwks.failed", reason="x" * 10_000).text) <= 200


def test_a_database_is_a_scope_too() -> None:
    found = kept("images.unknown", database="app_acme", error="SourceRefused: MongoDB refused")
    assert found.scope == ScopeStatus("database", "app_acme", "")


def test_only_warnings_and_errors_are_kept_and_all_is_passed_on() -> None:
    log = Log()
    for event in ("service.started", "tail.stalled", "connection.opened", "not.declared"):
        log.errors.report(event, {"n": 1})
    assert [error.event for error in log.errors.latest()] == ["not.declared", "tail.stalled"]
    assert [event for event, _ in log.lines] == [
        "service.started",
        "tail.stalled",
        "connection.opened",
        "not.declared",
    ]


def test_the_last_ones_are_kept() -> None:
    log = Log()
    for number in range(MOST_ERRORS + 5):
        log.errors.report("jwks.failed", {"reason": str(number)})
    texts = [error.text for error in log.errors.latest()]
    assert texts == [str(number) for number in range(MOST_ERRORS + 4, 4, -1)]
