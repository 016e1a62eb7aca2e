"""A client by itself: what happens to it without being asked for, by the clock or by the room of its connection.

One timer on the wheel, set to the next deadline of the session; the beats (checkpoint and heartbeat); and the
transport, which becomes full and takes more. `client.py` has what its peer asks for.

What if ... the transport is full: cursors stay where they are, `_room_changed` continues from them; full for
`slow_after_s`: 4201; the loop runs a late timer: deadlines are compared with the clock, not counted.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

from feedsvc.core import messages, session
from feedsvc.core.placement import NotNow
from feedsvc.core.session import Effect, Session
from feedsvc.ports import Connection
from feedsvc.runtime.client_context import ClientContext
from feedsvc.runtime.held import Held
from feedsvc.runtime.wheel import GRAIN_S, NO_SLOT

_MAX_OWED_BYTES = 1 << 20
"""Answers that may pile up behind a full transport: every `subscribed` of a connection fits."""


class ClockedClient(ABC):
    """Its session and the subscriptions that it holds, as far as time and room concern them."""

    def __init__(self, context: ClientContext, connection: Connection, connection_id: str) -> None:
        self.connection = connection
        self.hub = context.hub
        self.jitter = context.random()
        self._id = connection_id
        self._context = context
        self._gone = False
        self._session = Session(
            connection_id, context.server, context.hub.limits, now=self.now(), jitter=self.jitter
        )
        self._held: dict[str, Held] = {}
        self._slot: int | None = None
        """Of the wheel, where the one timer is set."""
        self._deadline = 0.0
        """For which it was."""
        self._full_since: float | None = None
        self._owed_bytes = 0
        self._collecting: dict[str, str] | None = None
        self._heartbeat_soon = False
        connection.on_room(partial(self._safely, "room", self._room_changed))

    @abstractmethod
    def _perform(self, effects: Sequence[Effect]) -> None:
        """Carry out what the session decided."""

    def _after(self, effects: Sequence[Effect]) -> None:
        self._perform(effects)
        self._arm()

    def now(self) -> float:
        return self._context.clock.monotonic()

    def close(self, code: str) -> None:
        """Close with a registry code."""
        self._perform(self._session.close(code))

    # -- the room of the connection ------------------------------------------------------------------------

    def send(self, frame: messages.Frame) -> None:
        """An answer. It is written even to a full transport, but a peer that asks and never reads is closed."""
        encoded = messages.encode(frame)
        if isinstance(frame, messages.Error):
            self._context.metrics.count("errors_sent", code=frame.code)
        if self._full_since is not None:
            self._owed_bytes += len(encoded)
            if self._owed_bytes > _MAX_OWED_BYTES:
                self.close("slow_consumer")
                return
        self.connection.write((encoded,))

    def _room_changed(self) -> None:
        """The transport became full, which the timer sees to it does not last, or takes more: go on from the cursors.

        No placement is asked in the first case: it may be in the middle of writing to this very transport.
        """
        if self._gone:
            return
        room = self.connection.writable
        if not room:
            self._full_since = self.now()
            self._arm()
            return
        self._full_since = None
        self._owed_bytes = 0
        for topic_id, held in list(self._held.items()):
            if held.subscription is not None:
                # Whoever fills it is the last the next time, or a long replay would leave nothing to the others, who
                # hold up their tails meanwhile and would be closed as slow.
                self._held[topic_id] = self._held.pop(topic_id)
                self.hub.writable(held.subscription)
            if not self.connection.writable:
                break

    # -- beats ---------------------------------------------------------------------------------------------

    def _checkpoint(self) -> bytes | None:
        self._collecting = {}
        for held in tuple(self._held.values()):
            subscription, feed = held.subscription, held.feed
            if subscription is None or feed is None:
                continue
            position = feed.placement.checkpoint_now(subscription)
            if position is NotNow.NOT_NOW:
                feed.placement.checkpoint(subscription, held.checkpoint)
            elif position is not None:
                self._collecting[held.topic.topic_id] = self.hub.seal(held.topic, position)
        tokens, self._collecting = self._collecting, None
        return self._context.beats.checkpoint(tokens)

    def tell_checkpoint(self, topic_id: str, resume_token: str) -> None:
        """A position with nothing owed before it. Joined with others of this round, or sent alone if it comes late."""
        if self._collecting is not None:
            self._collecting[topic_id] = resume_token
        else:
            self.send(messages.Checkpoint({topic_id: resume_token}))

    def heartbeat_soon(self) -> None:
        """The health of a topic changed: say so once this round of the loop is over."""
        if not self._heartbeat_soon:
            self._heartbeat_soon = True
            asyncio.get_running_loop().call_soon(self._safely, "heartbeat", self._beat_soon)

    def _beat_soon(self) -> None:
        self._heartbeat_soon = False
        self._beat(self._heartbeat())

    def _beat(self, *frames: bytes | None) -> None:
        """What is told without being asked for, in one write."""
        burst = self._context.beats.burst(*frames)
        if burst.count:
            self.connection.write_burst(burst)

    def _heartbeat(self) -> bytes | None:
        if self._gone or self._session.state is not session.State.OPEN or not self.connection.writable:
            return None
        return self._context.beats.heartbeat([held.topic for held in self._held.values()])

    # -- the timer -----------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Set the one timer to the next deadline."""
        deadline = self._session.next_deadline()
        if deadline is None or self._gone:
            self._disarm()
            return
        if self._full_since is not None:
            deadline = min(deadline, self._full_since + self.hub.limits.slow_after_s)
        # One that comes too early does no harm: most deadlines only move away.
        if self._slot is None or deadline < self._deadline:
            self._disarm()
            self._deadline = deadline
            self._slot = self._set(deadline)

    def _set(self, deadline: float) -> int:
        """On the wheel, which may be late by its grain; the end of a JWT, and what comes so shortly before that it
        would be late with it, has a timer of its own at last."""
        expiry = self._session.expiry
        if expiry is None or deadline + GRAIN_S <= expiry:
            return self._context.wheel.set(self, deadline)
        left_s = deadline - self.now()
        if left_s > GRAIN_S:
            return self._context.wheel.set(self, deadline - GRAIN_S)
        asyncio.get_running_loop().call_later(max(0.0, left_s), self.due)
        return NO_SLOT

    def _disarm(self) -> None:
        if self._slot is not None:
            self._context.wheel.clear(self, self._slot)
            self._slot = None

    def due(self) -> None:
        """A deadline has come, or has moved away since its timer was set."""
        self._slot = None
        self._safely("timer", self._due)

    def _due(self) -> None:
        now = self.now()
        if self._full_since is not None and now - self._full_since >= self.hub.limits.slow_after_s:
            self.close("slow_consumer")
        effects = self._session.tick(now)
        if effects is not session.BEAT:
            self._after(effects)
            return
        burst = self._context.beats.alike(self._held, now)
        if burst is not None:
            self.connection.write_burst(burst)
        else:
            self._beat(self._checkpoint(), self._heartbeat())
        self._arm()

    # -- faults of ours ------------------------------------------------------------------------------------

    def _failed(self, what: str, error: Exception) -> str:
        reference = f"{int(self._context.random() * 16**8):08x}"
        text = f"{type(error).__name__}: {error}"
        fields = {"connection": self._id, "what": what, "reference": reference, "error": text}
        self._context.report("client.failed", fields)
        return reference

    def _safely(self, what: str, act: Callable[[], None]) -> None:
        """A callback of the loop. After a fault of ours nothing would set the timer again, and no JWT would expire."""
        try:
            act()
        except Exception as error:
            self._failed(what, error)
            self.close("internal")
