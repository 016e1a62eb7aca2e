"""Log lines: one JSON object each, with level and fields, and without credentials, whoever logs."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feedsvc.adapters.telemetry.logs import LEVELS, configure, report
from feedsvc.core.changes import TailScope

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJ0ZW5hbnQiOiJhY21lIn0.c2lnbmF0dXJl"
PACKAGE = Path(__file__).parents[2] / "feedsvc"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("feedsvc")
    before = (root.handlers[:], root.level, ours.level)
    yield
    root.handlers[:], level, our_level = before
    root.setLevel(level)
    ours.setLevel(our_level)
    logging.captureWarnings(False)


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """What was written to stderr since the last call."""
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_report_is_one_json_object_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info")
    report("tail.opened", {"scope": TailScope("collection", "shop", "orders"), "number": 3})
    (line,) = lines(capsys)
    assert line["event"] == "tail.opened" and line["level"] == "info" and line["number"] == 3
    assert line["scope"] == {"level": "collection", "database": "shop", "collection": "orders"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*Z", line["timestamp"])


def test_the_level_comes_from_the_event(capsys: pytest.CaptureFixture[str]) -> None:
    configure("WARNING")
    report("tail.opened", {})
    report("tail.failed", {"error": "gone"})
    report("client.failed", {"what": "verify"})
    assert [(line["event"], line["level"]) for line in lines(capsys)] == [
        ("tail.failed", "warning"),
        ("client.failed", "error"),
    ]


def test_an_unknown_event_is_logged_as_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    configure()
    report("no.such.event", {})
    assert lines(capsys)[0]["level"] == "warning"


def test_a_field_cannot_replace_event_level_or_time(capsys: pytest.CaptureFixture[str]) -> None:
    configure()
    report("tail.opened", {"event": "forged", "level": "debug", "timestamp": "never"})
    (line,) = lines(capsys)
    assert line["event"] == "tail.opened" and line["level"] == "info" and line["event_"] == "forged"


def test_a_line_break_does_not_make_a_second_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure()
    report("client.failed", {"error": 'x\n{"event":"forged"}'})
    assert len(lines(capsys)) == 1


def test_fields_are_redacted(capsys: pytest.CaptureFixture[str]) -> None:
    configure()
    report(
        "client.failed",
        {
            "jwt": JWT,
            "headers": {"Authorization": "Bearer opaque-1"},
            "error": f"ServerSelectionTimeoutError: mongodb://app:hunter22@db/ {JWT}",
            "url": "/v1/ws?ticket=Zm9vYmFy",
        },
    )
    text = capsys.readouterr().err
    for secret in ("eyJ", "opaque-1", "hunter22", "Zm9vYmFy"):
        assert secret not in text
    assert "ServerSelectionTimeoutError" in text


@pytest.mark.parametrize("name", ["uvicorn.error", "pymongo.topology", "asyncio"])
def test_libraries_log_from_warning_on_and_are_redacted(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    configure("DEBUG")
    logger = logging.getLogger(name)
    logger.info("chatter")
    logger.warning('"WebSocket %s" 403', "/v1/ws?ticket=Zm9vYmFy")
    (line,) = lines(capsys)
    assert line["logger"] == name and line["level"] == "warning"
    assert "Zm9vYmFy" not in line["event"] and "/v1/ws" in line["event"]


def test_tracebacks_are_logged_and_redacted(capsys: pytest.CaptureFixture[str]) -> None:
    configure()
    try:
        raise RuntimeError(f"bearer.{JWT}")
    except RuntimeError:
        logging.getLogger("uvicorn.error").exception("failed")
    (line,) = lines(capsys)
    assert "RuntimeError" in line["exception"] and "eyJ" not in json.dumps(line)


def test_a_terminal_gets_readable_lines_redacted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    configure()
    report("tail.opened", {"error": JWT})
    try:
        raise RuntimeError(JWT)
    except RuntimeError:
        logging.getLogger("uvicorn.error").exception("failed")
    text = terminal.getvalue()
    assert "tail.opened" in text and "RuntimeError" in text
    assert not text.startswith("{") and "eyJ" not in text


def test_configuring_again_does_not_double_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    configure()
    configure()
    report("tail.opened", {})
    assert len(lines(capsys)) == 1


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="LOUD"):
        configure("LOUD")


def test_every_event_of_the_source_has_its_level_and_every_level_its_event() -> None:
    named = re.compile(r'"([a-z_]+\.[a-z_]+)"')
    reported = set()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for call in re.finditer(r"report\(", text):
            line_end = text.find("\n\n", call.end())
            first = text[call.end() : line_end].split("{")[0]
            reported |= set(named.findall(first))
    assert reported == set(LEVELS)
