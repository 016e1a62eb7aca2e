"""The ring: what a tail remembers of the records it has read.

Each tail numbers every upstream record it reads, matched or not; the ordinals never leave the process. The ring keeps
the last of them so that a client's position can be found without asking MongoDB. Everything before the ring is
summed up in the *floor*: the position at which the tail was opened, or the last record that was trimmed.

Rules for whoever edits this (positions.md has the counterexamples):

* only a complete time proves absence: a cluster time is complete once something of a greater time was read;
* a boundary is located by time, a record by `(kind, digest)`;
* a boundary at the floor's time is below a ring whose floor is a record of that time.

`append` is O(1), `locate` O(1) for records and O(log n) for boundaries, `trim` amortised O(1).
"""

from __future__ import annotations

import enum
from bisect import bisect_left

import msgspec

from feedsvc.core.positions import Position, PositionKey


class NotFound(enum.Enum):
    """Why a position has no ordinal."""

    AHEAD = "ahead"
    """Not decided yet: this tail has not read past its cluster time."""
    BELOW = "below"
    """Before what the ring remembers; it may or may not exist."""
    ABSENT = "absent"
    """Its cluster time was read completely and it was not there."""


class Found(msgspec.Struct, frozen=True, gc=False):
    """The ordinal after which a reader at that position continues."""

    ordinal: int


Location = Found | NotFound

_COMPACT_AT = 1024


class Ring:
    """The records `floor_ordinal + 1 .. head_ordinal` of one tail."""

    __slots__ = (
        "_first",
        "_ordinal_of",
        "_records",
        "_times",
        "floor",
        "floor_ordinal",
        "head",
        "head_ordinal",
    )

    def __init__(self, start: Position, ordinal: int = 0) -> None:
        self.floor = start
        self.floor_ordinal = self.head_ordinal = ordinal
        self.head = start
        self._records: list[Position] = []
        self._times: list[int] = []
        self._first = 0
        self._ordinal_of: dict[PositionKey, int] = {}

    def __len__(self) -> int:
        return len(self._records) - self._first

    def append(self, position: Position) -> int:
        """Number one record. Its cluster time must not be before the head's."""
        self._records.append(position)
        self._times.append(position.cluster_time)
        self.head_ordinal += 1
        self._ordinal_of[position.key] = self.head_ordinal
        self.head = position
        return self.head_ordinal

    def advance(self, boundary: Position) -> bool:
        """Take a boundary as the head if it is of a greater time than the head; True if it was."""
        if boundary.cluster_time <= self.head.cluster_time:
            return False
        self.head = boundary
        return True

    def __contains__(self, position: Position) -> bool:
        return position.key in self._ordinal_of

    def position(self, ordinal: int) -> Position:
        """The record with that ordinal, or the floor. IndexError where the ring no longer knows it."""
        index = ordinal - self.floor_ordinal - 1
        if index == -1:
            return self.floor
        if not 0 <= index < len(self):
            raise IndexError(f"ordinal {ordinal} is outside the ring")
        return self._records[self._first + index]

    def locate(self, position: Position) -> Location:
        """Where a position stands in this ring; `positions.md`, pseudo-code `locate`."""
        time, floor, head = position.cluster_time, self.floor, self.head
        if position.is_boundary:
            if time < floor.cluster_time or (time == floor.cluster_time and not floor.is_boundary):
                return NotFound.BELOW
            if head.cluster_time < time:
                return NotFound.AHEAD
            index = bisect_left(self._times, time, self._first)
            return Found(self.floor_ordinal + index - self._first)
        ordinal = self._ordinal_of.get(position.key)
        if ordinal is not None:
            return Found(ordinal)
        if position.same_as(floor):
            return Found(self.floor_ordinal)
        if time < floor.cluster_time:
            return NotFound.BELOW
        if head.cluster_time <= time:
            return NotFound.AHEAD
        if time == floor.cluster_time and not floor.is_boundary:
            return NotFound.BELOW
        return NotFound.ABSENT

    def trim(self, records: int, keep_after: int | None = None) -> None:
        """Forget the oldest records over `records`, but none with an ordinal greater than `keep_after`."""
        surplus = len(self) - records
        if keep_after is not None:
            surplus = min(surplus, keep_after - self.floor_ordinal)
        if surplus <= 0:
            return
        stop = self._first + surplus
        for index in range(self._first, stop):
            key = self._records[index].key
            if self._ordinal_of.get(key) == self.floor_ordinal + 1 + index - self._first:
                del self._ordinal_of[key]
        self.floor = self._records[stop - 1]
        self.floor_ordinal += surplus
        self._first = stop
        if self._first >= _COMPACT_AT and self._first * 2 >= len(self._records):
            del self._records[: self._first]
            del self._times[: self._first]
            self._first = 0
