"""The hub: which topics exist, which feed serves them, and how a request becomes a subscription.

One feed per tail scope (a collection, a database, or the deployment), however many topics and clients hang on it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakValueDictionary

import msgspec
from msgspec import UNSET

from feedsvc.core.changes import DATA_OPERATIONS, Namespace, ScopeLevel, TailScope
from feedsvc.core.errors import Refusal
from feedsvc.core.explain import Explained, explained
from feedsvc.core.frames import FrameBuilder
from feedsvc.core.limits import Limits
from feedsvc.core.matcher import Matcher
from feedsvc.core.messages import SnapshotMode, Subscribe, TopicRequest
from feedsvc.core.placement import Placement
from feedsvc.core.places import PlacementLimits
from feedsvc.core.policy import Grant, Policy
from feedsvc.core.positions import Position, boundary
from feedsvc.core.session import Principal
from feedsvc.core.status import OldestPosition
from feedsvc.core.subscription import Outlet, Subscription
from feedsvc.core.tokens import TokenInvalidError, TokenSealer
from feedsvc.core.topics import Topic, effective_topic
from feedsvc.ports import NO_TRACER, ChangeSource, Clock, DocumentSource, Metrics, Tracer
from feedsvc.runtime.admission import Admission
from feedsvc.runtime.catch_up_slots import CatchUpSlots
from feedsvc.runtime.deployment import ANSWER_WITHIN_S, Deployment
from feedsvc.runtime.feed import Feed
from feedsvc.runtime.image_modes import ImageModes
from feedsvc.runtime.oldest import oldest_position
from feedsvc.runtime.set_within import set_within
from feedsvc.runtime.snapshot import Snapshots
from feedsvc.runtime.tail import Readers, Report
from feedsvc.runtime.tail_room import TailRoom

STALL_CHECK_S = 0.25


class Place(msgspec.Struct, frozen=True):
    """Where a subscription begins: `at` None means now; `lost` is a resync reason that is known already."""

    topic: Topic
    at: Position | None = None
    lost: str | None = None
    snapshot: SnapshotMode = "never"


class Listener(Outlet, Protocol):
    """An outlet that also wants to know when the health of its topic's upstream changed, or the collection's images."""

    def stall_changed(self) -> None: ...

    def mode_changed(self) -> None:
        """See `image_modes.Holder`."""
        ...


_DEPLOYMENT = TailScope("deployment")


class HubSettings(msgspec.Struct, frozen=True):
    """What the hub takes from the configuration. `random` returns a float in [0, 1)."""

    policy: Policy
    limits: Limits
    level: ScopeLevel
    source_epoch: str
    token_keys: tuple[bytes, ...]
    encode_json: Callable[[object], bytes]
    random: Callable[[], float]


class Hub:
    """Create it in the running loop; `start` before the first subscriber, `close` once all clients are gone."""

    def __init__(
        self,
        settings: HubSettings,
        source: ChangeSource,
        documents: DocumentSource,
        clock: Clock,
        metrics: Metrics,
        report: Report,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self.policy = settings.policy
        self.limits = settings.limits
        self.admission = Admission(settings.limits)
        self.deployment = Deployment(
            source, clock, settings.random, report, epoch=settings.source_epoch, level=settings.level
        )
        self.snapshots = Snapshots(
            documents, settings.limits, settings.encode_json, clock, metrics, report, tracer
        )
        self.image_modes = ImageModes(source, clock, report)
        self.feeds: dict[TailScope, Feed] = {}
        self._room = TailRoom(settings.limits, self.feeds)
        self._settings = settings
        self._source = source
        self._clock = clock
        self._metrics = metrics
        self._report = report
        self._tracer = tracer
        self._sealer = TokenSealer(settings.token_keys)
        self._slots = CatchUpSlots(settings.limits.catch_up_tails, shared=settings.level != "deployment")
        self._closing = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._ending: set[asyncio.Task[None]] = set()
        self._stalled: dict[TailScope, float] = {}
        self._topics: WeakValueDictionary[bytes, Topic] = WeakValueDictionary()
        """By canonical form: subscriptions of equal topics share one object, which may be large."""

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self.deployment.run(self._closing), name="deployment"),
            loop.create_task(self.image_modes.run(self._closing), name="image-modes"),
            loop.create_task(self._watch(), name="feeds-watch"),
        ]

    async def close(self) -> None:
        """End every task and stream. Takes about as long as one bounded read."""
        self._closing.set()
        await self.snapshots.close()
        await asyncio.gather(*(feed.close() for feed in self.feeds.values()), *self._tasks, *self._ending)
        self.feeds.clear()

    # -- from a request to a subscription -----------------------------------------------------------------

    async def resolve(self, principal: Principal, frame: Subscribe) -> Place:
        """The topic and the beginning that a `subscribe` asks for. Raises `Refusal`."""
        topic = await self._effective(principal, frame.topic)
        if frame.snapshot != "never":
            _check_snapshot(topic)
        place = await self._place(topic, frame)
        # Last: what is refused opens no tail, of which there are few for all tenants.
        await self._opened(self._feed(topic))
        return place

    async def explain(self, principal: Principal, request: TopicRequest) -> Explained:
        """What a `subscribe` with this topic would get; no feed is opened for it. Raises `Refusal`."""
        topic = await self._effective(principal, request)
        try:
            _check_snapshot(topic)
        except Refusal as refusal:
            return explained(topic, request, refusal)
        return explained(topic, request, None)

    async def _effective(self, principal: Principal, request: TopicRequest) -> Topic:
        """The topic that a request asks for, with the images that its collection has now. Raises `Refusal`."""
        await self.deployment.ready()
        grant = self._grant(principal, request)
        images = await self.image_modes.images(Namespace(grant.database, grant.collection))
        topic = effective_topic(grant, request, images=images)
        return self._topics.setdefault(topic.canonical, topic)

    def topic_now(self, principal: Principal, request: TopicRequest, held: Topic) -> Topic:
        """The topic that a held subscription would be under these claims. Raises `Refusal`."""
        return effective_topic(self._grant(principal, request), request, images=held.exact)

    def attach(self, place: Place, outlet: Listener) -> Subscription:
        """Begin. The outlet hears of it at once or later. Raises `Refusal('topic_limit')`."""
        topic = place.topic
        feed = self._feed(topic)
        self.admission.enter(topic.tenant, topic)
        self._room.enter(topic.tenant, self._scope(topic))
        self.image_modes.hold(topic.namespace, outlet, exact=topic.exact)
        subscription = Subscription(topic, outlet, place.at, place.lost, place.snapshot)
        feed.attach(subscription)
        return subscription

    def detach(self, subscription: Subscription) -> None:
        """End: nothing more is written for it. Once for each `attach`."""
        topic = _topic(subscription)
        self.admission.exit(topic.tenant, topic)
        self._room.exit(topic.tenant, self._scope(topic))
        listener: Any = subscription.outlet
        self.image_modes.release(topic.namespace, listener, exact=topic.exact)
        self.feed(topic).detach(subscription)
        self.snapshots.gone(subscription)

    def writable(self, subscription: Subscription) -> None:
        """Its connection can take more."""
        self.feed(_topic(subscription)).placement.writable(subscription)
        self.snapshots.writable(subscription)

    # -- what a client asks of the feed behind its topic ---------------------------------------------------

    def feed(self, topic: Topic) -> Feed:
        return self.feeds[self._scope(topic)]

    def seal(self, topic: Topic, position: Position) -> str:
        """The resume token of a position. Most subscriptions of a topic ask for that of the same head."""
        known = topic.sealed
        if known is not None and known[0] is position:
            return known[1]
        resume_token = self._sealer.seal(topic.tenant, topic.binding, self.deployment.source, position)
        topic.sealed = (position, resume_token)
        return resume_token

    def window_seconds(self, *, exact: bool = False) -> int | None:
        """How long a client may be away; an exact topic needs the pre-images, which may go before the oplog does."""
        window = self.deployment.pulse.window
        if window is None:
            return None
        return window.seconds_with_images if exact else window.seconds

    def oldest_position(self) -> OldestPosition | None:
        """See `runtime.oldest`: linear in subscriptions."""
        placements = [feed.placement for feed in self.feeds.values()]
        subscriptions = itertools.chain.from_iterable(each.all_subscriptions() for each in placements)
        return oldest_position(subscriptions, self.deployment.pulse.window, self._clock.wall())

    @property
    def any_stalled(self) -> bool:
        return bool(self._stalled)

    def stalled(self, topic: Topic) -> bool:
        return self._scope(topic) in self._stalled

    def failing_tails(self) -> list[TailScope]:
        """The scopes in use whose upstream does not answer."""
        return [scope for scope in self._stalled if self.feeds[scope].placement.subscriptions]

    def answers_but_not_here(self) -> bool:
        """Whether MongoDB answered a question that was put after a change stream in use had stopped answering.

        A frozen majority point is not meant: its streams answer, and every instance sees the same.
        """
        answered_at, now = self.deployment.pulse.answered_at, self._clock.monotonic()
        return (
            answered_at is not None
            and self.deployment.failure is None
            and any(
                answered_at > self._stalled[scope]
                and self.feeds[scope].silent(now, self.limits.stall_after_s)
                for scope in self.failing_tails()
            )
        )

    # -- inside -------------------------------------------------------------------------------------------

    def _grant(self, principal: Principal, request: TopicRequest) -> Grant:
        return self.policy.grant(
            principal.tenant,
            principal.subject,
            principal.scopes,
            principal.claims,
            None if request.database is UNSET else request.database,
            request.collection,
        )

    async def _opened(self, feed: Feed) -> None:
        if not await set_within(feed.opened, ANSWER_WITHIN_S):
            raise Refusal("source_unavailable", "the change stream does not open; try again later")

    async def _place(self, topic: Topic, frame: Subscribe) -> Place:
        if frame.snapshot == "always":
            return Place(topic, snapshot="always")
        place = await self._position(topic, frame)
        return msgspec.structs.replace(place, snapshot=frame.snapshot)

    async def _position(self, topic: Topic, frame: Subscribe) -> Place:
        if frame.start_at_operation_time is not UNSET:
            return await self._at_time(topic, frame.start_at_operation_time.cluster_time)
        return Place(topic) if frame.resume_token is None else self._after(topic, frame.resume_token)

    async def _at_time(self, topic: Topic, cluster_time: int) -> Place:
        if cluster_time > await self.deployment.operation_time():
            raise Refusal("bad_request", "startAtOperationTime is ahead of the cluster's time")
        return Place(topic, boundary(cluster_time))

    def _after(self, topic: Topic, resume_token: str) -> Place:
        try:
            opened = self._sealer.open(topic.tenant, resume_token)
        except TokenInvalidError:
            raise Refusal("token_invalid", "the resume token does not open; drop it and start anew") from None
        if opened.binding != topic.binding:
            return Place(topic, lost="topic_changed")
        if opened.source != self.deployment.source:
            return Place(topic, lost="source_changed")
        return Place(topic, opened.position)

    def _scope(self, topic: Topic) -> TailScope:
        level, namespace = self._settings.level, topic.namespace
        if level == "deployment":
            return _DEPLOYMENT
        if level == "database":
            return TailScope(level, namespace.database)
        return TailScope(level, namespace.database, namespace.collection)

    def _feed(self, topic: Topic) -> Feed:
        scope = self._scope(topic)
        feed = self.feeds.get(scope)
        if feed is not None:
            return feed
        if self._closing.is_set():
            raise Refusal("source_unavailable", "this instance is closing; reconnect")
        named = scope.level != "collection" or topic.namespace.collection in self.policy.rules
        gives_way = self._room.make(topic.tenant, named=named)
        if gives_way is not None:
            self._end(gives_way)
        feed = self.feeds[scope] = self._new_feed(scope)
        self._room.opened(topic.tenant, scope, named=named)
        feed.start()
        self._report("tail.opened", {"scope": scope})
        return feed

    def _new_feed(self, scope: TailScope) -> Feed:
        limits = self.limits
        builder = FrameBuilder(
            self._sealer,
            self.deployment.source,
            self._settings.encode_json,
            limits.max_event_bytes,
            self._build_failed,
        )
        bounds = PlacementLimits(
            ring_records=limits.ring_records,
            log_bytes=limits.log_bytes,
            replay_bytes=limits.max_replay_bytes,
            write_bytes=limits.high_water_bytes,
        )
        placement = Placement(bounds, builder.build, lambda: Matcher(builder.view))
        readers = Readers(
            scope,
            self._source,
            placement,
            self._clock,
            self._metrics,
            self._report,
            self._settings.random,
            limits.slow_after_s,
            self._tracer,
        )
        feed = Feed(readers, self._slots, limits.catch_up_window_s, limits.catch_up_gather_s)
        placement.on_change(feed.changed)
        return feed

    def _build_failed(self, topic: Topic, error: Exception) -> None:
        self._metrics.count("events_failed")
        self._report("event.failed", {"topic": topic.topic_id, "error": type(error).__name__})

    async def _watch(self) -> None:
        """Notice stalled feeds at once, and end those that nobody needs."""
        while not self._closing.is_set():
            now = self._clock.monotonic()
            for scope, feed in list(self.feeds.items()):
                stall_after_s = self.limits.stall_after_s
                stalled = feed.silent(now, stall_after_s) or feed.frozen(
                    now, stall_after_s, self.deployment.pulse
                )
                self._note_stall(scope, feed, stalled)
                if feed.idle_s(now) > self.limits.tail_linger_s:
                    self._end(scope)
            await set_within(self._closing, STALL_CHECK_S)

    def _note_stall(self, scope: TailScope, feed: Feed, stalled: bool) -> None:
        if stalled == (scope in self._stalled):
            return
        if stalled:
            self._stalled[scope] = self._clock.monotonic()
        else:
            del self._stalled[scope]
        self._report("tail.stalled" if stalled else "tail.recovered", {"scope": scope})
        for subscription in feed.placement.all_subscriptions():
            listener: Any = subscription.outlet
            listener.stall_changed()

    def _end(self, scope: TailScope) -> None:
        feed = self.feeds.pop(scope)
        self._stalled.pop(scope, None)
        self._room.ended(scope)
        task = asyncio.get_running_loop().create_task(feed.close(), name="feed-end")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        self._report("tail.closed", {"scope": scope})


def _check_snapshot(topic: Topic) -> None:
    """A snapshot and what follows it must be able to say of each document that it is there, changed or gone."""
    if topic.operations != set(DATA_OPERATIONS):
        raise Refusal("snapshot_unavailable", "a snapshot needs all operations: leave topic.operations out")
    if not topic.deletes:
        raise Refusal(
            "snapshot_unavailable",
            f"collection {topic.namespace.collection}: deletes cannot be told without "
            "changeStreamPreAndPostImages, so no snapshot can be kept; enable them, or fetch the state yourself",
        )


def _topic(subscription: Subscription) -> Topic:
    topic = subscription.topic
    assert isinstance(topic, Topic)
    return topic
