"""The topic log: what one topic can replay from memory, as frames that are ready to be sent.

A log begins at an ordinal of its tail (`start`): every match after it is in the log. A subscription is a cursor into
it, so replay and live are the same read, and a client that is slow is only a cursor that points further back. The
bound is on the bytes of all logs of a tail together (`LogSpace`): the oldest frame goes first, whoever owns it.
Most cursors of a topic stand alike, at its end: what they read next is made once (`TopicLog.run`). A burst of several
writes is several such runs, one behind the other, which every reader asks for: while a topic is fanned out all of them
are kept (`sharing`), and afterwards a few, for readers that take them later. Beside the log that is at most
the three forms of a `Burst`, and nothing that has left the log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

import msgspec

from feedsvc.core.burst import Burst
from feedsvc.core.positions import Position

_ENTRY_OVERHEAD_BYTES = 200
"""What an entry costs beside its frame: the struct, two list slots and the frame object's header, rounded up."""
_COMPACT_AT = 64
_MAX_ENTRIES_A_READ = 512
_KEPT_BYTES = 512 << 10
"""Frames in runs that one log keeps."""
_SHARED_BYTES = 32 << 20
"""The same during a fan-out: more than a batch of the upstream comes to, whose frames are all in memory anyway."""


class LogEntry(msgspec.Struct, frozen=True, gc=False):
    """One match. `loss` is a resync reason instead of a frame: whoever reaches it is lost for that reason."""

    ordinal: int
    position: Position
    frame: bytes
    loss: str | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.frame) + _ENTRY_OVERHEAD_BYTES


class Run(msgspec.Struct, frozen=True):
    """What comes next behind a cursor: frames that leave together, or a loss and no frame.

    `ordinal` and `position` are those of the last entry in it; `last`: nothing is in the log behind it.
    """

    burst: Burst
    ordinal: int
    position: Position
    last: bool
    loss: str | None = None


