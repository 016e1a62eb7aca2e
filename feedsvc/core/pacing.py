"""How fast one connection may ask: a `subscribe` costs others a look-up, a log and perhaps a catch-up tail.

So many requests at once as a client needs that subscribes to all it may hold, and some to spare; then a steady pace.
A `ping` is cheap and counts as a part of one. What is malformed, and `auth`, have bounds of their own. What is too much
is told (`rate_limited`), and who goes on regardless may do so for a while: a client that is told ten thousand times
in a minute does not read. Constant time and memory.
"""

from __future__ import annotations

import math

from feedsvc.core.limits import Limits
from feedsvc.core.messages import Ping, Subscribe, Unsubscribe
from feedsvc.core.rate import Rate

_PING_COST = 0.1
_MINUTE_S = 60.0


class Pacing:
    """`now` arguments are monotonic seconds."""

    __slots__ = ("_refused", "_requests", "message")

    def __init__(self, limits: Limits) -> None:
        at_once = limits.subscriptions_per_connection + limits.requests_spare
        self._requests = Rate(at_once, limits.requests_per_second)
        self._refused = Rate(limits.refused_per_minute, limits.refused_per_minute / _MINUTE_S)
        self.message = (
            f"a connection subscribes and unsubscribes at most {limits.requests_per_second} times a second, after "
            f"{at_once} at once; wait retryAfterMs and send it again"
        )

    def wait_ms(self, frame: object, now: float) -> int:
        """0 where the frame is in time, and counted; else when it will be."""
        cost = 1.0 if isinstance(frame, Subscribe | Unsubscribe) else _PING_COST
        if cost < 1.0 and not isinstance(frame, Ping):
            return 0
        return math.ceil(self._requests.take(now, cost) * 1000)

    def may_refuse(self, now: float) -> bool:
        """Count a refusal: False where there were too many of them."""
        return not self._refused.take(now)
