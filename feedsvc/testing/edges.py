"""The other ports in memory: connection, verifier, clock."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from feedsvc.core.burst import Burst
from feedsvc.core.lockstep import Direct
from feedsvc.ports import AuthError, Claims
from feedsvc.testing.oplog import START


class MemoryConnection:
    """`ports.Connection` that keeps what it is given.

    `room` is how many more frames it takes before it stops being writable; None is without limit. `write_each` writes
    to its descriptor, as `core.lockstep.WriteEach`, unless it is not to be `direct`.
    """

    _numbers = itertools.count(3)
    _open: ClassVar[weakref.WeakValueDictionary[int, MemoryConnection]] = weakref.WeakValueDictionary()

    def __init__(self, *, room: int | None = None, direct: bool = True) -> None:
        self.frames: list[bytes] = []
        self.frames_sent = 0
        self.bytes_sent = 0
        self.writes = 0
        self.closed: tuple[int, str] | None = None
        self._room = room
        self._takes = True
        self._callback: Callable[[], None] | None = None
        self.direct: Direct | None = None
        if direct:
            self.direct = Direct(next(self._numbers), self._write_rest)
            self._open[self.direct.descriptor] = self

    @property
    def writable(self) -> bool:
        return self._takes and self.closed is None and (self._room is None or self._room > 0)

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

    def _write_rest(self, rest: memoryview) -> None:
        self._take(unframed(bytes(rest)))

    @classmethod
    def write_each(cls, descriptors: Sequence[int], data: bytes) -> list[tuple[int, memoryview]]:
        """A socket that the last of the frames would fill does not take that one, nor those it has no room for."""
        rests = []
        frames = list(_frames(data))
        for place, descriptor in enumerate(descriptors):
            connection = cls._open[descriptor]
            if not connection.writable:
                raise AssertionError("written to a socket that takes nothing")
            count = len(frames) if connection._room is None else min(len(frames), connection._room - 1)
            connection._take([payload for payload, _ in frames[:count]])
            if count < len(frames):
                rests.append((place, memoryview(data)[frames[count - 1][1] if count else 0 :]))
        return rests

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
        self._takes = writable
        self._notify(before)

    def set_room(self, room: int | None) -> None:
        """How many more frames fit; a change of `writable` runs the callback."""
        before = self.writable
        self._room = room
        self._notify(before)

    def _notify(self, before: bool) -> None:
        if self.writable != before:
            if before and self.direct is not None:
                self.direct.full()
            if self._callback is not None:
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
    return [payload for payload, _ in _frames(data)]


def _frames(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Each payload and where it ends."""
    start = 0
    while start < len(data):
        extended_bytes = {126: 2, 127: 8}.get(data[start + 1], 0)
        head = start + 2 + extended_bytes
        start = head + (int.from_bytes(data[start + 2 : head], "big") if extended_bytes else data[start + 1])
        yield data[head:start], start


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
