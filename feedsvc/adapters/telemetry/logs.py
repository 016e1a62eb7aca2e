"""Logs: one JSON object per line on stderr, or a readable form where stderr is a terminal.

The code says what happened with `report(event, fields)`; how loud that is stands in `LEVELS`. Libraries that log
with the standard library (uvicorn, PyMongo, asyncio) come out of the same handler, from WARNING on. Every line
passes `redaction`, also tracebacks and those of libraries.

A compromise: a line is written synchronously, so a stderr that nobody reads can hold up the loop. Per-message
events are therefore not reported at all.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any

import msgspec
import structlog

from feedsvc.adapters.telemetry.log_table import LOG_EVENTS
from feedsvc.adapters.telemetry.redaction import redacted

LEVELS: Mapping[str, int] = {name: event.level for name, event in LOG_EVENTS.items()}
"""The stable names of what is reported. One that is missing here is a mistake of ours and logged as a warning."""

_OURS = "feedsvc"
_RESERVED = frozenset({"event", "level", "logger", "timestamp"})

Processor = structlog.typing.Processor
EventDict = MutableMapping[str, Any]


def configure(level: str = "INFO") -> None:
    """Take over the process's logging: ours from `level` on, that of libraries from WARNING on. May be called again.

    `level` is a name of the standard library; ValueError for another. Give uvicorn `log_config=None`.
    """
    threshold = logging.getLevelNamesMapping().get(level.upper())
    if threshold is None:
        raise ValueError(f"{level!r} is not a log level")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(console=sys.stderr.isatty()))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(_OURS).setLevel(threshold)
    logging.captureWarnings(True)


def report(event: str, fields: Mapping[str, object]) -> None:
    """Log that something happened. Matches `runtime.tail.Report`; never raises for what the fields hold."""
    logger = logging.getLogger(_OURS)
    level = LEVELS.get(event, logging.WARNING)
    if logger.isEnabledFor(level):
        renamed = {f"{name}_" if name in _RESERVED else name: value for name, value in fields.items()}
        logger.log(level, "%s", event, extra={"feedsvc_fields": renamed})


def _formatter(*, console: bool) -> logging.Formatter:
    before: list[Processor] = [
        _add_fields,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _redact,
    ]
    renderer: Processor
    if console:
        renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    else:
        renderer = structlog.processors.JSONRenderer(serializer=_serialize)
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=before,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )


def _add_fields(_logger: object, _method: str, event: EventDict) -> EventDict:
    record = event.get("_record")
    event.update(getattr(record, "feedsvc_fields", {}))
    return event


def _redact(_logger: object, _method: str, event: EventDict) -> EventDict:
    meta = {name: value for name, value in event.items() if name.startswith("_")}
    clean = redacted({name: value for name, value in event.items() if name not in meta})
    assert isinstance(clean, dict)
    return {**clean, **meta}


def _serialize(event: object, **_: object) -> str:
    return msgspec.json.encode(event).decode()
