"""A subscription: one client's cursor into one topic, and the outlet through which its client sees it."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol

from feedsvc.core.burst import Burst
from feedsvc.core.changes import Namespace
from feedsvc.core.lockstep import Direct, Lockstep
from feedsvc.core.messages import SnapshotMode
from feedsvc.core.positions import Position

if TYPE_CHECKING:
    from feedsvc.core.tail import LoggedTopic, Tail


class TopicKey(Protocol):
    """What placement needs of a topic: its collection, and equality by whole canonical form."""

    @property
    def namespace(self) -> Namespace: ...

    def __hash__(self) -> int: ...

    def __eq__(self, other: object) -> bool: ...


class Place(enum.Enum):
    """Where a subscription stands; the transitions are in `places.py`."""

    PENDING = "pending"
    """The live tail has not been opened yet."""
    LIVE = "live"
    WAITING = "waiting"
    QUEUED = "queued"
    SKIPPING = "skipping"
    CATCHING = "catching"
    LOST = "lost"
    SNAPSHOT = "snapshot"
    """Its client is owed a snapshot, or gets one; until the end of it the pump writes nothing."""
    CLOSED = "closed"


class Outlet(Protocol):
    """The connection as a subscription sees it. Nothing here blocks or re-enters placement."""

    @property
    def writable(self) -> bool: ...

    @property
    def direct(self) -> Direct | None:
        """The way around `frames`, if there is one."""
        ...

    def subscribed(self, subscription: Subscription, *, resumed: bool, position: Position | None) -> None:
        """Answer the `subscribe`; `position` is None where the client must not store one (lost, snapshot)."""
        ...

    def frames(self, burst: Burst) -> None:
        """Write; called for every delivery."""
        ...

    def live(self, subscription: Subscription) -> None: ...

    def resync(self, subscription: Subscription, reason: str, position: Position) -> None:
        """Continuity is broken. Where a snapshot follows (`takes_snapshots`) the client must not store `position`."""
        ...

    def snapshot_due(self, subscription: Subscription) -> None:
        """Have a snapshot read: `Placement.begin_snapshot`, a `find` not before that position, `end_snapshot`.

        Called once for each; one that is still under way for this subscription is abandoned.
        """
        ...

    def snapshot_end(self, subscription: Subscription, position: Position) -> None: ...

    def too_slow(self, subscription: Subscription) -> None:
        """The connection holds up a catch-up tail that others share (rule 12): close it with 4201."""
        ...


class Subscription:
    """State of one subscription. Only `Placement` writes to it.

    `at` is the position of its cursor, noted at every frame written and whenever it is idle at the head: falling
    off the log continues from there, not from the client's token. `told` is the last position its client was
    given. `reason` says why it is LOST. `replaying`: it was resumed, and `live` comes once nothing is left to replay.
    `strict`: when it joined, `at` was surely not before what that tail had read. `snapshots_owed` numbers the
    snapshots that came due, so that who reads one can tell that it was abandoned. `lockstep`: only while it is LIVE,
    went live, and its connection takes more; `step` is its place there. `settle` before you read a cursor or a
    position: a member has been given what it does not know of.
    """

    __slots__ = (
        "announced",
        "at",
        "closed",
        "cursor",
        "lockstep",
        "logged",
        "outlet",
        "place",
        "reason",
        "replayed_bytes",
        "replaying",
        "resyncs",
        "snapshot",
        "snapshots_owed",
        "step",
        "strict",
        "tail",
        "told",
        "topic",
        "went_live",
    )

    def __init__(
        self,
        topic: TopicKey,
        outlet: Outlet,
        at: Position | None,
        lost: str | None = None,
        snapshot: SnapshotMode = "never",
    ) -> None:
        self.topic = topic
        self.outlet = outlet
        self.at = at
        self.told = at
        self.reason = lost
        self.place = Place.PENDING
        self.tail: Tail | None = None
        self.logged: LoggedTopic | None = None
        self.cursor = 0
        self.lockstep: Lockstep | None = None
        self.step = 0
        self.announced = False
        self.went_live = False
        self.replaying = False
        self.closed = False
        self.strict = False
        self.replayed_bytes = 0
        self.resyncs = 0
        self.snapshot: SnapshotMode = snapshot
        self.snapshots_owed = 0

    def full(self) -> None:
        """Not in lockstep from now on: its connection takes nothing, or it is dealt with by itself. At once, in the
        middle of a write too; what is owed waits for `Placement.writable`."""
        if self.lockstep is not None:
            self.lockstep.leave(self)

    def settle(self) -> None:
        """Stand where it was given everything up to; nothing changes for its client."""
        if self.lockstep is not None:
            self.lockstep.settle(self)

    @property
    def located(self) -> bool:
        return self.place is Place.LIVE or self.place is Place.CATCHING

    @property
    def takes_snapshots(self) -> bool:
        """Whether a snapshot follows each resync."""
        return self.snapshot != "never"