class TopicLog:
    """The matches of one topic on one tail after ordinal `start`, in order."""

    __slots__ = (
        "_entries",
        "_first",
        "_made",
        "_made_bytes",
        "_made_for",
        "_ordinals",
        "sharing",
        "size_bytes",
        "start",
    )

    def __init__(self, start: int) -> None:
        self.start = start
        self.size_bytes = 0
        self._entries: list[LogEntry] = []
        self._ordinals: list[int] = []
        self._first = 0
        self._made_for: tuple[int, int] | None = None
        """The last ordinal and the limit for which the runs were made: with another one they may end elsewhere."""
        self._made: dict[int, Run] = {}
        """By cursor."""
        self._made_bytes = 0
        self.sharing = False
        """Everybody asks for the same runs, so keep all of them. Pair with `settle`."""

    def __len__(self) -> int:
        return len(self._entries) - self._first

    def append(self, entry: LogEntry) -> None:
        self._entries.append(entry)
        self._ordinals.append(entry.ordinal)
        self.size_bytes += entry.size_bytes

    def after(self, ordinal: int, limit_bytes: int) -> list[LogEntry]:
        """The next entries behind a cursor: at least one if there is any, then up to `limit_bytes` of frames."""
        ordinals = self._ordinals
        if not ordinals or ordinals[-1] <= ordinal:
            return []
        index = bisect_right(ordinals, ordinal, self._first)
        taken: list[LogEntry] = []
        size_bytes = 0
        for entry in self._entries[index : index + _MAX_ENTRIES_A_READ]:
            size_bytes += len(entry.frame)
            if taken and size_bytes > limit_bytes:
                break
            taken.append(entry)
        return taken

    def run(self, ordinal: int, limit_bytes: int) -> Run | None:
        """The same as one burst, up to a loss. Cursors that stand alike get the same object."""
        ordinals = self._ordinals
        if not ordinals or ordinals[-1] <= ordinal:
            return None
        wanted = (ordinals[-1], limit_bytes)
        if self._made_for != wanted:
            self._forget_runs()
            self._made_for = wanted
        run = self._made.get(ordinal)
        if run is None:
            if self._made_bytes > (_SHARED_BYTES if self.sharing else _KEPT_BYTES):
                self._forget_runs()
            run = self._made[ordinal] = self._run(self.after(ordinal, limit_bytes))
            self._made_bytes += run.burst.size_bytes
        return run

    def settle(self) -> None:
        """The end of `sharing`."""
        self.sharing = False
        if self._made_bytes > _KEPT_BYTES:
            self._forget_runs()

    def _forget_runs(self) -> None:
        self._made.clear()
        self._made_bytes = 0

    def _run(self, entries: list[LogEntry]) -> Run:
        frames = []
        for entry in entries:
            if entry.loss is not None:
                break
            frames.append(entry.frame)
        ending = entries[max(0, len(frames) - 1)]
        return Run(
            Burst(frames),
            ending.ordinal,
            ending.position,
            last=ending.ordinal == self._ordinals[-1],
            loss=None if frames else ending.loss,
        )

    def next_ordinal(self, ordinal: int) -> int | None:
        """The ordinal of the first entry behind a cursor."""
        ordinals = self._ordinals
        if not ordinals or ordinals[-1] <= ordinal:
            return None
        return ordinals[bisect_right(ordinals, ordinal, self._first)]

    def oldest_ordinal(self) -> int:
        """IndexError where the log is empty."""
        return self._ordinals[self._first]

    def drop_oldest(self) -> int:
        """Forget one entry, the log now starts at its ordinal; returns the bytes that this set free."""
        entry = self._entries[self._first]
        self.start = entry.ordinal
        for cursor in [cursor for cursor in self._made if cursor < entry.ordinal]:
            self._made_bytes -= self._made.pop(cursor).burst.size_bytes
        self.size_bytes -= entry.size_bytes
        self._first += 1
        if self._first == len(self._entries) or (
            self._first >= _COMPACT_AT and self._first * 2 >= len(self._entries)
        ):
            del self._entries[: self._first]
            del self._ordinals[: self._first]
            self._first = 0
        return entry.size_bytes

    def clear(self) -> int:
        """Forget everything; for a log whose topic has no subscription left. Returns the bytes set free."""
        freed = self.size_bytes
        self._entries.clear()
        self._ordinals.clear()
        self._forget_runs()
        self._first = self.size_bytes = 0
        return freed


class LogSpace:
    """The bytes that all logs of one tail share. `order` holds a log once for each entry, in order of arrival."""

    __slots__ = ("_forgotten", "_order", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = 0
        self._order: deque[TopicLog] = deque()
        self._forgotten = 0
        """How many places of `_order` belong to forgotten logs."""

    def append(self, log: TopicLog, entry: LogEntry) -> None:
        log.append(entry)
        self._order.append(log)
        self.size_bytes += entry.size_bytes

    def trim(self, limit_bytes: int, keep_after: int | None = None) -> None:
        """Forget the oldest entries over `limit_bytes`, but none with an ordinal greater than `keep_after`."""
        order = self._order
        while order and (self.size_bytes > limit_bytes or not order[0]):
            log = order[0]
            if log:
                if keep_after is not None and log.oldest_ordinal() > keep_after:
                    return
                self.size_bytes -= log.drop_oldest()
            else:
                self._forgotten -= 1
            order.popleft()

    def forget(self, log: TopicLog) -> None:
        """Empty a log whose topic has left the tail; it must not be appended to again.

        Its places in `order` go when they come first, or all at once when they are many: behind one old entry topics
        could come and go for ever.
        """
        self._forgotten += len(log)
        self.size_bytes -= log.clear()
        if self._forgotten >= _COMPACT_AT and self._forgotten * 2 >= len(self._order):
            self._order = deque(kept for kept in self._order if kept)
            self._forgotten = 0
