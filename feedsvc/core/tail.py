"""A tail: one upstream stream as the core sees it: a ring of what was read and a log for each topic on it.

A record of data costs what its collection's `Router` makes of it: the tail knows nothing of filters. Control records
(drop, rename, dropDatabase, invalidate) go to every topic that they concern.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Protocol

from feedsvc.core.changes import COLLECTION_GONE_OPERATIONS, DATA_OPERATIONS, Change, Namespace
from feedsvc.core.lockstep import Lockstep
from feedsvc.core.positions import Position
from feedsvc.core.ring import Ring
from feedsvc.core.subscription import Place, Subscription, TopicKey
from feedsvc.core.topic_log import LogEntry, LogSpace, TopicLog

Build = Callable[[TopicKey, Change], "bytes | Loss | None"]
"""Makes the frame of a change for a topic: None where the topic does not see it. Must not raise."""


class Loss(str):
    """A resync reason in place of a frame: this topic cannot be continued past this change."""


class OrderError(Exception):
    """The upstream sent a record of a cluster time that this tail had already passed (SRC-14, NODE-7042)."""


class LoggedTopic:
    """A topic on one tail. `holders` counts the subscriptions that keep it there, `readers` are those on this tail."""

    __slots__ = ("adopted", "holders", "lockstep", "log", "loss", "readers", "topic")

    def __init__(self, topic: TopicKey, start: int) -> None:
        self.topic = topic
        self.log = TopicLog(start)
        self.holders = 0
        self.readers: dict[Subscription, None] = {}
        self.lockstep = Lockstep()
        """The readers of a live tail once more: those that stand alike, and those apart."""
        self.loss: LogEntry | None = None
        """The last loss that went into the log, which may have left it since."""
        self.adopted = False
        """A rename put another collection's documents under this name; the invalidate behind it is not for us."""


class Router(Protocol):
    """The topics of one collection on one tail, and which of them a change of data may concern."""

    def add(self, logged: LoggedTopic) -> None: ...

    def remove(self, logged: LoggedTopic) -> None: ...

    @property
    def members(self) -> Collection[LoggedTopic]: ...

    def route(self, change: Change) -> Iterable[Sequence[LoggedTopic]]:
        """At least the topics for which `Build` would not return None, each once. In portions, some of which may be
        empty: between them the tail lets others run. Must not raise."""
        ...


class EveryTopic:
    """The router that asks all."""

    def __init__(self) -> None:
        self._members: dict[LoggedTopic, None] = {}

    def add(self, logged: LoggedTopic) -> None:
        self._members[logged] = None

    def remove(self, logged: LoggedTopic) -> None:
        del self._members[logged]

    @property
    def members(self) -> Collection[LoggedTopic]:
        return self._members

    def route(self, change: Change) -> Iterable[Sequence[LoggedTopic]]:
        return (list(self._members),)


