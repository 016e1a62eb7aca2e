"""A response of server-sent events: its head, its blocks, its end. What they say is the subclass's.

Queue, bounds and writer are those of `AsgiConnection`; what has piled up leaves in one `send`. No library with a queue
of its own stands between: a reader that stops fills the transport, then this queue up to its mark, and `writable` says
so. The response begins with a block without data, whose `retry:` is the time of EventSource's reconnects. The end is
an event `close` with code and action, where a WebSocket has its close frame; its `retry:` is that of the beginning once
more, since who was told to wait by a `goaway` has waited by then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from starlette.types import Send

from feedsvc.adapters.web.asgi_connection import AsgiConnection
from feedsvc.core import messages, server_sent
from feedsvc.core.errors import CloseAction, close_action

RETRY_MS = 2_000
"""Half of it at the least, by the connection's jitter: after a cut not all come back at once."""

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)


class EventStream(AsgiConnection):
    """`write` takes blocks (`core.server_sent`). `closing` is called once, when this side closes.

    `headers`: more than those that every stream has.
    """

    def __init__(
        self,
        send: Send,
        high_water_bytes: int,
        retry_ms: int,
        closing: Callable[[], None],
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(send, high_water_bytes)
        self._retry_ms = retry_ms
        self._closed = closing
        self._headers = [*HEADERS, *headers]

    def close(self, code: int, reason: str = "") -> None:
        if self.close_sent is None:
            super().close(code, reason)
            self._closed()

    async def run(self) -> None:
        first = server_sent.prelude(self._first_id(), self._retry_ms)
        await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await self._send({"type": "http.response.body", "body": first, "more_body": True})
        await super().run()

    def _first_id(self) -> str | None:
        """The `id:` before all events."""
        return None

    def _last_id(self, action: CloseAction) -> str | None:
        """The `id:` of the event `close`."""
        return None

    async def _deliver(self, frames: deque[bytes]) -> None:
        """Hand over all of the queue."""
        count, body = len(frames), b"".join(frames)
        frames.clear()
        await self._send({"type": "http.response.body", "body": body, "more_body": True})
        self._delivered(count, len(body))

    async def _finish(self, code: int, reason: str) -> None:
        action = close_action(code)
        frame = messages.encode(messages.Close(code, action, reason))
        body = server_sent.block("close", frame, self._last_id(action), self._retry_ms)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
