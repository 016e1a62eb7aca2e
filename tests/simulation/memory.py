"""What a consumer remembers of each of its topics, and would have saved."""

from __future__ import annotations

import msgspec

from feedsvc.core.positions import Position, boundary
from tests.simulation.holding import View
from tests.simulation.model import Mark, TopicSpec
from tests.simulation.world import World


class Memory(msgspec.Struct, frozen=True):
    """A place that the consumer can resume from: the token (None: a bare time), and where the model says it is."""

    resume_token: str | None
    position: Position
    mark: Mark
    view: View | None = None
    """The documents that were held there, by `_id`; None where they are not known."""
    refused: tuple[str, ...] = ()
    """Nothing can be resumed from this token: it must be answered with a resync of one of these reasons."""


class Stream:
    """One topic of one consumer."""

    def __init__(self, topic: TopicSpec, snapshots: bool) -> None:
        self.topic = topic
        self.snapshots = snapshots
        self.mode = "never"
        """`snapshot` of the last `subscribe`."""
        self.view: View | None = None
        self.pages: View = {}
        self.next_page = 0
        self.unread_from = boundary(0)
        """A snapshot that is owed or under way begins here or later."""
        self.memory: Memory | None = None
        self.older: list[Memory] = []
        self.state = "unasked"
        self.asked: Memory | None = None
        self.topic_id = ""
        self.exact = False
        self.leaving = False
        self.losses_before = 0

    def remember(self, memory: Memory) -> None:
        if self.memory is not None and not self.memory.refused:
            self.older.append(self.memory)
            del self.older[:-30]
        self.memory = memory


def at_time(world: World, cluster_time: int) -> Memory:
    position = boundary(cluster_time)
    return Memory(None, position, world.history.mark(position))
