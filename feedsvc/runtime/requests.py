"""From a request to a beginning: which topic it asks for, whether its principal may have it, and from where on.

Nothing is opened or held for a request in here; the hub does that once it is known to be answered.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

import msgspec
from msgspec import UNSET

from feedsvc.core.changes import DATA_OPERATIONS, Namespace
from feedsvc.core.errors import Refusal
from feedsvc.core.explain import Explained, explained
from feedsvc.core.messages import SnapshotMode, Subscribe, TopicRequest
from feedsvc.core.policy import Grant, Policy
from feedsvc.core.positions import Position, boundary
from feedsvc.core.session import Principal
from feedsvc.core.tokens import TokenInvalidError, TokenSealer
from feedsvc.core.topics import Topic, effective_topic
from feedsvc.runtime.deployment import Deployment
from feedsvc.runtime.image_modes import ImageModes


class Place(msgspec.Struct, frozen=True):
    """Where a subscription begins: `at` None means now; `lost` is a resync reason that is known already."""

    topic: Topic
    at: Position | None = None
    lost: str | None = None
    snapshot: SnapshotMode = "never"


class Requests:
    """All requests of the process."""

    def __init__(
        self, policy: Policy, deployment: Deployment, image_modes: ImageModes, sealer: TokenSealer
    ) -> None:
        self._policy = policy
        self._deployment = deployment
        self._image_modes = image_modes
        self._sealer = sealer
        self._topics: WeakValueDictionary[bytes, Topic] = WeakValueDictionary()
        """By canonical form: subscriptions of equal topics share one object, which may be large."""

    async def place(self, principal: Principal, frame: Subscribe) -> Place:
        """The topic and the beginning that a `subscribe` asks for. Raises `Refusal`."""
        topic = await self._effective(principal, frame.topic)
        if frame.snapshot != "never":
            _check_snapshot(topic)
        if frame.snapshot == "always":
            return Place(topic, snapshot="always")
        place = await self._position(topic, frame)
        return msgspec.structs.replace(place, snapshot=frame.snapshot)

    async def explain(self, principal: Principal, request: TopicRequest) -> Explained:
        """What a `subscribe` with this topic would get; no feed is opened for it. Raises `Refusal`."""
        topic = await self._effective(principal, request)
        try:
            _check_snapshot(topic)
        except Refusal as refusal:
            return explained(topic, request, refusal)
        return explained(topic, request, None)

    def topic_now(self, principal: Principal, request: TopicRequest, held: Topic) -> Topic:
        """The topic that a held subscription would be under these claims. Raises `Refusal`."""
        return effective_topic(self._grant(principal, request), request, images=held.exact)

    async def _effective(self, principal: Principal, request: TopicRequest) -> Topic:
        """The topic that a request asks for, with the images that its collection has now. Raises `Refusal`."""
        await self._deployment.ready()
        grant = self._grant(principal, request)
        images = await self._image_modes.images(Namespace(grant.database, grant.collection))
        topic = effective_topic(grant, request, images=images)
        return self._topics.setdefault(topic.canonical, topic)

    def _grant(self, principal: Principal, request: TopicRequest) -> Grant:
        return self._policy.grant(
            principal.tenant,
            principal.subject,
            principal.scopes,
            principal.claims,
            None if request.database is UNSET else request.database,
            request.collection,
        )

    async def _position(self, topic: Topic, frame: Subscribe) -> Place:
        if frame.start_at_operation_time is not UNSET:
            return await self._at_time(topic, frame.start_at_operation_time.cluster_time)
        return Place(topic) if frame.resume_token is None else self._after(topic, frame.resume_token)

    async def _at_time(self, topic: Topic, cluster_time: int) -> Place:
        if cluster_time > await self._deployment.operation_time():
            raise Refusal("bad_request", "startAtOperationTime is ahead of the cluster's time")
        return Place(topic, boundary(cluster_time))

    def _after(self, topic: Topic, resume_token: str) -> Place:
        try:
            opened = self._sealer.open(topic.tenant, resume_token)
        except TokenInvalidError:
            raise Refusal("token_invalid", "the resume token does not open; drop it and start anew") from None
        if opened.binding != topic.binding:
            return Place(topic, lost="topic_changed")
        if opened.source != self._deployment.source:
            return Place(topic, lost="source_changed")
        return Place(topic, opened.position)


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
