"""The pulse of the deployment: does MongoDB answer, and how far has its oplog come?

Asked beside the streams and with another pool, so that the two can be told apart. A stream that fails while MongoDB
answers is this process's fault (readiness); a stream that answers while its position stays behind an entry known for
long is a dead tail, or a majority point that does not move (decision 11).

What a tail must reach is the newest *entry*: an operation time alone may be ahead of all entries (SecantusDB mints
one when a stream is opened; a router knows times that a quiet shard has not written yet). Where the oplog may not be
read, the operation time stands in, and more patience.
"""

from __future__ import annotations

import asyncio
from collections import deque

from feedsvc.ports import ChangeSource, Clock, OplogWindow, SourceError

BEAT_S = 1.0
ANSWER_WITHIN_S = 2.0
WINDOW_EVERY_S = 30.0
WINDOW_AGAIN_S = 2.0
"""Where time moves on: a frozen point is told by entries that are older than some seconds anyway."""
FIRST_AGE_S = 10.0
"""The window need not be known to the second."""

SETTLES_S = 5.0
"""A healthy idle tail is past an entry sooner: one await, and up to three more where idle progress is confirmed."""

SETTLES_WITHOUT_OPLOG_S = 12.0
"""A quiet shard of a sharded cluster writes its no-op every 10 s."""

_SAMPLES = 3600


class Pulse:
    """Call `beat()` now and then; everything else is what it found."""

    def __init__(self, source: ChangeSource, clock: Clock) -> None:
        self.window: OplogWindow | None = None
        self.answered_at: float | None = None
        """When the last question that was answered had been put, in monotonic seconds."""
        self._source = source
        self._clock = clock
        self._time = 0
        self._window_at = float("-inf")
        self._known: deque[tuple[float, int]] = deque(maxlen=_SAMPLES)

    @property
    def settles_s(self) -> float:
        """How old the knowledge of an entry must be before a tail that has not reached it is suspicious."""
        return SETTLES_WITHOUT_OPLOG_S if self.window is None else SETTLES_S

    def known_at(self, at: float) -> int | None:
        """The newest entry that was known at a (monotonic) time; None where that is too long ago to tell."""
        return next((entry for asked, entry in reversed(self._known) if asked <= at), None)

    async def beat(self) -> None:
        """Ask once. Raises `SourceError`, or TimeoutError where there is no answer in time."""
        asked = self._clock.monotonic()
        async with asyncio.timeout(ANSWER_WITHIN_S):
            time = await self._source.operation_time()
        self.answered_at = asked
        again_s = WINDOW_EVERY_S if time == self._time else WINDOW_AGAIN_S if self.window else 0.0
        if asked - self._window_at >= again_s:
            try:
                async with asyncio.timeout(ANSWER_WITHIN_S):
                    self.window = await self._source.oplog_window(first_age_s=FIRST_AGE_S)
            except (SourceError, TimeoutError):
                return  # the old window is a good guess for clients, but proves no entry
            self._time, self._window_at = time, asked
        self._known.append((asked, time if self.window is None else min(time, self.window.last)))
