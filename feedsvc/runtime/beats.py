"""What clients are told while nothing happens: checkpoints and heartbeats, made once for all who are told the same.

An idle service does little else. Most clients of a topic stand alike, and how a feed is does not change between two
clients that are due in the same tenth of a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from feedsvc.core import messages
from feedsvc.core.burst import Burst
from feedsvc.core.placement import NotNow
from feedsvc.core.positions import Position
from feedsvc.core.topics import Topic
from feedsvc.ports import Clock
from feedsvc.runtime.held import Held
from feedsvc.runtime.hub import Hub

_ALIKE_S = 0.1
"""How long clients are told what one was told."""


class _Alike(msgspec.Struct, frozen=True):
    """What those who hold a topic and nothing else are told until then, with this position or without a new one."""

    topic: Topic
    position: Position | None
    until: float
    burst: Burst


class Beats:
    """One for the process."""

    def __init__(self, hub: Hub, clock: Clock) -> None:
        self._hub = hub
        self._clock = clock
        self._heartbeat: tuple[list[str], int, bytes] | None = None
        self._burst = Burst(())
        self._alike: _Alike | None = None

    def alike(self, helds: Mapping[str, Held], now: float) -> Burst | None:
        """Checkpoint and heartbeat for a client that holds one topic, is idle, and stands as the others of it do; None
        for any other, which is to be asked one by one. `now`: monotonic seconds."""
        if len(helds) != 1:
            return None
        (held,) = helds.values()
        subscription, feed, topic = held.subscription, held.feed, held.topic
        if subscription is None or feed is None or (self._hub.stalls and self._hub.stalled(topic)):
            return None
        position = feed.placement.checkpoint_now(subscription)
        if position is NotNow.NOT_NOW:
            return None
        made = self._alike
        if made is None or made.position is not position or made.topic is not topic or made.until <= now:
            tokens = {topic.topic_id: self._hub.seal(topic, position)} if position is not None else {}
            burst = self.burst(self.checkpoint(tokens), self.heartbeat((topic,)))
            made = self._alike = _Alike(topic, position, now + _ALIKE_S, burst)
        return made.burst

    def burst(self, *frames: bytes | None) -> Burst:
        """Those of the frames that there are, in one write: the same object for the same frames in a row."""
        there = [frame for frame in frames if frame is not None]
        if self._burst.frames != there:
            self._burst = Burst(there)
        return self._burst

    def heartbeat(self, topics: Sequence[Topic]) -> bytes:
        """The frame for a client that holds these topics: which have no healthy upstream, and the largest lag."""
        hub, now, lag_ms = self._hub, self._clock.monotonic(), 0
        for topic in topics:
            lag_ms = max(lag_ms, hub.feed(topic).lag_ms(now))
        stalled = [topic.topic_id for topic in topics if hub.stalled(topic)] if hub.stalls else []
        made = self._heartbeat
        if made is None or made[0] != stalled or made[1] != lag_ms:
            frame = messages.encode(messages.Heartbeat(stalled, lag_ms))
            made = self._heartbeat = (stalled, lag_ms, frame)
        return made[2]

    @staticmethod
    def checkpoint(tokens: dict[str, str]) -> bytes | None:
        """The frame of the positions of these topics, by topic id; None without any."""
        return messages.encode(messages.Checkpoint(tokens)) if tokens else None
