"""What clients are told while nothing happens: checkpoints and heartbeats, made once for all who are told the same.

An idle service does little else. Most clients of a topic stand alike, and how a feed is does not change between two
clients that are due in the same tenth of a second.
"""

from __future__ import annotations

from collections.abc import Sequence

from feedsvc.core import messages
from feedsvc.core.burst import Burst
from feedsvc.core.topics import Topic
from feedsvc.ports import Clock
from feedsvc.runtime.hub import Hub


class Beats:
    """One for the process."""

    def __init__(self, hub: Hub, clock: Clock) -> None:
        self._hub = hub
        self._clock = clock
        self._heartbeat: tuple[list[str], int, bytes] | None = None
        self._checkpoint: tuple[str, str, bytes] | None = None
        self._burst = Burst(())

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

    def checkpoint(self, tokens: dict[str, str]) -> bytes:
        """The frame of the positions of these topics, by topic id."""
        if len(tokens) != 1:
            return messages.encode(messages.Checkpoint(tokens))
        ((topic_id, resume_token),) = tokens.items()
        made = self._checkpoint
        if made is None or made[0] != topic_id or made[1] != resume_token:
            frame = messages.encode(messages.Checkpoint(tokens))
            made = self._checkpoint = (topic_id, resume_token, frame)
        return made[2]
