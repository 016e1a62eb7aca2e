"""A subscription as its client sees it: the outlet that turns placement's calls into frames of the protocol."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from feedsvc.core import messages
from feedsvc.core.lockstep import Direct
from feedsvc.core.messages import ExtendedTimestamp
from feedsvc.core.positions import Position
from feedsvc.core.subscription import Subscription
from feedsvc.core.topics import Topic

if TYPE_CHECKING:
    from feedsvc.runtime.client import Client
    from feedsvc.runtime.feed import Feed


class Held:
    """One subscription of a client; `subscription` is None until the hub has attached it."""

    __slots__ = (
        "_client",
        "_connection",
        "_retry_after_s",
        "feed",
        "frames",
        "request",
        "subscription",
        "topic",
    )

    def __init__(self, client: Client, topic: Topic, request: messages.Subscribe) -> None:
        self._client = client
        self._connection = client.connection
        self.frames = client.connection.write_burst
        self.topic = topic
        self.request = request
        self.subscription: Subscription | None = None
        self.feed: Feed | None = None
        """Which serves it, as long as there is a subscription."""
        self._retry_after_s = 0.0

    @property
    def writable(self) -> bool:
        return self._connection.writable

    @property
    def direct(self) -> Direct | None:
        return self._connection.direct

    def subscribed(self, subscription: Subscription, *, resumed: bool, position: Position | None) -> None:
        client, topic = self._client, self.topic
        resume_token: str | msgspec.UnsetType = UNSET
        if resumed and self.request.resume_token is not None:
            resume_token = self.request.resume_token
        elif position is not None:
            resume_token = client.hub.seal(topic, position)
        if position is None:
            live = client.hub.feed(topic).placement.live
            assert live is not None
            position = live.head
        client.send(
            messages.Subscribed(
                id=self.request.id,
                topic=topic.topic_id,
                resumed=resumed,
                cluster_time=ExtendedTimestamp.of(position.cluster_time),
                fidelity=topic.fidelity,
                oplog_window_seconds=client.hub.window_seconds(exact=topic.exact),
                token=resume_token,
            )
        )

    def live(self, subscription: Subscription) -> None:
        self._client.send(messages.Live(self.topic.topic_id))

    def resync(self, subscription: Subscription, reason: str, position: Position) -> None:
        client, topic = self._client, self.topic
        client.count_resync(reason)
        if reason == "images_lost":
            client.hub.image_modes.suspect(topic.namespace)
        retry_after_ms = client.resync_pace.retry_after_ms(topic.topic_id)
        # A client that fetches waits; with a snapshot the service fetches, and waits where it was not the first time.
        self._retry_after_s = retry_after_ms / 1000 if subscription.resyncs > 1 else 0.0
        client.send(
            messages.Resync(
                topic=topic.topic_id,
                reason=msgspec.convert(reason, messages.ResyncReason),
                cluster_time=ExtendedTimestamp.of(position.cluster_time),
                retry_after_ms=retry_after_ms,
                token=UNSET if subscription.takes_snapshots else client.hub.seal(topic, position),
            )
        )

    def snapshot_due(self, subscription: Subscription) -> None:
        hub = self._client.hub
        hub.snapshots.due(subscription, self, hub.feed(self.topic).readers, self._retry_after_s)

    def snapshot_page(self, frame: bytes) -> None:
        self._connection.write((frame,))

    def snapshot_end(self, subscription: Subscription, position: Position) -> None:
        client, topic = self._client, self.topic
        client.send(
            messages.SnapshotEnd(
                topic=topic.topic_id,
                token=client.hub.seal(topic, position),
                cluster_time=ExtendedTimestamp.of(position.cluster_time),
            )
        )

    def snapshot_too_large(self) -> None:
        self._client.end_held(self, "snapshot_too_large", resubscribe=False)

    def too_slow(self, subscription: Subscription) -> None:
        self._client.close("slow_consumer")

    def stall_changed(self) -> None:
        self._client.heartbeat_soon()

    def mode_changed(self) -> None:
        """The images of the collection were switched: the topic is another one, its tokens are the same.

        What the client has had is told first, so that its next subscription begins there and not before the switch,
        where the images are missing. A subscription whose `subscribed` is still owed stays until told again.
        """
        subscription = self.subscription
        if subscription is None or not subscription.announced:
            return
        placement = self._client.hub.feed(self.topic).placement
        placement.checkpoint(subscription, self.checkpoint)
        placement.between_steps(partial(self._client.end_held, self, "topic_changed", resubscribe=True))

    def checkpoint(self, subscription: Subscription, position: Position) -> None:
        self._client.tell_checkpoint(self.topic.topic_id, self._client.hub.seal(self.topic, position))
