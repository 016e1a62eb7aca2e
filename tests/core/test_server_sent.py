"""Frames as blocks of an event stream: one line each, whatever is in them, and the positions that they tell."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedsvc.core import messages
from feedsvc.core.messages import ExtendedTimestamp, encode
from feedsvc.core.server_sent import block, prelude, said
from tests.support.sse import Parser

AT = ExtendedTimestamp.of(7 << 32)
FIDELITY = messages.Fidelity("exact", deletes=True)


@pytest.mark.parametrize(
    ("frame", "moves"),
    [
        (messages.Subscribed("0", "t", False, AT, FIDELITY, None, "T"), {"t": "T"}),
        (messages.Subscribed("0", "t", False, AT, FIDELITY, None), {}),
        (messages.Event("t", messages.ChangeEvent("T", "insert", AT)), {"t": "T"}),
        (messages.Checkpoint({"t": "T", "u": "U"}), {"t": "T", "u": "U"}),
        (messages.SnapshotEnd("t", "T", AT), {"t": "T"}),
        (messages.Resync("t", "overflow", AT, 1, "T"), {"t": "T"}),
        (messages.Resync("t", "overflow", AT, 1), {}),
        (messages.Snapshot("t", 0, [{"token": "no", "tokens": {"t": "no"}}]), {}),
        (messages.Live("t"), {}),
        (messages.Unsubscribed("t", "topic_changed", True), {}),
        (messages.Heartbeat([], 0), {}),
        (messages.Goaway(5), {}),
        (messages.Welcome("c", 1, 1, {}, "s"), {}),
    ],
)
def test_a_frame_tells_the_positions_of_section_5_and_no_others(
    frame: messages.Frame, moves: dict[str, str]
) -> None:
    """From the encoded frame alone, as a client reads it."""
    found = said(encode(frame))
    assert found.type == frame.__struct_config__.tag
    assert found.moves == moves


def test_when_to_reconnect_is_read_from_a_goaway() -> None:
    """The one frame that says so."""
    assert said(encode(messages.Goaway(1_234))).reconnect_after_ms == 1_234
    assert said(encode(messages.Live("t"))).reconnect_after_ms is None


HOSTILE = ["\n\nevent: close\ndata: {}\n\n", "\r\rid: x\r\r", "\u2028\u2029\u0085", "\0", "data: x", ":"]


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_in_a_document_ends_a_line(text: str) -> None:
    """One block, one event, the same document."""
    frame = msgspec.json.encode(
        {"type": "snapshot", "topic": "t", "page": 0, "documents": [{"_id": text, text: 1}]}
    )
    found = Parser().feed(block("snapshot", frame, "T").decode())
    assert [(kind, last) for kind, _, last in found] == [("snapshot", "T")]
    assert msgspec.json.decode(found[0][1]) == msgspec.json.decode(frame)


@given(st.recursive(st.text(), lambda inner: st.dictionaries(st.text(), inner, max_size=3), max_leaves=5))
def test_any_json_is_one_event(value: object) -> None:
    """Also JSON with white space between its tokens, which is where a line could end."""
    loose = msgspec.json.format(msgspec.json.encode({"type": "x", "value": value}), indent=2)
    found = Parser().feed(block("x", loose.replace(b"\n", b"\r\n")).decode())
    assert len(found) == 1
    assert msgspec.json.decode(found[0][1]) == {"type": "x", "value": value}


def test_a_block_without_data_moves_the_id_and_dispatches_nothing() -> None:
    """What a client needs to come back, before there is anything to tell it."""
    parser = Parser()
    assert parser.feed(prelude("T", 2_000).decode()) == []
    assert (parser.last_event_id, parser.retry_ms, parser.blocks) == ("T", 2_000, 1)
    assert parser.feed(prelude(None, 5).decode()) == []
    assert (parser.last_event_id, parser.retry_ms) == ("T", 5)


def test_a_block_without_an_id_keeps_the_last_one() -> None:
    """A client that is cut behind a heartbeat resumes from the event before it."""
    parser = Parser()
    text = (block("a", b"{}", "T") + block("heartbeat", b"{}") + block("goaway", b"{}", None, 7)).decode()
    assert [last for _, _, last in parser.feed(text)] == ["T", "T", "T"]
    assert parser.retry_ms == 7