class Tail:
    """Ring, logs and readers of one stream. `opened_at` is the position from which the stream was first opened.

    `router` makes the router of a collection when its first topic comes.
    """

    def __init__(
        self, start: Position, build: Build, *, live: bool, router: Callable[[], Router] = EveryTopic
    ) -> None:
        self.is_live = live
        self.opened_at = start
        self.ring = Ring(start)
        self.space = LogSpace()
        self.topics: dict[TopicKey, LoggedTopic] = {}
        self.skipping: dict[Subscription, None] = {}
        self._routers: dict[Namespace, Router] = {}
        self._new_router = router
        self._build = build

    @property
    def head(self) -> Position:
        return self.ring.head

    @property
    def readers(self) -> Iterator[Subscription]:
        """Those of all topics."""
        return (reader for logged in self.topics.values() for reader in logged.readers)

    def hold(self, topic: TopicKey) -> LoggedTopic:
        """The topic on this tail; a new log starts at the head. Pair with `release`."""
        logged = self.topics.get(topic)
        if logged is None:
            logged = self.topics[topic] = LoggedTopic(topic, self.ring.head_ordinal)
            router = self._routers.get(topic.namespace)
            if router is None:
                router = self._routers[topic.namespace] = self._new_router()
            router.add(logged)
        logged.holders += 1
        return logged

    def release(self, logged: LoggedTopic) -> None:
        logged.holders -= 1
        if logged.holders:
            return
        del self.topics[logged.topic]
        namespace = logged.topic.namespace
        router = self._routers[namespace]
        router.remove(logged)
        if not router.members:
            del self._routers[namespace]
        self.space.forget(logged.log)

    def restart(self, start: Position) -> None:
        """Begin again at `start` with an empty ring and empty logs; the caller deals with the readers."""
        self.opened_at = start
        self.ring = Ring(start)
        self.space = LogSpace()
        for logged in self.topics.values():
            logged.lockstep.dissolve()  # its cursors are of the old numbers
            logged.log = TopicLog(0)
            logged.adopted = False
            logged.loss = None

    def append(self, change: Change, touched: dict[LoggedTopic, None]) -> Iterator[None]:
        """Read one record: number it, and put its frame into every log whose topic sees it. Exhaust it: it yields
        after every frame and every portion of topics that were asked.

        A record that the ring already has is passed over: a stream that was reopened may repeat itself.
        Raises `OrderError` where the order of the stream broke.
        """
        position, ring = change.position, self.ring
        if position.cluster_time < ring.head.cluster_time or position in ring:
            if position in ring or position.cluster_time < ring.floor.cluster_time:
                return
            raise OrderError(f"{change.operation} is older than what was read before it")
        if position.same_as(ring.floor):
            return
        ordinal = ring.append(position)
        for portion in self._route(change):
            for logged in portion:
                outcome = self._outcome(logged, change)
                if outcome is None:
                    continue
                if isinstance(outcome, Loss):
                    entry = logged.loss = LogEntry(ordinal, position, b"", str(outcome))
                else:
                    entry = LogEntry(ordinal, position, outcome)
                self.space.append(logged.log, entry)
                touched[logged] = None
                yield
            yield

    def _route(self, change: Change) -> Iterable[Sequence[LoggedTopic]]:
        operation, namespace = change.operation, change.namespace
        if operation in DATA_OPERATIONS:
            router = self._routers.get(namespace) if namespace else None
            return () if router is None else router.route(change)
        if operation not in COLLECTION_GONE_OPERATIONS and operation != "invalidate":
            return ()
        if namespace is None:
            return (list(self.topics.values()),)
        if not namespace.collection:
            return [
                list(router.members)
                for key, router in self._routers.items()
                if key.database == namespace.database
            ]
        concerned = [namespace]
        if change.renamed_to is not None and change.renamed_to != namespace:
            concerned.append(change.renamed_to)
        return [list(self._routers[name].members) for name in concerned if name in self._routers]

    def _outcome(self, logged: LoggedTopic, change: Change) -> bytes | Loss | None:
        """The frame of a change for a topic.

        A rename onto a watched name brings documents that no event announced, so the topic cannot be continued;
        the invalidate behind that rename would tell its clients to hold nothing, and is swallowed.
        """
        if change.operation == "rename" and change.renamed_to == logged.topic.namespace:
            logged.adopted = True
            return Loss("event_unavailable")
        if change.operation == "invalidate" and logged.adopted:
            logged.adopted = False
            return None
        return self._build(logged.topic, change)

    def slowest_cursor(self) -> int | None:
        """The least cursor of the located readers, None without any."""
        cursors = [
            reader.cursor
            for reader in self.readers
            if reader.place is Place.CATCHING or reader.place is Place.LIVE
        ]
        return min(cursors, default=None)

    def trim(self, ring_records: int, log_bytes: int) -> None:
        """Rule 12: a catch-up tail keeps what its slowest located reader still needs; a live tail keeps its limits."""
        if not self.is_live and not self.over(ring_records, log_bytes):
            return
        keep_after = None if self.is_live else self.slowest_cursor()
        self.ring.trim(ring_records, keep_after)
        self.space.trim(log_bytes, keep_after)

    def over(self, ring_records: int, log_bytes: int) -> bool:
        """Whether a catch-up tail must stop reading until its readers move on."""
        return len(self.ring) > ring_records or self.space.size_bytes > log_bytes
