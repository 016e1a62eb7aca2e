"""A placement by itself, without the runtime: topics of one collection, records at whole cluster times, outlets."""

from __future__ import annotations

import msgspec

from feedsvc.core.burst import Burst
from feedsvc.core.changes import Change, ChangeBody, Namespace
from feedsvc.core.lockstep import Direct
from feedsvc.core.positions import Position, PositionKind, record_position
from feedsvc.core.subscription import Subscription, TopicKey
from feedsvc.testing import MemoryConnection

_THERE = Namespace("app", "x")


class SomeTopic(msgspec.Struct, frozen=True):
    namespace: Namespace = _THERE
    name: str = ""


class SomeOutlet:
    """`taken` is what it was told, a word for each answer."""

    def __init__(self, *, writable: bool = True, direct: bool = False) -> None:
        self.connection = MemoryConnection(direct=direct)
        self.connection.set_writable(writable)

    @property
    def taken(self) -> list[bytes]:
        return self.connection.frames

    @property
    def writable(self) -> bool:
        return self.connection.writable

    @property
    def direct(self) -> Direct | None:
        return self.connection.direct

    def subscribed(self, subscription: Subscription, *, resumed: bool, position: Position | None) -> None:
        self.connection.write((b"subscribed",))

    def frames(self, burst: Burst) -> None:
        self.connection.write_burst(burst)

    def live(self, subscription: Subscription) -> None:
        self.connection.write((b"live",))

    def resync(self, subscription: Subscription, reason: str, position: Position) -> None:
        raise AssertionError("nothing is lost here")

    def snapshot_due(self, subscription: Subscription) -> None:
        raise AssertionError("nobody takes snapshots here")

    def snapshot_end(self, subscription: Subscription, position: Position) -> None:
        raise AssertionError("nobody takes snapshots here")

    def too_slow(self, subscription: Subscription) -> None:
        raise AssertionError("nobody asks here")


def record(time: int) -> Position:
    return record_position(PositionKind.EVENT, time, f"token {time}")


def change(time: int) -> Change:
    return Change(record(time), "insert", _THERE, ChangeBody)


def build(topic: TopicKey, change: Change) -> bytes:
    """The frame of a change, for every topic."""
    return b"event %d" % change.position.cluster_time
