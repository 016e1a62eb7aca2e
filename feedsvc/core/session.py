"""The protocol side of one connection: what a frame means now, what is due, and when.

Input: `receive` (a text frame), `verified` / `refused_auth` (the answer to `Verify`), `settled` (a `Verify` or an
`Open` is dealt with, its effects are carried out) and `tick`. Output: effects, in the order in which the shell must
carry them out. The session never waits and owns no timer: `next_deadline` says when to call `tick`.

States::

    WAITING  --auth frame--> VERIFYING --ok--> OPEN      first frame; anything else closes with 4000, silence with 4100
    OPEN     --auth frame--> (busy)    --ok--> OPEN      a refresh: same tenant and subject, or the old expiry stays
    any      --close-------> CLOSED                      nothing is said after a Close effect

Frames beyond a connection's pace (`pacing.py`) are answered `rate_limited` when they come, before those that wait: a
client that heeds `retryAfterMs` loses nothing else by it. They are no mistakes, so they do not count towards 4009, but
have a bound of their own, 4301.

From a `Verify` or an `Open` until `settled` the session is busy: frames behind it wait in order, up to a bound. So they
meet the topics as they are when its effects, a `Reauthorize` say, have been carried out.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from feedsvc.core import messages
from feedsvc.core.errors import REGISTRY, Refusal, close_code
from feedsvc.core.limits import Limits
from feedsvc.core.messages import Frame
from feedsvc.core.pacing import Pacing

_MINUTE_S = 60.0
_SPREAD = 0.05
_FIRST_SPREAD = 0.5
"""Clients that came together are told apart from then on."""
_STEP_S = 0.25
_IN_STEP_FROM_S = 5.0
_EARLY = 0.25
"""So much of its interval a heartbeat may come early, to leave together with a checkpoint."""
_MESSAGE_TOO_BIG = 1009
_REASON_BYTES = 123
"""What a close frame has room for (RFC 6455 section 5.5)."""
_RATE_RETRY_MS = 5_000


class Principal(msgspec.Struct, frozen=True):
    """Whom a connection speaks for. `expires_at` is epoch seconds."""

    tenant: str
    subject: str | None
    scopes: frozenset[str]
    claims: Mapping[str, Any]
    expires_at: float


class Send(msgspec.Struct, frozen=True):
    frame: Frame


class Verify(msgspec.Struct, frozen=True):
    """Verify the JWT, call `verified` or `refused_auth`, and `settled` once their effects are carried out."""

    jwt: str


class Reauthorize(msgspec.Struct, frozen=True):
    """The claims changed: apply the policy anew to every subscription."""


class Open(msgspec.Struct, frozen=True):
    """Resolve and attach the subscription, then call `settled`."""

    frame: messages.Subscribe


class Drop(msgspec.Struct, frozen=True):
    """End a subscription; nothing of its topic may be sent after this."""

    topic: str


class CheckpointDue(msgspec.Struct, frozen=True):
    pass


class HeartbeatDue(msgspec.Struct, frozen=True):
    pass


class Close(msgspec.Struct, frozen=True):
    code: int
    reason: str


Effect = Send | Verify | Reauthorize | Open | Drop | CheckpointDue | HeartbeatDue | Close

_CHECKPOINT = (CheckpointDue(),)
_HEARTBEAT = (HeartbeatDue(),)
BEAT = (*_CHECKPOINT, *_HEARTBEAT)
"""What `tick` returns, this very object, where both are due and nothing else: to a client that is idle, each time."""


class _Malformed(msgspec.Struct, frozen=True):
    """A text that is no frame, with the id that it names, if any."""

    refusal: Refusal
    request_id: str | None


class State(enum.Enum):
    WAITING = "waiting"
    VERIFYING = "verifying"
    OPEN = "open"
    CLOSED = "closed"


class Session:
    """`now` arguments are monotonic seconds, `wall` epoch seconds. `jitter` in [0, 1) spreads deadlines."""

    def __init__(self, connection_id: str, server: str, limits: Limits, *, now: float, jitter: float) -> None:
        self.state = State.WAITING
        self.principal: Principal | None = None
        self.topics: set[str] = set()
        """Topic ids that this connection holds; the shell adds and removes them."""
        self._connection_id = connection_id
        self._server = server
        self._limits = limits
        self._jitter = jitter
        self._busy = False
        self._pending: deque[tuple[messages.ClientFrame | _Malformed, int]] = deque()
        self._pending_bytes = 0
        self._error_times: deque[float] = deque()
        self._refresh_times: deque[float] = deque()
        self._pacing = Pacing(limits)
        self._auth_deadline: float | None = now + limits.auth_timeout_s
        self._expiry: float | None = None
        self._max_age = now + limits.max_age_s * (0.9 + 0.1 * jitter)
        self._heartbeat = self._checkpoint = math.inf
        self._ends = self._next_end()

    # -- input --------------------------------------------------------------------------------------------

    def receive(self, text: str | bytes, now: float) -> list[Effect]:
        """A text frame arrived."""
        if self.state is State.CLOSED:
            return []
        size_bytes = len(text) if isinstance(text, bytes) else len(text.encode("utf-8", "surrogatepass"))
        limit = self._limits.frame_bytes if self.state is State.OPEN else self._limits.preauth_frame_bytes
        if size_bytes > limit:
            return self._close(_MESSAGE_TOO_BIG, f"a frame here has at most {limit} bytes")
        frame = _decoded(text)
        if self.state is State.OPEN and (wait_ms := self._pacing.wait_ms(frame, now)):
            request_id = frame.id if isinstance(frame, messages.Subscribe) else None
            topic = frame.topic[:64] if isinstance(frame, messages.Unsubscribe) else None
            return self._rate_limited(self._pacing.message, now, wait_ms, request_id, topic)
        if self._busy:
            if (
                len(self._pending) >= self._limits.pending_frames
                or self._pending_bytes + size_bytes > self._limits.pending_bytes
            ):
                return self.close("rate_limited", retry_after_ms=_RATE_RETRY_MS)
            self._pending.append((frame, size_bytes))
            self._pending_bytes += size_bytes
            return []
        return self._handle(frame, now)

    def verifying(self) -> None:
        """Credentials came with the upgrade and are in the shell's hands: as if `Verify` had been answered with it."""
        self._busy = True
        self.state = State.VERIFYING

    def verified(self, principal: Principal, *, now: float, wall: float) -> list[Effect]:
        """The JWT of the last `Verify` is valid. Call `settled` behind its effects."""
        if self.state is State.CLOSED:
            return []
        known = self.principal
        if known is not None and (known.tenant, known.subject) != (principal.tenant, principal.subject):
            return self.error("auth_invalid", "the JWT names another tenant or subject", now)
        expires_ms = int(principal.expires_at * 1000)
        self.principal = principal
        self._expiry = now + max(0.0, principal.expires_at - wall)
        if known is not None:
            self._ends = self._next_end()
            return [Reauthorize(), Send(messages.Authenticated(expires_ms))]
        self.state = State.OPEN
        self._auth_deadline = None
        self._ends = self._next_end()
        self._heartbeat = _beat(now, self._limits.heartbeat_interval_s, self._jitter, _FIRST_SPREAD)
        self._checkpoint = _beat(now, self._limits.checkpoint_interval_s, self._jitter, _FIRST_SPREAD)
        welcome = messages.Welcome(
            connection=self._connection_id,
            heartbeat_ms=int(self._limits.heartbeat_interval_s * 1000),
            auth_expires_at=expires_ms,
            limits={
                "frameBytes": self._limits.frame_bytes,
                "eventBytes": self._limits.max_event_bytes,
                "filterBytes": self._limits.filter_bytes,
                "subscriptions": self._limits.subscriptions_per_connection,
            },
            server=self._server,
        )
        return [Send(welcome)]

    def refused_auth(self, code: str, message: str, *, now: float) -> list[Effect]:
        """The JWT of the last `Verify` is refused: the first one closes, a refresh leaves the old expiry.

        A retryable code says that the JWT could not be judged: it is told as it is, any other as `auth_invalid`.
        Call `settled` behind its effects.
        """
        if self.state is State.CLOSED:
            return []
        answer = code if REGISTRY[code].retryable else "auth_invalid"
        if self.principal is None:
            return self.close(answer, message)
        return self.error(answer, message, now)

    def settled(self, now: float) -> list[Effect]:
        """The last `Verify` or `Open` is answered and its effects are carried out; go on with the frames behind it."""
        self._busy = False
        return self._drain(now)

    def tick(self, now: float) -> Sequence[Effect]:
        """Everything that is due at `now`."""
        if self.state is State.CLOSED:
            return ()
        if now >= self._ends:
            return self._ended(now)
        if now < self._checkpoint:
            if now < self._heartbeat:
                return ()
            self._heartbeat = _beat(now, self._limits.heartbeat_interval_s, self._jitter)
            return _HEARTBEAT
        self._checkpoint = _beat(now, self._limits.checkpoint_interval_s, self._jitter)
        interval_s = self._limits.heartbeat_interval_s
        if now + _EARLY * interval_s < self._heartbeat:
            return _CHECKPOINT
        self._heartbeat = _beat(now, interval_s, self._jitter)
        return BEAT

    def next_deadline(self) -> float | None:
        """Monotonic seconds at which `tick` has something to do; None when closed."""
        if self.state is State.CLOSED:
            return None
        deadline = self._checkpoint if self._checkpoint < self._heartbeat else self._heartbeat
        return deadline if deadline < self._ends else self._ends

    @property
    def expiry(self) -> float | None:
        """Monotonic seconds at which the JWT is over: the one deadline that may not be late."""
        return self._expiry

    # -- output that the shell asks for -------------------------------------------------------------------

    def error(
        self,
        code: str,
        message: str,
        now: float,
        *,
        request_id: str | None = None,
        topic: str | None = None,
        retry_after_ms: int | None = None,
    ) -> list[Effect]:
        """An `error` frame, and the close when there were too many of them within a minute."""
        if self.state is State.CLOSED:
            return []
        told = Send(_error_frame(code, message, request_id, topic, retry_after_ms))
        if _within_a_minute(self._error_times, now) > self._limits.errors_per_minute:
            return [told, *self.close("too_many_errors")]
        return [told]

    def goaway(self, reconnect_after_ms: int) -> list[Effect]:
        """Announce a planned close."""
        if self.state is not State.OPEN:
            return []
        return [Send(messages.Goaway(reconnect_after_ms))]

    def close(self, code: str, message: str = "", *, retry_after_ms: int | None = None) -> list[Effect]:
        """Close with a registry code; for those that ask to wait the reason is JSON."""
        reason = f'{{"retryAfterMs":{retry_after_ms}}}' if retry_after_ms is not None else message or code
        return self._close(close_code(code), reason)

    def closed(self) -> None:
        """The transport is gone."""
        self.state = State.CLOSED
        self._pending.clear()

    # -- inside -------------------------------------------------------------------------------------------

    def _next_end(self) -> float:
        """The first of the times at which this session ends."""
        ends = (self._auth_deadline, self._expiry, self._max_age)
        return min(at for at in ends if at is not None)

    def _ended(self, now: float) -> list[Effect]:
        if self._auth_deadline is not None and now >= self._auth_deadline:
            return self.close("auth_timeout", "no valid credentials came in time")
        if self._expiry is not None and now >= self._expiry:
            return self.close("auth_expired", "the JWT has expired")
        return [*self.goaway(self._spread_ms(1.0)), *self.close("max_age")]

    def _close(self, code: int, reason: str) -> list[Effect]:
        if self.state is State.CLOSED:
            return []
        self.closed()
        return [Close(code, reason.encode()[:_REASON_BYTES].decode("utf-8", "ignore"))]

    def _drain(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        while self._pending and not self._busy and self.state is not State.CLOSED:
            frame, size_bytes = self._pending.popleft()
            self._pending_bytes -= size_bytes
            effects += self._handle(frame, now)
        return effects

    def _handle(self, frame: messages.ClientFrame | _Malformed, now: float) -> list[Effect]:
        if isinstance(frame, _Malformed):
            refusal = frame.refusal
            if self.state is State.WAITING:
                return self.close("bad_request", f"the first frame must be auth; {refusal.message}")
            return self.error(refusal.code, refusal.message, now, request_id=frame.request_id)
        if isinstance(frame, messages.Auth):
            return self._verify(frame.jwt, now)
        if self.state is State.WAITING:
            return self.close("bad_request", "the first frame must be auth")
        if isinstance(frame, messages.Subscribe):
            return self._subscribe(frame, now)
        if isinstance(frame, messages.Unsubscribe):
            return self._unsubscribe(frame, now)
        return [Send(messages.Pong())]

    def _verify(self, jwt: str, now: float) -> list[Effect]:
        limit = self._limits.refreshes_per_minute
        if self.state is State.OPEN and _within_a_minute(self._refresh_times, now) > limit:
            self._refresh_times.pop()  # what is refused does not count: who waits is served
            message = f"a connection refreshes its JWT at most {limit} times in 60 seconds"
            return self._rate_limited(message, now, _RATE_RETRY_MS)
        self._busy = True
        if self.state is State.WAITING:
            self.state = State.VERIFYING
        return [Verify(jwt)]

    def _rate_limited(
        self,
        message: str,
        now: float,
        retry_after_ms: int,
        request_id: str | None = None,
        topic: str | None = None,
    ) -> list[Effect]:
        if not self._pacing.may_refuse(now):
            return self.close("rate_limited", retry_after_ms=_RATE_RETRY_MS)
        return [Send(_error_frame("rate_limited", message, request_id, topic, retry_after_ms))]

    def _subscribe(self, frame: messages.Subscribe, now: float) -> list[Effect]:
        limit = self._limits.subscriptions_per_connection
        if len(self.topics) >= limit:
            message = f"a connection holds at most {limit} subscriptions"
            return self.error("subscription_limit", message, now, request_id=frame.id)
        self._busy = True
        return [Open(frame)]

    def _unsubscribe(self, frame: messages.Unsubscribe, now: float) -> list[Effect]:
        if frame.topic not in self.topics:
            message = "this connection does not hold that topic"
            return self.error("not_subscribed", message, now, topic=frame.topic[:64])
        self.topics.discard(frame.topic)
        answer = messages.Unsubscribed(topic=frame.topic, code="requested", resubscribe=False)
        return [Drop(frame.topic), Send(answer)]

    def _spread_ms(self, seconds: float) -> int:
        return int(1000 * seconds * self._jitter)


def _decoded(text: str | bytes) -> messages.ClientFrame | _Malformed:
    try:
        return messages.decode_client_frame(text)
    except Refusal as refusal:
        return _Malformed(refusal, messages.frame_id(text))


def _error_frame(
    code: str, message: str, request_id: str | None, topic: str | None, retry_after_ms: int | None
) -> messages.Error:
    return messages.Error(
        code=code,
        message=message,
        retryable=REGISTRY[code].retryable,
        id=msgspec.UNSET if request_id is None else request_id,
        topic=msgspec.UNSET if topic is None else topic,
        retry_after_ms=msgspec.UNSET if retry_after_ms is None else retry_after_ms,
    )


def _beat(now: float, interval_s: float, jitter: float, spread: float = _SPREAD) -> float:
    """When the next one is due, spread over the last part of the interval; where that is long enough, in step with
    others: a round of the loop for many costs less than one for each."""
    at = now + interval_s * (1 - spread + spread * jitter)
    return at if interval_s < _IN_STEP_FROM_S else at - at % _STEP_S


def _within_a_minute(times: deque[float], now: float) -> int:
    """Note that something happened at `now`: how often it did within the last minute."""
    times.append(now)
    while times[0] <= now - _MINUTE_S:
        times.popleft()
    return len(times)
