"""The hub: which feed serves a topic, and from when to when; what a request asks for is in `requests.py`.

One feed per tail scope (a collection, a database, or the deployment), however many topics and clients hang on it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from feedsvc.core.changes import ScopeLevel, TailScope
from feedsvc.core.errors import Refusal
from feedsvc.core.frames import FrameBuilder
from feedsvc.core.limits import Limits
from feedsvc.core.lockstep import WriteEach
from feedsvc.core.matcher import Matcher
from feedsvc.core.messages import Subscribe
from feedsvc.core.placement import Placement
from feedsvc.core.places import PlacementLimits
from feedsvc.core.policy import Policy
from feedsvc.core.positions import Position
from feedsvc.core.session import Principal
from feedsvc.core.status import OldestPosition
from feedsvc.core.subscription import Outlet, Subscription
from feedsvc.core.tokens import TokenSealer
from feedsvc.core.topics import Topic
from feedsvc.ports import NO_TRACER, ChangeSource, Clock, DocumentSource, Metrics, Tracer
from feedsvc.runtime.admission import Admission
from feedsvc.runtime.catch_up_slots import CatchUpSlots
from feedsvc.runtime.deployment import ANSWER_WITHIN_S, Deployment
from feedsvc.runtime.feed import Feed
from feedsvc.runtime.image_modes import ImageModes
from feedsvc.runtime.oldest import oldest_position
from feedsvc.runtime.requests import Place, Requests
from feedsvc.runtime.set_within import set_within
from feedsvc.runtime.snapshot import Snapshots
from feedsvc.runtime.stalls import Stalls
from feedsvc.runtime.tail import Readers, Report
from feedsvc.runtime.tail_room import TailRoom

STALL_CHECK_S = 0.25


class Listener(Outlet, Protocol):
    """An outlet that also wants to know when the health of its topic's upstream changed, or the collection's images."""

    def stall_changed(self) -> None: ...

    def mode_changed(self) -> None:
        """See `image_modes.Holder`."""
        ...


_DEPLOYMENT = TailScope("deployment")


class HubSettings(msgspec.Struct, frozen=True):
    """What the hub takes from the configuration. `random` returns a float in [0, 1); `write_each` writes to the
    descriptors of connections."""

    policy: Policy
    limits: Limits
    level: ScopeLevel
    source_epoch: str
    token_keys: tuple[bytes, ...]
    encode_json: Callable[[object], bytes]
    random: Callable[[], float]
    write_each: WriteEach


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
        self._sealer = TokenSealer(settings.token_keys)
        self.requests = Requests(settings.policy, self.deployment, self.image_modes, self._sealer)
        self.feeds: dict[TailScope, Feed] = {}
        self.stalls = Stalls(
            self.feeds, self.deployment, clock, report, stall_after_s=settings.limits.stall_after_s
        )
        self._room = TailRoom(settings.limits, self.feeds)
        self._settings = settings
        self._source = source
        self._clock = clock
        self._metrics = metrics
        self._report = report
        self._tracer = tracer
        self._slots = CatchUpSlots(settings.limits.catch_up_tails, shared=settings.level != "deployment")
        self._closing = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._ending: set[asyncio.Task[None]] = set()

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

    # -- subscriptions ------------------------------------------------------------------------------------

    async def resolve(self, principal: Principal, frame: Subscribe) -> Place:
        """What `Requests.place` says, once the feed that serves it is open. Raises `Refusal`."""
        place = await self.requests.place(principal, frame)
        # Last: what is refused opens no tail, of which there are few for all tenants.
        await self._opened(self._feed(place.topic))
        return place

    def attach(self, place: Place, outlet: Listener) -> Subscription:
        """Begin. The outlet hears of it at once or later. Raises `Refusal('topic_limit')`."""
        topic = place.topic
        feed = self._feed(topic)
        self.admission.enter(topic.tenant, topic)
        self._room.enter(topic.tenant, self._scope(topic))
        self.image_modes.hold(topic.namespace, outlet, exact=topic.exact)
        subscription = Subscription(topic, outlet, place.at, place.lost, place.snapshot)
        try:
            feed.attach(subscription)
        except BaseException:
            self.detach(subscription)
            raise
        return subscription

    def detach(self, subscription: Subscription) -> None:
        """End: nothing more is written for it. Once for each `attach`."""
        topic = _topic(subscription)
        self.feed(topic).detach(subscription)
        self.snapshots.gone(subscription)
        self.admission.exit(topic.tenant, topic)
        self._room.exit(topic.tenant, self._scope(topic))
        listener: Any = subscription.outlet
        self.image_modes.release(topic.namespace, listener, exact=topic.exact)

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

    def stalled(self, topic: Topic) -> bool:
        return self._scope(topic) in self.stalls

    # -- inside -------------------------------------------------------------------------------------------

    async def _opened(self, feed: Feed) -> None:
        if not await set_within(feed.opened, ANSWER_WITHIN_S):
            raise Refusal("source_unavailable", "the change stream does not open; try again later")

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
        placement = Placement(bounds, builder.build, self._settings.write_each, lambda: Matcher(builder.view))
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
        feed = Feed(readers, self._slots, limits)
        placement.on_change(feed.changed)
        return feed

    def _build_failed(self, topic: Topic, error: Exception) -> None:
        self._metrics.count("events_failed")
        self._report("event.failed", {"topic": topic.topic_id, "error": type(error).__name__})

    async def _watch(self) -> None:
        """Notice stalled feeds at once, and end those that nobody needs."""
        while not self._closing.is_set():
            for scope, feed in list(self.feeds.items()):
                self.stalls.look(scope, feed)
                if feed.idle_s(self._clock.monotonic()) > self.limits.tail_linger_s:
                    self._end(scope)
            await set_within(self._closing, STALL_CHECK_S)

    def _end(self, scope: TailScope) -> None:
        feed = self.feeds.pop(scope)
        self.stalls.forget(scope)
        self._room.ended(scope)
        task = asyncio.get_running_loop().create_task(feed.close(), name="feed-end")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        self._report("tail.closed", {"scope": scope})


def _topic(subscription: Subscription) -> Topic:
    topic = subscription.topic
    assert isinstance(topic, Topic)
    return topic
