"""One response that never ends by itself, from its first byte until it is over. Three things end it:

* this side closes: the `close` event leaves behind what was written before it, then the response and its socket end; a
  reader that takes nothing for `ABORT_AFTER_S` is cut off;
* the peer ends its side, or resets: `receive` says so;
* the peer vanishes: the kernel's acknowledgements stop (`peer_watch.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from starlette.types import Receive, Scope

from feedsvc.adapters.web.asgi_connection import AsgiConnection
from feedsvc.adapters.web.http_protocol import FeedHttpProtocol, http_protocol_of
from feedsvc.adapters.web.peer_watch import PeerWatch
from feedsvc.adapters.web.server_protocol import ABORT_AFTER_S

GONE = (1005, "")
"""Code and reason of a stream that its peer ended."""


class StreamResponse:
    """`vanished` is called where the peer is silent for longer than `peer_timeout_s`; then its socket is aborted."""

    def __init__(
        self, scope: Scope, high_water_bytes: int, peer_timeout_s: float, vanished: Callable[[], None]
    ) -> None:
        self._protocol: FeedHttpProtocol | None = http_protocol_of(scope)
        self._high_water_bytes = high_water_bytes
        self._peer_timeout_s = peer_timeout_s
        self._on_vanished = vanished
        self._abort_timer: asyncio.TimerHandle | None = None

    async def until_gone(self, connection: AsgiConnection, receive: Receive) -> None:
        """Write until the response is over or the peer is."""
        protocol, watch = self._protocol, None
        if protocol is not None:
            if not protocol.begin_stream(self._high_water_bytes):
                await _told(receive)  # before that, uvicorn takes a response that never began for our fault
                return
            watch = PeerWatch(protocol.transport, self._peer_timeout_s, self._vanished)
        writer = asyncio.get_running_loop().create_task(connection.run(), name="writer")
        try:
            await _told(receive)
        finally:
            if watch is not None:
                watch.stop()
            writer.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await writer

    def closing(self) -> None:
        """This side closed. What is written waits for a reader, but not for ever."""
        if self._protocol is not None:
            self._abort_timer = asyncio.get_running_loop().call_later(ABORT_AFTER_S, self._abort)

    def ended(self) -> None:
        """Nothing is left to wait for."""
        if self._abort_timer is not None:
            self._abort_timer.cancel()

    def _vanished(self) -> None:
        self._on_vanished()
        self._abort()

    def _abort(self) -> None:
        if self._protocol is not None:
            self._protocol.transport.abort()


async def _told(receive: Receive) -> None:
    """Until the server says that the peer is gone. What a request without a body may carry is nobody's."""
    while (await receive())["type"] != "http.disconnect":
        pass
