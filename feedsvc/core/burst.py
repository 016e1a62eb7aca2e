"""Frames that leave together, and the bytes that a WebSocket carries for them.

A burst is made once for all cursors of a topic that stand alike and written as it is to each of their connections, so
what is made of it here is made once, too: the header of a text frame from a server is the same for every client
(RFC 6455, section 5.2: servers do not mask), and so is a compressed one where each message is compressed by itself
(RFC 7692, server_no_context_takeover). Whether that was negotiated is for the connection to know. What only some
connections make of a burst, `once` keeps for those that make the same.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

DEFLATE_WINDOW_BITS = 12
"""What a receiver must keep to inflate: 4 KiB. Nearly as small as with 32 KiB for frames of a few of them."""
DEFLATE_FROM_BYTES = 1024
"""Below that a frame fits into one packet anyway, and to inflate it costs a phone more than to receive it."""

_TEXT = 0x81
"""FIN and the opcode of text."""
_COMPRESSED_TEXT = 0xC1
"""The same with RSV1."""
_SYNC_FLUSH_TAIL_BYTES = 4


class Burst:
    """`frames`: whole text frames, UTF-8 JSON, in order. `count` and `size_bytes` are theirs, without headers."""

    __slots__ = ("_deflated", "_made", "_websocket", "count", "deflates", "frames", "size_bytes")

    def __init__(self, frames: Sequence[bytes]) -> None:
        self.frames = frames
        self.count = len(frames)
        sizes = list(map(len, frames))
        self.size_bytes = sum(sizes)
        self.deflates = max(sizes, default=0) >= DEFLATE_FROM_BYTES
        """Whether `deflated` may differ from `websocket`; where it does not, both are one object."""
        self._websocket: bytes | None = None
        self._deflated: bytes | None = None
        self._made: tuple[bytes, tuple[Sequence[bytes], str]] | None = None

    @property
    def websocket(self) -> bytes:
        """All frames with their headers, joined."""
        if self._websocket is None:
            self._websocket = b"".join([_framed(_TEXT, frame) for frame in self.frames])
        return self._websocket

    @property
    def deflated(self) -> bytes:
        """The same with every frame compressed that is large enough and becomes smaller by it.

        For a connection that negotiated `server_no_context_takeover` and a window of at least
        `DEFLATE_WINDOW_BITS`.
        """
        if self._deflated is None:
            self._deflated = b"".join(map(_deflated, self.frames)) if self.deflates else self.websocket
        return self._deflated

    def once(
        self, key: bytes, make: Callable[[], tuple[Sequence[bytes], str]]
    ) -> tuple[Sequence[bytes], str]:
        """Blocks and the resume token behind them, made once as long as no other key is asked for.

        Of one key only: nobody bounds the ways to ask for a topic, and what is made lives as long as the burst.
        """
        if self._made is None or self._made[0] != key:
            self._made = (key, make())
        return self._made[1]


def _deflated(frame: bytes) -> bytes:
    if len(frame) < DEFLATE_FROM_BYTES:
        return _framed(_TEXT, frame)
    deflate = zlib.compressobj(wbits=-DEFLATE_WINDOW_BITS)
    packed = deflate.compress(frame) + deflate.flush(zlib.Z_SYNC_FLUSH)
    packed = packed[:-_SYNC_FLUSH_TAIL_BYTES]
    return _framed(_COMPRESSED_TEXT, packed) if len(packed) < len(frame) else _framed(_TEXT, frame)


def _framed(first: int, payload: bytes) -> bytes:
    size_bytes = len(payload)
    if size_bytes < 126:
        return bytes((first, size_bytes)) + payload
    if size_bytes < 1 << 16:
        return bytes((first, 126)) + size_bytes.to_bytes(2, "big") + payload
    return bytes((first, 127)) + size_bytes.to_bytes(8, "big") + payload
