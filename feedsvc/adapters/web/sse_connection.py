"""`ports.Connection` as a stream of server-sent events: the frames of the protocol, each a block of text.

A frame becomes its block when it is written, so that the `id:` of a block covers what stands before it in the stream
and never what is still in a topic's log. Where a reader stops and the queue is full the cursors stay where they are.

The `id:` before all events holds the positions at which the topics start, so that a client that is cut off before the
first event comes back to the same place. A `goaway` sets `retry:` too, which spreads clients that know nothing of the
protocol. Where the client shall not come back (4000-4099) the `id:` of `close` says so, and the next request with it
gets 204, which is how an EventSource is told to stop (WHATWG HTML, section 9.2.3).

A stream of one topic shares its blocks with all streams of that topic that stand alike, as WebSockets share frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.types import Send

from feedsvc.adapters.web.event_stream import EventStream
from feedsvc.core import server_sent
from feedsvc.core.burst import Burst
from feedsvc.core.errors import CloseAction
from feedsvc.core.stream_token import StreamPositions


class SseConnection(EventStream):
    """`positions`: those that the client came with."""

    def __init__(
        self,
        send: Send,
        high_water_bytes: int,
        positions: StreamPositions,
        retry_ms: int,
        closing: Callable[[], None],
    ) -> None:
        super().__init__(send, high_water_bytes, retry_ms, closing)
        self._positions = positions
        self._started = False
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
        if resume_token:
            self._positions.moved(0, resume_token)
        super().write(blocks)

    def _first_id(self) -> str | None:
        self._started = True
        return self._positions.start_token()

    def _last_id(self, action: CloseAction) -> str | None:
        return self._positions.token(ended=True) if action == "stop" else None

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
        """Of the one topic, and the resume token behind them: empty where none moves its position, as a heartbeat."""
        blocks = [self._block(frame) for frame in frames]
        moves = (said.moves.values() for said in map(server_sent.said, reversed(frames)) if said.moves)
        return blocks, next((resume_token for (resume_token,) in moves), "")
