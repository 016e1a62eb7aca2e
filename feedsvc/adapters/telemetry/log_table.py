"""Every event that the service logs, declared once; `docs/metrics.md` has the table.

Rules for editing: an event's name and fields are stable, as people search for them. `error` is always `Kind: what the
service says about it`. Tests hold the names in the source to this table both ways, and what is reported to the fields.
"""

from __future__ import annotations

import logging

import msgspec


class LogEvent(msgspec.Struct, frozen=True):
    """`fields`: those that a line may have beside the ones of every line."""

    level: int
    meaning: str
    fields: tuple[str, ...] = ()


_INFO, _WARNING, _ERROR = logging.INFO, logging.WARNING, logging.ERROR

LOG_EVENTS: dict[str, LogEvent] = {
    "service.started": LogEvent(_INFO, "The process begins; it listens soon.", ("version",)),
    "service.listening": LogEvent(_INFO, "It takes connections here.", ("host", "port")),
    "service.failed": LogEvent(_ERROR, "It cannot go on and ends.", ("reason",)),
    "service.draining": LogEvent(_INFO, "A signal came: clients are told and closed.", ("clients",)),
    "service.stopped": LogEvent(_INFO, "The last line of an orderly end."),
    "configuration.warning": LogEvent(_WARNING, "What `feedsvc check` warns of.", ("warning",)),
    "connection.opened": LogEvent(_INFO, "A socket or stream was accepted.", ("connection",)),
    "connection.closed": LogEvent(
        _INFO,
        "It is gone; code and reason are of whichever side was first.",
        ("connection", "code", "reason"),
    ),
    "status.opened": LogEvent(_INFO, "An operator follows /v1/status.", ("stream",)),
    "status.closed": LogEvent(_INFO, "That stream ended.", ("stream", "code", "reason")),
    "client.failed": LogEvent(
        _ERROR,
        "A mistake of ours ended one request or client.",
        ("connection", "what", "reference", "error"),
    ),
    "request.failed": LogEvent(_ERROR, "A mistake of ours ended one HTTP request.", ("reference", "error")),
    "source.failed": LogEvent(_WARNING, "MongoDB does not answer; said once until that changes.", ("error",)),
    "source.answers": LogEvent(_INFO, "MongoDB answers, for the first time or again."),
    "images.changed": LogEvent(
        _INFO,
        "A collection's pre- and post-images were switched; its subscribers subscribe again.",
        ("database", "collection", "images"),
    ),
    "images.unknown": LogEvent(
        _WARNING, "MongoDB does not say whether collections keep images.", ("database", "error")
    ),
    "tail.opened": LogEvent(_INFO, "A scope has its first subscription.", ("scope",)),
    "tail.closed": LogEvent(_INFO, "Nobody needed it for a while.", ("scope",)),
    "tail.failed": LogEvent(
        _WARNING,
        "A change stream failed and is opened again; `lost` is the resync reason where its position is gone.",
        ("scope", "error", "lost"),
    ),
    "tail.stalled": LogEvent(_WARNING, "A change stream does not answer; clients are told.", ("scope",)),
    "tail.recovered": LogEvent(_INFO, "It answers again.", ("scope",)),
    "catch_up.failed": LogEvent(
        _WARNING, "A catch-up stream failed; its subscriptions wait for another.", ("scope", "error")
    ),
    "catch_up.broken": LogEvent(
        _ERROR, "A mistake of ours ended a catch-up stream; its subscriptions got resync.", ("scope", "error")
    ),
    "event.failed": LogEvent(
        _ERROR, "A change could not be made into an event; the topic got resync.", ("topic", "error")
    ),
    "snapshot.failed": LogEvent(_WARNING, "A snapshot failed and is tried again.", ("topic", "error")),
    "snapshot.given_up": LogEvent(
        _ERROR, "A snapshot is too large, or a mistake of ours ended it.", ("topic", "outcome", "error")
    ),
    "jwks.changed": LogEvent(_INFO, "The issuer's keys are others than before.", ("keys", "ignored")),
    "jwks.failed": LogEvent(
        _WARNING, "The issuer's keys could not be fetched.", ("reason", "failures", "age_s")
    ),
}
