"""Whether the peer of a WebSocket is still there: a ping now and then, and anything that comes is a sign of life.

Pings go out with what is written anyway, where that comes in time: a heartbeat and a ping are one write and one packet.
Gone within the peer time-out: silent for five sixths of it, asked at least every half. A browser answers pings by
itself (RFC 6455, section 5.5.2); its pongs keep proxies from finding the client's side idle, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from websockets.server import ServerProtocol
from websockets.streams import StreamReader

from feedsvc.runtime.wheel import Wheel

PING = b"\x89\x00"
"""A whole frame without a payload: any answer will do."""
EMPTY_PONG = b"\x8a\x80"
"""How its answer begins: FIN and opcode, masked and empty; four bytes of mask follow."""
EMPTY_PONG_BYTES = 6
_SILENT = 5 / 6
_ASKED = 1 / 2
_ASKED_ALONG = 1 / 4
"""Parts of the time-out: gone after, asked at the latest, asked where something is written anyway."""
_AT_EOF = StreamReader.at_eof.__code__


def is_between_frames(protocol: ServerProtocol) -> bool:
    """Whether what comes next is the beginning of a frame: only there its parser asks for the end of the stream."""
    waiting: Any = protocol.parser
    while (inner := waiting.gi_yieldfrom) is not None:
        waiting = inner
    return waiting.gi_code is _AT_EOF


class Liveness:
    """Of one socket. `silent` is called once, when the peer was for too long; `write` takes a ping."""

    __slots__ = ("_heard", "_pinged", "_silent", "_slot", "_timeout_s", "_wheel", "_write")

    def __init__(
        self, wheel: Wheel, timeout_s: float, write: Callable[[bytes], object], silent: Callable[[], None]
    ) -> None:
        self._wheel = wheel
        self._timeout_s = timeout_s
        self._write = write
        self._silent = silent
        self._heard = self._pinged = wheel.now()
        self._slot: int | None = None
        self._set()

    def hear(self) -> None:
        """Something came from the peer."""
        self._heard = self._wheel.now()

    def stop(self) -> None:
        if self._slot is not None:
            self._wheel.clear(self, self._slot)
            self._slot = None

    def with_ping(self, data: bytes) -> bytes:
        """What is written, and a ping behind it if the next one is due before long."""
        now = self._wheel.now()
        if now - self._pinged < self._timeout_s * _ASKED_ALONG:
            return data
        self._pinged = now
        return data + PING

    def due(self) -> None:
        """For the wheel, which may have been about to call when this was stopped: the transport is closed by now."""
        if self._slot is None:
            return
        self._slot = None
        now = self._wheel.now()
        if now >= self._heard + self._timeout_s * _SILENT:
            self._silent()
            return
        if now >= self._pinged + self._timeout_s * _ASKED:
            self._pinged = now
            self._write(PING)
        self._set()

    def _set(self) -> None:
        missed_at = self._heard + self._timeout_s * _SILENT
        asked_at = self._pinged + self._timeout_s * _ASKED
        self._slot = self._wheel.set(self, missed_at if missed_at < asked_at else asked_at)
