"""Frames that leave together, and the bytes that a WebSocket carries for them.

A burst is made once for all cursors of a topic that stand alike and written as it is to each of their connections, so
what is made of it here is made once, too: the header of a text frame from a server is the same for every client
(RFC 6455, section 5.2: servers do not mask).
"""

from __future__ import annotations

from collections.abc import Sequence

_TEXT = 0x81
"""FIN and the opcode of text."""


class Burst:
    """`frames`: whole text frames, UTF-8 JSON, in order. `size_bytes` is theirs, without headers."""

    __slots__ = ("_websocket", "frames", "size_bytes")

    def __init__(self, frames: Sequence[bytes]) -> None:
        self.frames = frames
        self.size_bytes = sum(map(len, frames))
        self._websocket: bytes | None = None

    @property
    def websocket(self) -> bytes:
        """All frames with their headers, joined."""
        if self._websocket is None:
            self._websocket = b"".join(
                [part for frame in self.frames for part in (_header(len(frame)), frame)]
            )
        return self._websocket


def _header(size_bytes: int) -> bytes:
    if size_bytes < 126:
        return bytes((_TEXT, size_bytes))
    if size_bytes < 1 << 16:
        return bytes((_TEXT, 126)) + size_bytes.to_bytes(2, "big")
    return bytes((_TEXT, 127)) + size_bytes.to_bytes(8, "big")
