"""uvicorn's WebSocket protocol with what a feed needs: its transport, an abort, a peer time-out that names itself.

uvicorn's class is private, so its version is pinned exactly and this subclass touches as little as it can. The ASGI
scope gets an extension, `feedsvc.transport`: this object. The application may accept, `carry` the socket itself and
return: from then on text frames and the end of the socket are callbacks and ready frames go to the transport, with
neither a task nor a queue for each client. An ASGI `send` would cost a round for each of them, and an ASGI close waits
for ever for a reader that has stopped (architecture.md, hazards of the server layer).

From the moment a socket ends, for whatever reason, nothing more may be written: each way to end one calls `_end`
before it writes its own close frame. After the peer's close `close_sent` stays False, so that flag is not enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, cast

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.extensions.permessage_deflate import PerMessageDeflate, ServerPerMessageDeflateFactory
from websockets.frames import Frame
from websockets.http11 import Request
from websockets.protocol import State

from feedsvc.adapters.web.liveness import EMPTY_PONG, EMPTY_PONG_BYTES, Liveness, is_between_frames
from feedsvc.core.burst import DEFLATE_WINDOW_BITS
from feedsvc.core.errors import close_code
from feedsvc.runtime.wheel import Wheel

TRANSPORT_EXTENSION = "feedsvc.transport"
ABORT_AFTER_S = 2.0
"""How long a peer may take to answer a close frame before its socket is aborted."""

_NO_STATUS = 1005
_INVALID_DATA = 1007
_SERVICE_RESTART = 1012
_HEADERS_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
)


class Carrier(Protocol):
    """What carries an accepted socket. Each method is called by the protocol, from callbacks of the loop."""

    def received(self, text: str | None) -> None:
        """A message came; None for a binary one."""
        ...

    def room_changed(self, room: bool) -> None:
        """Whether the transport's buffer is empty: the kernel did not take all of a write, or it has all of it now."""
        ...

    def shut(self) -> None:
        """The socket is ending: write nothing any more."""
        ...

    def gone(self, code: int, reason: str) -> None:
        """The socket has ended, with this close code; called once."""
        ...


_DEFLATE = ServerPerMessageDeflateFactory(
    server_no_context_takeover=True,
    client_no_context_takeover=True,
    server_max_window_bits=DEFLATE_WINDOW_BITS,
    client_max_window_bits=DEFLATE_WINDOW_BITS,
)
"""Without a context each message stands for itself: one compressed form serves everybody, no connection keeps a window,
and what a peer sends is inflated up to the limit of a frame and no further."""


class _Nowhere:
    """In place of the queue of messages for an application that has returned."""

    @staticmethod
    def put_nowait(message: Any) -> None:
        return None


