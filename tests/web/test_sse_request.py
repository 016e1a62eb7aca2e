"""What a request for a stream may say, where, and what goes before what."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import pytest
from msgspec import UNSET
from starlette.requests import Request

from feedsvc.adapters.web.sse_request import stream_request
from feedsvc.core.errors import Refusal
from feedsvc.core.messages import ExtendedTimestamp, StreamRequest, TopicRequest

TOPIC = '{"collection":"orders"}'
TIME = '{"$timestamp":{"t":7,"i":3}}'


def request(
    query: list[tuple[str, str]] | bytes = b"",
    *,
    last_event_id: str | None = None,
    body: Any = None,
    kind: str = "application/json",
) -> Request:
    """A GET, or a POST where there is a body."""
    headers = [(b"content-type", kind.encode())]
    if last_event_id is not None:
        headers.append((b"last-event-id", last_event_id.encode()))
    scope = {
        "type": "http",
        "method": "GET" if body is None else "POST",
        "headers": headers,
        "query_string": query if isinstance(query, bytes) else urlencode(query).encode(),
    }
    text = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": text, "more_body": False}

    return Request(scope, receive)


async def asked(*arguments: Any, **named: Any) -> StreamRequest:
    return await stream_request(request(*arguments, **named), 65_536)


async def test_a_get_has_its_topics_in_order() -> None:
    """As JSON, as often as there are topics; the rest is for all of them."""
    query = [("topic", TOPIC), ("snapshot", "onResync"), ("topic", '{"collection":"users","filter":{"a":1}}')]
    assert await asked([*query, ("startAtOperationTime", TIME)]) == StreamRequest(
        [TopicRequest("orders"), TopicRequest("users", filter={"a": 1})],
        start_at_operation_time=ExtendedTimestamp.of(7 << 32 | 3),
        snapshot="onResync",
    )


async def test_a_post_says_the_same_as_json() -> None:
    """Its token may stand in the URL or the body."""
    body = {"topics": [{"collection": "orders"}], "snapshot": "always", "resumeAfter": "T"}
    expected = StreamRequest([TopicRequest("orders")], resume_after="T", snapshot="always")
    assert await asked(body=body) == expected
    del body["resumeAfter"]
    assert await asked([("resumeAfter", "T"), ("ticket", "x")], body=body) == expected


async def test_the_header_goes_before_the_url_which_is_older() -> None:
    """EventSource keeps its URL; beside a time the header is no contradiction, for new topics start at it."""
    found = await asked([("topic", TOPIC), ("resumeAfter", "old")], last_event_id="new")
    assert found.resume_after == "new"
    found = await asked([("topic", TOPIC), ("startAtOperationTime", TIME)], last_event_id="new")
    assert (found.resume_after, found.start_at_operation_time) == ("new", ExtendedTimestamp.of(7 << 32 | 3))
    assert (await asked([("topic", TOPIC)], last_event_id="")).resume_after is UNSET
    assert (await asked([("topic", TOPIC), ("resumeAfter", "")])).resume_after == ""


@pytest.mark.parametrize(
    "query",
    [
        [],
        [("topic", TOPIC)] * 9,
        [("topic", "orders")],
        [("topic", "{}")],
        [("topic", TOPIC), ("lastEventId", "x")],
        [("topic", TOPIC), ("last-event-id", "x")],
        [("topic", TOPIC), ("Topic", TOPIC)],
        [("topic", TOPIC), ("resumeAfter", "a"), ("resumeAfter", "b")],
        [("topic", TOPIC), ("snapshot", "never"), ("snapshot", "always")],
        [("topic", TOPIC), ("snapshot", "")],
        [("topic", TOPIC), ("resumeAfter", "a"), ("startAtOperationTime", TIME)],
        [("topic", TOPIC), ("startAtOperationTime", "7")],
        [("topic", TOPIC), ("startAtOperationTime", "[" * 10_000)],
        [("topic", "[" * 10_000)],
        b"topic=%FF",
        b"topic=\xff",
        b"topic=%7B%22collection%22%3A%22%ED%A0%80%22%7D",
    ],
)
async def test_a_query_is_taken_to_the_letter(query: Any) -> None:
    """RES-15: nothing is ignored, for what is ignored may have been the token."""
    with pytest.raises(Refusal) as caught:
        await asked(query)
    assert caught.value.code == "bad_request"


@pytest.mark.parametrize(
    ("query", "body", "kind"),
    [
        (b"", {"topics": []}, "application/json"),
        (b"", {"topics": [{"collection": "c"}] * 9}, "application/json"),
        (b"", {"topics": [{"collection": "c"}], "resumeafter": "x"}, "application/json"),
        (b"", {"topics": [{"collection": "c"}], "lastEventId": "x"}, "application/json"),
        (b"", {}, "application/json"),
        (b"", b"{", "application/json"),
        (b"", b"[" * 50_000, "application/json"),
        (b"", b" " * 70_000, "application/json"),
        (b"", {"topics": [{"collection": "c"}]}, "text/plain"),
        (b"topic=%7B%22collection%22%3A%22c%22%7D", {"topics": [{"collection": "c"}]}, "application/json"),
        (b"resumeAfter=a", {"topics": [{"collection": "c"}], "resumeAfter": "b"}, "application/json"),
        (
            b"resumeAfter=a",
            {"topics": [{"collection": "c"}], "startAtOperationTime": json.loads(TIME)},
            "application/json",
        ),
    ],
)
async def test_so_is_a_body(query: bytes, body: Any, kind: str) -> None:
    """And its size is bounded."""
    with pytest.raises(Refusal) as caught:
        await asked(query, body=body, kind=kind)
    assert caught.value.code == "bad_request"
