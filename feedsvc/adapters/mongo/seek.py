"""Finding the record that a position names in a stream that was opened at the record's cluster time.

Positions without an upstream token, and tokens that stand for two records, cannot be opened by token. The stream
then starts at the first record of that time, and everything up to and including the named record is discarded.

A boundary is opened by time, too, but never at one that no entry of the oplog has reached (`driver.MongoSource`): such
a stream starts at the newest entry, and what is not newer than that entry is discarded.
"""

from __future__ import annotations

from feedsvc.core.changes import Change
from feedsvc.core.positions import Position
from feedsvc.ports import PositionLost


class Seek:
    """Pass every change through `after()` and every idle cluster time through `idle()` until `found`."""

    def __init__(self, target: Position) -> None:
        self._target = target
        self.found: Position | None = None
        """The full position of the record, with its upstream token."""

    def after(self, changes: tuple[Change, ...]) -> tuple[Change, ...]:
        """Those of `changes` that come after the record; raises `PositionLost` once it cannot come any more."""
        if self.found is not None:
            return changes
        for index, change in enumerate(changes):
            if change.position.key == self._target.key:
                self.found = change.position
                return changes[index + 1 :]
            self.idle(change.position.cluster_time)
        return ()

    def idle(self, cluster_time: int) -> None:
        """The stream has reached `cluster_time`; raises `PositionLost` if that is past a record not yet found."""
        if self.found is None and cluster_time > self._target.cluster_time:
            raise PositionLost("the record of this position is not in the stream")


class Past:
    """The same for a boundary behind the newest entry, whose cluster time is `newest`: there is nothing to find."""

    def __init__(self, start: Position, newest: int) -> None:
        self._newest = newest
        self.found: Position | None = start
        """Where the stream stands; the upstream invalidate, if one was discarded: what follows is another stream."""

    def after(self, changes: tuple[Change, ...]) -> tuple[Change, ...]:
        """All or none of the `changes` that one event stands for; they are of one cluster time."""
        if changes[0].position.cluster_time > self._newest:
            return changes
        self.found = changes[0].position
        return ()

    def idle(self, cluster_time: int) -> None:
        """Nothing is waited for."""
