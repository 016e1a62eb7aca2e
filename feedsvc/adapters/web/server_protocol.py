"""uvicorn's WebSocket protocol with what a feed needs: an abort, and a peer time-out that names itself.

uvicorn's class is private, so its version is pinned exactly and this subclass touches as little as it can. The ASGI
scope gets an extension, `feedsvc.transport`, through which the connection can abort a socket whose reader has stopped:
an ASGI close would wait for it for ever (architecture.md, hazards of the server layer).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from feedsvc.core.errors import close_code

TRANSPORT_EXTENSION = "feedsvc.transport"
ABORT_AFTER_S = 2.0
"""How long a peer may take to answer a close frame before its socket is aborted."""


class FeedProtocol(WebSocketsSansIOProtocol):
    """One WebSocket on uvicorn."""

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        scope = getattr(self, "scope", None)
        if scope is not None:
            extensions = cast(dict[str, Any], scope["extensions"])
            extensions[TRANSPORT_EXTENSION] = {"abort": self.transport.abort}

    def keepalive_timeout(self) -> None:
        """The peer did not answer a ping: say 4202 if there is room, then cut it off."""
        self.pong_timer = None
        self.pending_ping_payload = None
        if self.close_sent or self.transport.is_closing():
            return
        self.conn.fail(close_code("pong_timeout"), "pong_timeout")
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.transport.close()
        self.loop.call_later(ABORT_AFTER_S, self.transport.abort)


def abort_of(scope: Any) -> Callable[[], None] | None:
    """The abort of a socket, None on a server that does not offer one."""
    extension = scope.get("extensions", {}).get(TRANSPORT_EXTENSION)
    return None if extension is None else extension["abort"]
