"""What a request for server-sent events asks: the query of a GET, the JSON of a POST, and `Last-Event-ID`.

`Last-Event-ID` goes before `resumeAfter`: an EventSource keeps the URL that it began with, so what is in the URL is
older than the header of its reconnect. A parameter that is not known is refused, and so is one that is given twice: a
misspelt `resumeAfter` would miss events without a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, get_args
from urllib.parse import parse_qsl

import msgspec
from msgspec import UNSET
from starlette.requests import Request

from feedsvc.adapters.web.body import json_body
from feedsvc.core.errors import Refusal
from feedsvc.core.messages import (
    STREAM_TOPICS,
    ExtendedTimestamp,
    SnapshotMode,
    StreamRequest,
    decode_stream_request,
    decode_topic_request,
)

QUERY_OF_GET = frozenset({"topic", "snapshot", "startAtOperationTime", "resumeAfter", "ticket"})
QUERY_OF_POST = frozenset({"resumeAfter", "ticket"})


async def stream_request(request: Request, max_body_bytes: int) -> StreamRequest:
    """The request, with the token to resume after from wherever it came. Raises `Refusal`, `ClientDisconnect`."""
    get = request.method == "GET"
    found = _parameters(request.scope["query_string"], QUERY_OF_GET if get else QUERY_OF_POST)
    asked = _of_query(found) if get else decode_stream_request(await json_body(request, max_body_bytes))
    given = [value for name, value in found if name == "resumeAfter"]
    if asked.resume_after is not UNSET:
        given.append(asked.resume_after)
    if len(given) > 1:
        raise Refusal("bad_request", "give resumeAfter once")
    if given and asked.start_at_operation_time is not UNSET:
        raise Refusal("bad_request", "give at most one of resumeAfter and startAtOperationTime")
    if last_event_id := request.headers.get("last-event-id"):
        given = [last_event_id]
    return msgspec.structs.replace(asked, resume_after=given[0] if given else UNSET)


def _parameters(query: bytes, known: frozenset[str]) -> list[tuple[str, str]]:
    """Names and values, each name known and, but for `topic`, there once."""
    try:
        found = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict")
    except ValueError:
        raise Refusal("bad_request", "the query string is not UTF-8, URL-encoded") from None
    names = [name for name, _ in found]
    if not known.issuperset(names):
        raise Refusal("bad_request", f"unknown query parameter; known are {', '.join(sorted(known))}")
    for name in known - {"topic"}:
        if names.count(name) > 1:
            raise Refusal("bad_request", f"give the query parameter {name} once")
    return found


def _of_query(found: Sequence[tuple[str, str]]) -> StreamRequest:
    topics = [value for name, value in found if name == "topic"]
    if not 1 <= len(topics) <= STREAM_TOPICS:
        raise Refusal(
            "bad_request", f"give the query parameter topic at least once, at most {STREAM_TOPICS} times"
        )
    single = dict(found)
    return StreamRequest(
        [decode_topic_request(topic.encode()) for topic in topics],
        start_at_operation_time=_time(single.get("startAtOperationTime")),
        snapshot=_snapshot(single.get("snapshot", "never")),
    )


def _snapshot(text: str) -> SnapshotMode:
    modes = get_args(SnapshotMode)
    if text not in modes:
        raise Refusal("bad_request", f"snapshot must be one of {', '.join(modes)}")
    return cast(SnapshotMode, text)


def _time(text: str | None) -> ExtendedTimestamp | msgspec.UnsetType:
    if text is None:
        return UNSET
    try:
        return msgspec.json.decode(text, type=ExtendedTimestamp)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise Refusal(
            "bad_request", 'startAtOperationTime must be JSON: {"$timestamp":{"t":..,"i":..}}'
        ) from None
