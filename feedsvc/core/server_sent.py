"""A frame of the protocol as a server-sent event, and what it says about positions (protocol.md sections 5 and 10).

    event: <type>
    data: <the frame>
    id: <the token of the whole stream, where the frame moved a position>

A line ends at CR, LF or CRLF (WHATWG HTML, section 9.2.6), so nothing in a block may hold one of them but its own ends.
JSON writes those inside strings as escapes; between its tokens they would be white space, and are replaced by some.
Other line separators of Unicode end no line here.

Positions are read from the frame itself, so that what an `id:` covers is what was written before it and nothing else.
An `event` is read by its fixed beginning, as `core.frames` builds it; the rest is small, but for pages of a snapshot,
which hold none. Linear in the size of the frame.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

_EVENT = b'{"type":"event","topic":"'
_EVENT_ID = b'","event":{"_id":"'
_PAGE = b'{"type":"snapshot",'


class Said(msgspec.Struct, rename="camel", frozen=True):
    """What of a server frame matters to a stream."""

    type: str
    topic: str | UnsetType = UNSET
    id: str | UnsetType = UNSET
    token: str | UnsetType = UNSET
    tokens: dict[str, str] | UnsetType = UNSET
    reconnect_after_ms: int | None = None

    @property
    def moves(self) -> dict[str, str]:
        """Topic ids to the resume tokens that their client now stands at."""
        if self.tokens is not UNSET:
            return self.tokens
        if self.topic is not UNSET and self.token is not UNSET:
            return {self.topic: self.token}
        return {}


_decoder = msgspec.json.Decoder(Said)
_a_page = Said("snapshot")


def said(frame: bytes) -> Said:
    """Read a server frame."""
    if frame.startswith(_EVENT):
        end = frame.index(b'"', len(_EVENT))
        if frame.startswith(_EVENT_ID, end):
            begin = end + len(_EVENT_ID)
            token = frame[begin : frame.index(b'"', begin)].decode()
            return Said("event", topic=frame[len(_EVENT) : end].decode(), token=token)
    if frame.startswith(_PAGE):
        return _a_page
    return _decoder.decode(frame)


def block(name: str, frame: bytes, stream_token: str | None = None, retry_ms: int | None = None) -> bytes:
    """The event of a frame. `retry_ms`: when to reconnect from now on."""
    if b"\n" in frame or b"\r" in frame:
        frame = frame.replace(b"\n", b" ").replace(b"\r", b" ")
    return b"event: %b\ndata: %b\n%b\n" % (name.encode(), frame, _fields(stream_token, retry_ms))


def prelude(stream_token: str | None, retry_ms: int) -> bytes:
    """A block without data: a client takes its `id:` and `retry:` and dispatches no event."""
    return _fields(stream_token, retry_ms) + b"\n"


def _fields(stream_token: str | None, retry_ms: int | None) -> bytes:
    lines = b"" if stream_token is None else b"id: %b\n" % stream_token.encode()
    return lines if retry_ms is None else lines + b"retry: %d\n" % retry_ms
