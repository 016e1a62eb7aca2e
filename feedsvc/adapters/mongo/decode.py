"""Upstream events to `Change`s: the envelope at once, the body when a topic asks for it.

A body that is not valid BSON or UTF-8 raises `UndecodableError` where it is used, and costs only the topics that
use it.
"""

from __future__ import annotations

from typing import Any

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError

from feedsvc.adapters.mongo.envelope import MALFORMED, read_envelope, read_token
from feedsvc.adapters.mongo.upstream_token import token_parts
from feedsvc.core.changes import (
    Change,
    ChangeBody,
    ScopeLevel,
    UndecodableError,
    expand,
    position_kind,
)
from feedsvc.core.positions import cluster_time_of, record_position
from feedsvc.ports import EventUnavailable

BODY_CODEC: CodecOptions[dict[str, Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
"""For documents: dates as `DatetimeMS` (no range, no time zone), UUIDs as `Binary`, strict UTF-8."""


def decode(raw: bytes, level: ScopeLevel) -> tuple[Change, ...]:
    """An event as its change, followed by the `invalidate` that is ours to synthesise at this scope.

    Raises `EventUnavailable` where the envelope itself cannot be read.
    """
    try:
        return expand(_change(raw, level))
    except (*MALFORMED, AttributeError):
        raise EventUnavailable("the envelope of an event cannot be read") from None


def _change(raw: bytes, level: ScopeLevel) -> Change:
    envelope = read_envelope(raw)
    operation = envelope.operation
    data, type_bits = token_parts(read_token(raw))
    return Change(
        position=record_position(
            position_kind(operation, level),
            cluster_time_of(envelope.time, envelope.increment),
            data,
            type_bits,
        ),
        operation=operation,
        namespace=envelope.namespace,
        body=LazyBody(raw),
        size_bytes=len(raw),
        renamed_to=envelope.renamed_to,
    )


class LazyBody:
    """The body of one change; decoded at the first call, then kept, since several topics may ask."""

    __slots__ = ("_body", "_raw")

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._body: ChangeBody | None = None

    def __call__(self) -> ChangeBody:
        if self._body is None:
            self._body = decode_body(self._raw)
        return self._body


def decode_body(raw: bytes) -> ChangeBody:
    """The body of an event's BSON; raises `UndecodableError`."""
    try:
        event = bson.decode(raw, BODY_CODEC)
        wall_time = event.get("wallTime")
        return ChangeBody(
            document_key=event.get("documentKey"),
            full_document=event.get("fullDocument"),
            before=event.get("fullDocumentBeforeChange"),
            update_description=event.get("updateDescription"),
            wall_time_ms=None if wall_time is None else int(wall_time),
        )
    except (BSONError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UndecodableError(f"the body of an event cannot be decoded ({type(error).__name__})") from None


def decode_document(raw: bytes) -> dict[str, Any]:
    """A document that a find returned; raises `EventUnavailable`."""
    try:
        return bson.decode(raw, BODY_CODEC)
    except (BSONError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise EventUnavailable(f"a document cannot be decoded ({type(error).__name__})") from None
