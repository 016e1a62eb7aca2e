"""uvicorn's HTTP protocol with a deadline for requests that do not come, and what a stream needs of its transport.

uvicorn bounds the time between two requests, but not how long a socket may take for its first one, nor how slowly the
head of one may trickle in. Such a socket is no client yet and no limit counts it: without a deadline anybody could hold
file descriptors until none is left for clients.

The ASGI scope of a request gets the extension `feedsvc.transport`, as that of a WebSocket does: an ASGI response that
never ends can neither be aborted where its peer does not read, nor notice a peer that vanished (`peer_watch.py`).
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
import orjson
from uvicorn.protocols.http.h11_impl import H11Protocol

from feedsvc.adapters.web.server_protocol import TRANSPORT_EXTENSION
from feedsvc.core.errors import problem
from feedsvc.core.limits import LIMITS

REQUEST_WITHIN_S = float(LIMITS["auth_timeout_s"].default)
"""As long as a socket that was accepted has for its credentials."""
_NO_REQUEST = "this is not HTTP/1.1, or its head is too long; long topics go by POST"
_PROBLEM = (
    ("content-type", "application/problem+json"),
    ("cache-control", "no-store"),
    ("connection", "close"),
)


class FeedHttpProtocol(H11Protocol):
    """One HTTP connection on uvicorn, until it is upgraded."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect_request()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """The request has come. A timer would keep all that HTTP needed for another ten seconds."""
        super().handle_websocket_upgrade(event)
        self._end_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_deadline()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """What is no request is refused as all is that is wrong. Behind an answer there is nothing more to say."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = orjson.dumps(problem("bad_request", _NO_REQUEST))
            head = h11.Response(status_code=400, headers=[*_PROBLEM, ("content-length", str(len(body)))])
            for part in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(part) or b"")
        self.transport.close()

    def begin_stream(self, high_water_bytes: int) -> bool:
        """The response will not end soon. False where the peer has gone already.

        The socket is closed behind it: what comes next from this client may go to another instance.
        """
        if self.transport.is_closing():
            return False
        self.cycle.keep_alive = False
        self.transport.set_write_buffer_limits(high=high_water_bytes)
        return True

    def _get_upgrade(self) -> bytes | None:
        """Minor layering violation: no other method is called between the making of a scope and its use."""
        upgrade = super()._get_upgrade()
        if upgrade is None:
            scope: Any = self.scope
            scope["extensions"] = {TRANSPORT_EXTENSION: {"protocol": self}}
        return upgrade

    def _expect_request(self) -> None:
        if self._deadline is None and self._owes_request():
            self._deadline = self.loop.call_later(REQUEST_WITHIN_S, self._request_is_late)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _owes_request(self) -> bool:
        """Whether the peer is to send a head, or a body that nobody reads, and uvicorn's own timer does not run."""
        return (
            self.timeout_keep_alive_task is None
            and self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
            and self.conn.our_state in (h11.IDLE, h11.DONE)
        )

    def _request_is_late(self) -> None:
        self._deadline = None
        if self._owes_request():
            self.transport.close()


def http_protocol_of(scope: Any) -> FeedHttpProtocol | None:
    """What carries a request, None on a server that is not ours."""
    extension = scope.get("extensions", {}).get(TRANSPORT_EXTENSION)
    return None if extension is None else extension["protocol"]
