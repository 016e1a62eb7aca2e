"""The other ports in memory: connection, verifier, clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from feedsvc.core.burst import Burst
from feedsvc.ports import AuthError, Claims
from feedsvc.testing.oplog import START


class MemoryConnection:
    """`ports.Connection` that keeps what it is given.

    `room` is how many more frames it takes before it stops being writable; None is without limit.
    """

    def __init__(self, *, room: int | None = None) -> None:
        self.frames: list[bytes] = []
        self.frames_sent = 0
        self.bytes_sent = 0
        self.writes = 0
        self.closed: tuple[int, str] | None = None
        self._room = room
        self._open = True
        self._callback: Callable[[], None] | None = None
        self.direct = self._write_direct

    @property
    def writable(self) -> bool:
        return self._open and self.closed is None and (self._room is None or self._room > 0)

    def write(self, frames: Sequence[bytes]) -> None:
        if self.closed is not None:
            return
        self.frames_sent += len(frames)
        self.bytes_sent += sum(map(len, frames))
        self._take(frames)

    def _take(self, frames: Sequence[bytes]) -> None:
        before = self.writable
        self.writes += 1
        self.frames.extend(frames)
        if self._room is not None:
            self._room -= len(frames)
        self._notify(before)

    def write_burst(self, burst: Burst) -> None:
        self.write(burst.frames)

    def _write_direct(self, data: bytes) -> None:
        if not self.writable:
            raise AssertionError("written to a transport that takes nothing")
        self._take(unframed(data))

    def on_room(self, callback: Callable[[], None]) -> None:
        self._callback = callback

    def close(self, code: int, reason: str = "") -> None:
        if self.closed is None:
            before = self.writable
            self.closed = (code, reason)
            self._notify(before)

    def set_writable(self, writable: bool) -> None:
        """Open or shut the transport; a change runs the callback."""
        before = self.writable
        self._open = writable
        self._notify(before)

    def set_room(self, room: int | None) -> None:
        """How many more frames fit; a change of `writable` runs the callback."""
        before = self.writable
        self._room = room
        self._notify(before)

    def _notify(self, before: bool) -> None:
        if self.writable != before and self._callback is not None:
            self._callback()

    def messages(self) -> list[dict[str, Any]]:
        """The frames so far as JSON objects."""
        return [msgspec.json.decode(frame) for frame in self.frames]

    def take(self) -> list[dict[str, Any]]:
        """`messages()`, and forget them."""
        messages = self.messages()
        self.frames.clear()
        return messages


def unframed(data: bytes) -> list[bytes]:
    """The payloads of whole WebSocket frames of a server (RFC 6455, section 5.2)."""
    frames = []
    while data:
        extended_bytes = {126: 2, 127: 8}.get(data[1], 0)
        head = 2 + extended_bytes
        end = head + (int.from_bytes(data[2:head], "big") if extended_bytes else data[1])
        frames.append(data[head:end])
        data = data[end:]
    return frames


class MemoryVerifier:
    """`ports.Verifier` over a table; an `AuthError` as the value is raised, an unknown JWT is `auth_invalid`."""

    def __init__(self, known: Mapping[str, Claims | AuthError] | None = None) -> None:
        self.known: dict[str, Claims | AuthError] = dict(known or {})

    async def verify(self, jwt: str) -> Claims:
        found = self.known.get(jwt)
        if found is None:
            raise AuthError("auth_invalid", "The JWT is not valid here.")
        if isinstance(found, AuthError):
            raise found
        return found


class ManualClock:
    """`ports.Clock` that moves when told. `wall` starts at the time of a new oplog."""

    def __init__(self, *, monotonic: float = 0.0, wall: float = float(START >> 32)) -> None:
        self._monotonic = monotonic
        self._wall = wall

    def monotonic(self) -> float:
        return self._monotonic

    def wall(self) -> float:
        return self._wall

    def advance(self, seconds: float) -> None:
        """Move both clocks on; they never go back."""
        if seconds < 0:
            raise ValueError("a clock does not go back")
        self._monotonic += seconds
        self._wall += seconds
