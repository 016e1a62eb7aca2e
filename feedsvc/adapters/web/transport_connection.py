"""`ports.Connection` on uvicorn's own transport: ready frames reach it without an ASGI round for each client.

The queue is the transport's buffer and nothing else, and `writable` is what the transport says of it: it is empty.
Everything that ends a socket (`FeedProtocol`) shuts the connection first: nothing is written behind a close frame.
On a server that is not ours `AsgiConnection` does the same through `send`; one contract test holds both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from feedsvc.adapters.web.descriptors import direct_of
from feedsvc.adapters.web.server_protocol import FeedProtocol
from feedsvc.core.burst import Burst
from feedsvc.runtime.wheel import Wheel

_REASON_BYTES = 123
"""The most that a close frame can carry (RFC 6455, section 5.5)."""


class TransportConnection:
    """One accepted WebSocket. `writable` is an attribute: it is asked for every delivery."""

    __slots__ = (
        "_callback",
        "_deflates",
        "_ended",
        "_protocol",
        "_receive",
        "_shut",
        "_with_ping",
        "_write",
        "bytes_sent",
        "close_sent",
        "direct",
        "frames_sent",
        "writable",
    )

    def __init__(self, protocol: FeedProtocol) -> None:
        self.writable = True
        self.frames_sent = 0
        self.bytes_sent = 0
        self.close_sent: tuple[int, str] | None = None
        """Code and reason with which this side closed, None if it did not."""
        self._protocol = protocol
        self._write = protocol.transport.write
        self._with_ping = protocol.with_ping
        self._deflates = protocol.deflates
        self.direct = direct_of(protocol.transport, deflates=self._deflates)
        self._callback: Callable[[], None] | None = None
        self._receive: Callable[[str | None], None] | None = None
        self._ended: Callable[[int, str], None] | None = None
        self._shut = False

    def carry(
        self,
        wheel: Wheel,
        receive: Callable[[str | None], None],
        ended: Callable[[int, str], None],
    ) -> bool:
        """Begin: `receive` gets each message (None for a binary one), `ended` the close code and reason, once.

        False where the socket has ended already; nothing is called then.
        """
        self._receive, self._ended = receive, ended
        if not self._protocol.carry(self, wheel):
            return False
        self._with_ping = self._protocol.with_ping
        return True

    # -- ports.Connection ---------------------------------------------------------------------------------

    def write(self, frames: Sequence[bytes]) -> None:
        self.write_burst(Burst(frames))

    def write_burst(self, burst: Burst) -> None:
        if not self._shut:
            self._write(self._with_ping(burst.deflated if self._deflates else burst.websocket))
            self.frames_sent += burst.count
            self.bytes_sent += burst.size_bytes

    def on_room(self, callback: Callable[[], None]) -> None:
        self._callback = callback

    def close(self, code: int, reason: str = "") -> None:
        if self.close_sent is None:
            self.close_sent = (code, reason.encode()[:_REASON_BYTES].decode(errors="ignore"))
            self._protocol.close_now(*self.close_sent)

    # -- what the protocol calls (server_protocol.Carrier) ------------------------------------------------

    def received(self, text: str | None) -> None:
        if self._receive is not None:
            self._receive(text)

    def room_changed(self, room: bool) -> None:
        if room == self.writable or (self._shut and room):
            return
        self.writable = room
        if not room and self.direct is not None:
            self.direct.full()
        if self._callback is not None:
            self._callback()

    def shut(self) -> None:
        self._shut = True
        if self.direct is not None:
            self.direct.full()
            self.direct = None
        self.room_changed(False)

    def gone(self, code: int, reason: str) -> None:
        if self._ended is not None:
            self._ended(code, reason)
