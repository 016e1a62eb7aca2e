"""How long a client waits before it fetches again: longer with every resync of a topic on its connection.

A topic that breaks again and again would otherwise make all its clients fetch in step with it. Constant time; the
counts of the topics that were resynced longest ago are dropped.
"""

from __future__ import annotations

_FIRST_RETRY_MS = 500
_LONGEST_RETRY_MS = 60_000
_MAX_DOUBLINGS = 20
_MAX_TOPICS = 1_024


class ResyncPace:
    """Of one connection. `jitter` in [0, 1) spreads the clients of a topic over half of the time."""

    __slots__ = ("_counts", "_jitter")

    def __init__(self, jitter: float) -> None:
        self._jitter = jitter
        self._counts: dict[str, int] = {}

    def retry_after_ms(self, topic_id: str) -> int:
        """What a resync of this topic tells its client; counts it."""
        count = self._counts.pop(topic_id, 0)
        self._counts[topic_id] = count + 1
        if len(self._counts) > _MAX_TOPICS:
            self._counts.pop(next(iter(self._counts)))
        longest_ms = min(_FIRST_RETRY_MS * 2 ** min(count, _MAX_DOUBLINGS), _LONGEST_RETRY_MS)
        return int(longest_ms * (0.5 + 0.5 * self._jitter))
