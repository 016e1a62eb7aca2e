"""`ports.Connection` as a stream of server-sent events: the frames of the protocol, each a block of text.

Queue, bounds and writer are those of `AsgiConnection`; here a frame becomes its block when it is written, so that the
`id:` of a block covers what stands before it in the stream and never what is still in a topic's log. What has piled up
leaves in one `send`. No library with a queue of its own stands between: a reader that stops fills the transport, then
this queue up to its mark, and then the cursors stay where they are.

The response begins with a block without data. Its `id:` holds the positions at which the topics start, so that a client
that is cut off before the first event comes back to the same place; `retry:` is the time of EventSource's reconnects. A
`goaway` sets that time too, which spreads clients that know nothing of the protocol. The end is an event `close`; where
the client shall not come back (4000-4099) its `id:` says so, and the next request with it gets 204, which is how an
EventSource is told to stop (WHATWG HTML, section 9.2.3).

A stream of one topic shares its blocks with all streams of that topic that stand alike, as WebSockets share frames.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from starlette.types import Send

from feedsvc.adapters.web.asgi_connection import AsgiConnection
from feedsvc.core import messages, server_sent
from feedsvc.core.burst import Burst
from feedsvc.core.errors import close_action
from feedsvc.core.stream_token import StreamPositions

RETRY_MS = 2_000
"""Half of it at the least, by the connection's jitter: after a cut not all come back at once."""

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)


class SseConnection(AsgiConnection):
    """`positions`: those that the client came with. `closing` is called once, when this side closes."""

    def __init__(
        self,
        send: Send,
        high_water_bytes: int,
        positions: StreamPositions,
        retry_ms: int,
        closing: Callable[[], None],
    ) -> None:
        super().__init__(send, high_water_bytes)
        self._positions = positions
        self._started = False
        self._retry_ms = retry_ms
        self._closed = closing
        self._topics: dict[str, int] = {}
        """Topic id to index, as `subscribed` told it."""

    def write(self, frames: Sequence[bytes]) -> None:
        if self.close_sent is None:
            super().write([self._block(frame) for frame in frames])

    def write_burst(self, burst: Burst) -> None:
        if len(self._positions.keys) > 1:
            self.write(burst.frames)
            return
        if self.close_sent is not None:
            return
        blocks, resume_token = burst.once(self._positions.keys[0], lambda: self._blocks(burst.frames))
        self._positions.moved(0, resume_token)
        super().write(blocks)

    def close(self, code: int, reason: str = "") -> None:
        if self.close_sent is None:
            super().close(code, reason)
            self._closed()

    async def run(self) -> None:
        self._started = True
        first = server_sent.prelude(self._positions.start_token(), self._retry_ms)
        await self._send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
        await self._send({"type": "http.response.body", "body": first, "more_body": True})
        await super().run()

    async def _deliver(self, frames: deque[bytes]) -> None:
        """Hand over all of the queue."""
        count, body = len(frames), b"".join(frames)
        frames.clear()
        await self._send({"type": "http.response.body", "body": body, "more_body": True})
        self._delivered(count, len(body))

    async def _finish(self, code: int, reason: str) -> None:
        action = close_action(code)
        frame = messages.encode(messages.Close(code, action, reason))
        stream_token = self._positions.token(ended=True) if action == "stop" else None
        body = server_sent.block("close", frame, stream_token)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    def _block(self, frame: bytes) -> bytes:
        said = server_sent.said(frame)
        if said.type == "subscribed":
            self._begins(said)
        moved = False
        for topic, resume_token in said.moves.items():
            index = self._topics.get(topic)
            if index is not None:
                self._positions.moved(index, resume_token)
                moved = True
        return server_sent.block(
            said.type, frame, self._positions.token() if moved else None, said.reconnect_after_ms
        )

    def _begins(self, said: server_sent.Said) -> None:
        topic, index = str(said.topic), int(str(said.id))
        self._topics[topic] = index
        if not self._started and topic in said.moves:
            self._positions.begins(index, said.moves[topic])

    def _blocks(self, frames: Sequence[bytes]) -> tuple[Sequence[bytes], str]:
        """Of events of the one topic, and the resume token of the last."""
        blocks = [self._block(frame) for frame in frames]
        (resume_token,) = server_sent.said(frames[-1]).moves.values()
        return blocks, resume_token