class FeedProtocol(WebSocketsSansIOProtocol):
    """One WebSocket on uvicorn."""

    _refused = False
    _abort_timer: asyncio.TimerHandle | None = None
    _carrier: Carrier | None = None
    _carried = False
    _liveness: Liveness | None = None
    _owed_pong: bytes | None = None
    with_ping: Callable[[bytes], bytes] = staticmethod(bytes)
    """What a carrier is about to write, and a ping where one is due."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.conn.available_extensions = [_DEFLATE]

    @property
    def deflates(self) -> bool:
        """Whether the peer inflates what `core.burst` compresses; for an accepted socket."""
        return any(
            isinstance(extension, PerMessageDeflate)
            and extension.local_no_context_takeover
            and extension.local_max_window_bits >= DEFLATE_WINDOW_BITS
            for extension in self.conn.extensions
        )

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        scope = getattr(self, "scope", None)
        if scope is not None:
            extensions = cast(dict[str, Any], scope["extensions"])
            extensions[TRANSPORT_EXTENSION] = {"protocol": self}

    def carry(self, carrier: Carrier, wheel: Wheel) -> bool:
        """From now on `carrier` writes to the transport and hears of what happens. For an accepted socket, once.

        Its peer is looked after here, by pings that go out together with other frames (`Liveness`).
        False where the socket has ended meanwhile: the carrier hears nothing.
        """
        if self.disconnected or self.transport.is_closing() or self.conn.state is not State.OPEN:
            return False
        self._carrier, self._carried = carrier, True
        self.stop_keepalive()
        timeout_s = (self.ping_interval or 0.0) + (self.ping_timeout or 0.0)
        if timeout_s:
            self._liveness = Liveness(wheel, timeout_s, self.transport.write, self.keepalive_timeout)
            self.with_ping = self._liveness.with_ping
        # Room is an empty buffer: only then may anybody write past the transport (`descriptors.py`).
        self.transport.set_write_buffer_limits(high=0)
        if self.transport.get_write_buffer_size():  # what it was full of before is not told again
            self.pause_writing()
        # What only the way through ASGI needs. Some of it is a kilobyte for each idle client.
        early, self.queue = self.queue, cast(Any, _Nowhere)
        while not early.empty():  # from a peer that did not wait for the answer to its upgrade
            self.loop.call_soon(self._received_early, early.get_nowait())
        del self.scope, self.request, self.response
        # Behind those: a loop may read before it runs what is called soon, and the order would be lost.
        self.loop.call_soon(self._read_on)
        return True

    def _read_on(self) -> None:
        if self.read_paused and not self.transport.is_closing():
            self.read_paused = False
            self.transport.resume_reading()

    def _received_early(self, message: Any) -> None:
        if self._carrier is not None:
            self._carrier.received(message.get("text"))

    async def run_asgi(self) -> None:
        """The application; a socket that it carries outlives it."""
        try:
            await self.app(self.scope, self.receive, self.send)
        except ClientDisconnected:
            pass
        except BaseException:
            self.logger.exception("Exception in ASGI application\n")
            self.send_500_response()
        else:
            if not self.handshake_complete:
                self.logger.error("ASGI callable returned without completing handshake.")
                self.send_500_response()
        if not self._carried and self.close_timer is None:
            self.transport.close()

    def close_now(self, code: int, reason: str) -> None:
        """Close without waiting for room, and abort where the peer does not take it."""
        if self.close_sent or self.transport.is_closing() or self.conn.state is not State.OPEN:
            return
        self._end(code, reason)
        self.conn.send_close(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.close_timer = self.loop.call_later(self.close_timeout, self.transport.close)
        self._abort_soon()

    def _end(self, code: int, reason: str = "") -> None:
        """The socket ends: nothing is written from now on, and the carrier is told once this round is over."""
        carrier, self._carrier = self._carrier, None
        if self._liveness is not None:
            self._liveness.stop()
        if carrier is not None:
            carrier.shut()
            self.loop.call_soon(carrier.gone, code, reason)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._carrier is not None:
            self._carrier.room_changed(False)

    def resume_writing(self) -> None:
        super().resume_writing()
        pong, self._owed_pong = self._owed_pong, None
        if pong is not None and self.conn.state is State.OPEN and not self.transport.is_closing():
            self.transport.write(pong)
        if self._carrier is not None and self.writable.is_set():  # the pong may have filled it again
            self._carrier.room_changed(True)

    def handle_cont(self, event: Frame) -> None:
        """Without empty fragments: the bound on a message counts bytes, and they would be kept without end."""
        if event.data or event.fin:
            super().handle_cont(event)

    def handle_ping(self) -> None:
        """Answered, but to a peer that does not read only once it does, and then the last one only (RFC 6455, section
        5.5.3): whoever asks and never reads would fill the memory.

        Not yet where the peer's close came with it: what is owed holds the answer to that, too, and messages between
        the two would be answered behind a close frame. Never behind the end of our side.
        """
        if self._refused or (self.conn.state is not State.OPEN and not self.close_sent):
            return
        if self.writable.is_set() or self.conn.state is not State.OPEN:
            super().handle_ping()
        elif pongs := self.conn.data_to_send():
            self._owed_pong = pongs[-1]

    def shutdown(self) -> None:
        """The server ends. A peer that closed and does not read is still here: a second close frame would raise, and
        with it the end of all others."""
        self._end(_SERVICE_RESTART)
        if self.handshake_complete and not self.close_sent and self.conn.state is not State.OPEN:
            self.transport.close()
            return
        super().shutdown()

    async def send(self, message: Any) -> None:
        """A refused upgrade was answered: uvicorn would log it as an error of the application, for anybody to cause.

        And a close: uvicorn tells the application at once that the socket is gone, which the peer may never let go.
        """
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True
        if message["type"] == "websocket.close":
            self._abort_soon()

    def send_receive_event_to_app(self) -> None:
        """A whole message. Invalid UTF-8 is the peer's mistake: 1007, without uvicorn's traceback."""
        if self.close_sent:
            self.frames = []
            return
        data = b"".join(self.frames)
        text: str | None = None
        if self.curr_msg_data_type == "text":
            try:
                text = data.decode()
            except UnicodeDecodeError:
                self.frames = []
                if self.conn.state is State.OPEN:  # or the peer's close came with it, and is dealt with next
                    self.conn.send_close(_INVALID_DATA)
                    self.handle_parser_exception()
                return
        if self._carried:
            self.frames = []
            if self._carrier is not None:
                self._carrier.received(text)
            return
        self.frames = [data]
        super().send_receive_event_to_app()

    def handle_parser_exception(self) -> None:
        """The peer broke the protocol, with a frame that is too large for instance, and must learn so.

        To close now, with bytes of it unread, would make the kernel reset the connection and throw the close frame
        away: the peer would see 1006 and come back for ever. So only our side ends; what still comes is
        dropped until the peer ends its own.
        """
        close = self.conn.close_sent
        assert close is not None
        self._end(close.code, close.reason)
        self.queue.put_nowait({"type": "websocket.disconnect", "code": close.code, "reason": close.reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = self._refused = True
        self.stop_keepalive()
        self.transport.write_eof()
        self.transport.resume_reading()
        self.read_paused = False
        self.close_timer = self.loop.call_later(ABORT_AFTER_S, self.transport.abort)

    def handle_close(self, event: Frame) -> None:
        close = self.conn.close_rcvd
        assert close is not None
        self._end(close.code, close.reason)
        super().handle_close(event)
        self._abort_soon()

    def eof_received(self) -> None:
        self._end(_NO_STATUS)
        super().eof_received()
        self._abort_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        self._end(_NO_STATUS)
        super().connection_lost(exc)

    def _abort_soon(self) -> None:
        """The socket is being closed. What is still written waits for a peer that may not read, but not for ever."""
        if self._abort_timer is None:
            self._abort_timer = self.loop.call_later(ABORT_AFTER_S, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._liveness is not None:
            self._liveness.hear()
            if data[:2] == EMPTY_PONG and len(data) == EMPTY_PONG_BYTES and is_between_frames(self.conn):
                return  # the answer to a ping of ours, thousands of which an idle service gets each minute
        super().data_received(data)
        if self.conn.handshake_exc is not None and not hasattr(self, "scope"):
            # The HTTP server read this request, so only the WebSocket parser's bounds on headers can have refused it.
            # uvicorn does not look: the socket would stay open, unanswered and without a deadline.
            self._refused = True
            self.transport.write(_HEADERS_TOO_LARGE)
            self.transport.close()

    def keepalive_timeout(self) -> None:
        """Nothing comes from the peer any more: say 4202 if there is room, then cut it off."""
        self.pong_timer = None
        self.pending_ping_payload = None
        if self.close_sent or self.transport.is_closing():
            return
        code = close_code("pong_timeout")
        self._end(code, "pong_timeout")
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": "pong_timeout"})
        self.conn.fail(code, "pong_timeout")
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.transport.close()
        self._abort_soon()


def protocol_of(scope: Any) -> FeedProtocol | None:
    """What carries a socket, None on a server that is not ours."""
    extension = scope.get("extensions", {}).get(TRANSPORT_EXTENSION)
    return None if extension is None else extension["protocol"]
