"""Which form of an answer a request asks for (RFC 9110, section 12.5.1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedsvc.adapters.web.accept import prefers_event_stream


@pytest.mark.parametrize(
    ("accept", "stream"),
    [
        ("", False),
        ("*/*", False),
        ("text/event-stream", True),
        ("Text/Event-Stream", True),
        ("text/*", True),
        ("application/json", False),
        ("text/html, application/xhtml+xml, */*;q=0.8", False),
        ("text/event-stream, */*", True),
        ("text/event-stream;q=0.5, */*", False),
        ("text/event-stream, application/json", False),
        ("text/event-stream, application/json;q=0.9", True),
        ("text/event-stream;q=0", False),
        ("text/event-stream;q=0, text/*", False),
        ("text/event-stream;q=none", False),
        ("text/event-stream;q=7", False),
        ("text/event-stream; charset=utf-8 ; q=0.1", True),
        ("image/png", False),
        (",;,=,", False),
    ],
)
def test_the_weights_decide_and_json_where_they_do_not(accept: str, stream: bool) -> None:
    assert prefers_event_stream(accept) is stream


@given(st.text(alphabet="*/;,=q0.1 textevn-sramplicojT", max_size=60))
def test_no_accept_is_too_strange_for_an_answer(accept: str) -> None:
    """And a request that names neither form is never put on a stream."""
    assert prefers_event_stream(accept) in (False, "text" in accept.lower())
