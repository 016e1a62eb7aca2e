"""Frames of events: a change becomes, once per topic, the bytes that all its subscribers receive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bson.datetime_ms import DatetimeMS
from bson.timestamp import Timestamp

from feedsvc.core.behind_policy import PolicyView
from feedsvc.core.changes import DATA_OPERATIONS, Change, UndecodableError
from feedsvc.core.membership import ChangeView, Decision, decide
from feedsvc.core.positions import Position, timestamp_parts
from feedsvc.core.subscription import TopicKey
from feedsvc.core.tail import Loss
from feedsvc.core.tokens import TokenSealer
from feedsvc.core.topics import Topic


class FrameBuilder:
    """Builds `event` frames.

    `encode_json` turns a tree of BSON values into relaxed Extended JSON and raises `UndecodableError` for what JSON
    cannot carry. `failed` is told of an unexpected exception, after which that topic alone is lost
    (`event_unavailable`): a change that one topic cannot read must not stop the others.
    """

    def __init__(
        self,
        sealer: TokenSealer,
        source: bytes,
        encode_json: Callable[[object], bytes],
        max_event_bytes: int,
        failed: Callable[[Topic, Exception], None],
    ) -> None:
        self._sealer = sealer
        self._source = source
        self._encode_json = encode_json
        self._max_event_bytes = max_event_bytes
        self._failed = failed
        self._view: ChangeView | None = None
        self._policy_view: PolicyView | None = None

    def seal(self, topic: Topic, position: Position) -> str:
        """The resume token of a position for a topic."""
        return self._sealer.seal(topic.tenant, topic.binding, self._source, position)

    def view(self, change: Change) -> ChangeView:
        """What is computed of a change once; the same for as long as no other change comes."""
        view = self._view
        if view is None or view.change is not change:
            view = self._view = ChangeView(change)
        return view

    def build(self, topic: TopicKey, change: Change) -> bytes | Loss | None:
        """The frame of a change for a topic, None where it does not see it, or why it is lost. Never raises."""
        assert isinstance(topic, Topic)
        try:
            return self._build(topic, change)
        except UndecodableError:
            return Loss("event_unavailable")
        except Exception as error:
            self._failed(topic, error)
            return Loss("event_unavailable")

    def _build(self, topic: Topic, change: Change) -> bytes | Loss | None:
        view = self.view(change)
        decision: Decision | None = None
        if change.operation in DATA_OPERATIONS:
            outcome = decide(topic, view)
            if not isinstance(outcome, Decision):
                return outcome
            decision = outcome
        if decision is None:
            return self._encoded(topic, self._head(topic, view))
        shown = self._behind_policy(topic, view).show(topic, decision)
        if shown is None:
            return None
        event = self._head(topic, view)
        if shown.document is not None:
            event["fullDocument"] = shown.document
        if shown.update is not None:
            event["updateDescription"] = shown.update
        if decision.membership is not None:
            event["membership"] = decision.membership
        frame = self._encoded(topic, event)
        if len(frame) <= self._max_event_bytes:
            return frame
        event.pop("fullDocument", None)
        event.pop("updateDescription", None)
        event["truncated"] = True
        frame = self._encoded(topic, event)
        # An `_id` of that size: a frame over the clients' limit would end each connection that replays it, for ever.
        return frame if len(frame) <= self._max_event_bytes else Loss("event_unavailable")

    def _behind_policy(self, topic: Topic, view: ChangeView) -> PolicyView:
        """The change behind the topic's policy projection, which the topics of a collection have in common."""
        known = self._policy_view
        if known is None or known.view is not view or known.policy != topic.policy_fields:
            known = self._policy_view = PolicyView(view, topic.policy_fields)
        return known

    def _head(self, topic: Topic, view: ChangeView) -> dict[str, Any]:
        change = view.change
        position = change.position
        event: dict[str, Any] = {
            "_id": self.seal(topic, position),
            "operationType": change.operation,
            "clusterTime": Timestamp(*timestamp_parts(position.cluster_time)),
        }
        if change.operation in DATA_OPERATIONS:
            body = view.body
            if body.wall_time_ms is not None:
                event["wallTime"] = DatetimeMS(body.wall_time_ms)
            event["ns"] = {"coll": topic.namespace.collection}
            key = body.document_key
            if key is None or "_id" not in key:
                raise UndecodableError("a change without the _id of its document")
            event["documentKey"] = {"_id": key["_id"]}
        else:
            event["ns"] = {"coll": topic.namespace.collection}
        return event

    def _encoded(self, topic: Topic, event: dict[str, Any]) -> bytes:
        return self._encode_json({"type": "event", "topic": topic.topic_id, "event": event})
