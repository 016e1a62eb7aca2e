"""`/v1/status` as an event stream: every second an event `status` whose data is the answer of a plain GET.

A status is gathered and written as text once for all streams, whoever reads them. It says how things are, so nothing
piles up for a slow reader: while one status waits for it, no other is queued. The events are the heartbeat: a reader
that has heard nothing for a few of them knows that the service, or the way to it, is gone.

A stream ends as any other: its JWT ends (4101), it is as old as connections get (4205), its reader takes nothing for
too long (4201) or vanishes (4202), the process ends (4200). A drain is watched to its end: these streams are closed
when the clients are gone, with a last status before `close`. They are no connections of a tenant: `status_streams`
bounds them, and no count of clients holds them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping

import msgspec
from starlette.types import Receive, Scope, Send

from feedsvc.adapters.web.event_stream import RETRY_MS, EventStream
from feedsvc.adapters.web.stream_response import GONE, StreamResponse
from feedsvc.core import server_sent
from feedsvc.core.errors import Refusal, close_code
from feedsvc.core.limits import Limits
from feedsvc.core.status import Status
from feedsvc.ports import Claims, Clock, Metrics

_RETRY_AFTER_MS = 10_000
_ONE_AT_A_TIME = 1
"""The mark of the queue in bytes: full with the first status that the transport does not take."""


class StatusStreams:
    """All such streams of a process. `random` returns a float in [0, 1). Create it in the running loop."""

    def __init__(
        self,
        status: Callable[[], Status],
        limits: Limits,
        clock: Clock,
        random: Callable[[], float],
        metrics: Metrics,
        report: Callable[[str, Mapping[str, object]], None],
    ) -> None:
        self._status = status
        self._limits = limits
        self._clock = clock
        self._random = random
        self._metrics = metrics
        self._report = report
        self._streams: set[_Stream] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._streams)

    def now(self) -> bytes:
        """The status as JSON."""
        return msgspec.json.encode(self._status())

    async def serve(self, claims: Claims, scope: Scope, receive: Receive, send: Send) -> None:
        """One stream until it ends. Raises `Refusal` where it does not begin."""
        limits = self._limits
        if self._closed:
            raise Refusal("going_away", "this instance is shutting down", retry_after_ms=_RETRY_AFTER_MS)
        if len(self._streams) >= limits.status_streams:
            message = f"{limits.status_streams} streams of the status are open, the most there may be"
            raise Refusal("connection_limit", message, retry_after_ms=_RETRY_AFTER_MS)
        first = self._event()
        stream = _Stream(claims, limits, self._clock, self._random(), scope, send)
        stream.due(first)
        self._streams.add(stream)
        self._report("status.opened", {"stream": stream.id})
        self._changed()
        try:
            await stream.response.until_gone(stream.connection, receive)
        finally:
            self._streams.discard(stream)
            self._changed()
            stream.response.ended()
            code, reason = stream.connection.close_sent or GONE
            self._report("status.closed", {"stream": stream.id, "code": code, "reason": reason})

    def tick(self) -> None:
        """What is due: the status to each stream, or its end."""
        event = self._event()
        for stream in self._streams:
            stream.due(event)

    def close(self) -> None:
        """The process ends: end every stream, and begin none any more."""
        self._closed = True
        self._tick_safely()
        for stream in self._streams:
            stream.close("going_away")

    def _event(self) -> bytes:
        return server_sent.block("status", self.now())

    def _changed(self) -> None:
        self._metrics.gauge("status_streams", len(self._streams))
        self._arm()

    def _arm(self) -> None:
        """The one timer runs while anybody listens."""
        if not self._streams:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._limits.status_interval_s, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._tick_safely()
        self._arm()

    def _tick_safely(self) -> None:
        try:
            self.tick()
        except Exception as error:
            reference = secrets.token_hex(4)
            self._report(
                "request.failed", {"reference": reference, "error": f"{type(error).__name__}: {error}"}
            )
            for stream in self._streams:
                stream.close("internal")


class _Stream:
    """One of them, and when it ends."""

    def __init__(
        self, claims: Claims, limits: Limits, clock: Clock, jitter: float, scope: Scope, send: Send
    ) -> None:
        now = clock.monotonic()
        self.id = secrets.token_urlsafe(9)
        self._clock = clock
        self._slow_after_s = limits.slow_after_s
        self._expires = now + claims.expires_at - clock.wall()
        self._too_old = now + limits.max_age_s * (0.9 + 0.1 * jitter)
        self._full_since: float | None = None
        self.response = StreamResponse(scope, limits.high_water_bytes, limits.peer_timeout_s, self._vanished)
        retry_ms = int(RETRY_MS * (0.5 + jitter))
        vary = ((b"vary", b"Accept"),)
        self.connection = EventStream(send, _ONE_AT_A_TIME, retry_ms, self.response.closing, vary)
        self.connection.on_room(self._room_changed)

    def due(self, event: bytes) -> None:
        """The end if it is time, else the event if there is room. Nothing is said to a JWT that is over."""
        now = self._clock.monotonic()
        if now >= self._expires:
            self.close("auth_expired")
        elif now >= self._too_old:
            self.close("max_age")
        elif self._full_since is None:
            self.connection.write((event,))
        elif now - self._full_since >= self._slow_after_s:
            self.close("slow_consumer")

    def close(self, code: str) -> None:
        self.connection.close(close_code(code), code)

    def _room_changed(self) -> None:
        self._full_since = None if self.connection.writable else self._clock.monotonic()

    def _vanished(self) -> None:
        self.close("pong_timeout")
