"""Frames of events: a change becomes, once per topic, the bytes that all its subscribers receive.

A frame is put together of JSON texts: topic id and resume token, which are the topic's own; what the change says of
itself; and what topics of that kind are shown of it. The last two are made once per change for all topics that have
them in common, so each further topic costs the sealing of its token and a copy of the bytes.
"""

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
        self._texts: dict[object, bytes | UndecodableError | None] = {}
        """Of the change of `_view`."""

    def seal(self, topic: Topic, position: Position) -> str:
        """The resume token of a position for a topic."""
        return self._sealer.seal(topic.tenant, topic.binding, self._source, position)

    def view(self, change: Change) -> ChangeView:
        """What is computed of a change once; the same for as long as no other change comes."""
        view = self._view
        if view is None or view.change is not change:
            view = self._view = ChangeView(change)
            self._texts = {}
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
        if change.operation not in DATA_OPERATIONS:
            return b"%b}}" % self._begun(topic, view)
        decision = decide(topic, view)
        if not isinstance(decision, Decision):
            return decision
        shown = self._shown(topic, view, decision)
        if shown is None:
            return None
        begun = self._begun(topic, view)
        frame = b"%b%b}}" % (begun, shown)
        if len(frame) <= self._max_event_bytes:
            return frame
        membership = {} if decision.membership is None else {"membership": decision.membership}
        frame = b"%b%b}}" % (begun, self._members(membership | {"truncated": True}))
        # An `_id` of that size: a frame over the clients' limit would end each connection that replays it, for ever.
        return frame if len(frame) <= self._max_event_bytes else Loss("event_unavailable")

    def _begun(self, topic: Topic, view: ChangeView) -> bytes:
        return b'{"type":"event","topic":"%b","event":{"_id":"%b"%b' % (
            topic.topic_id.encode(),
            self.seal(topic, view.change.position).encode(),
            self._said(topic, view),
        )

    def _shown(self, topic: Topic, view: ChangeView, decision: Decision) -> bytes | None:
        """What the topic is shown of the change, as further members of the event; None where it is not told of it.

        The key is all that `PolicyView.show` looks at. Documents and descriptions belong to the view, which is kept.
        """
        key = (
            topic.projection_form,
            topic.policy_fields_form,
            topic.exact,
            topic.policy_filtered,
            decision.membership,
            id(decision.document),
            id(decision.update),
        )
        known = self._texts.get(key, self)
        if known is self:
            known = self._texts[key] = self._show(topic, view, decision)
        if isinstance(known, UndecodableError):
            raise UndecodableError(*known.args)
        assert known is None or isinstance(known, bytes)
        return known

    def _show(self, topic: Topic, view: ChangeView, decision: Decision) -> bytes | UndecodableError | None:
        shown = self._behind_policy(topic, view).show(topic, decision)
        if shown is None:
            return None
        event: dict[str, Any] = {}
        if shown.document is not None:
            event["fullDocument"] = shown.document
        if shown.update is not None:
            event["updateDescription"] = shown.update
        if decision.membership is not None:
            event["membership"] = decision.membership
        try:
            return self._members(event)
        except UndecodableError as error:
            return error

    def _behind_policy(self, topic: Topic, view: ChangeView) -> PolicyView:
        """The change behind the topic's policy projection, which the topics of a collection have in common."""
        known = self._policy_view
        if known is None or known.view is not view or known.policy != topic.policy_fields:
            known = self._policy_view = PolicyView(view, topic.policy_fields)
        return known

    def _said(self, topic: Topic, view: ChangeView) -> bytes:
        """What the change says of itself to every topic of its collection, as members of the event.

        Raises `UndecodableError`.
        """
        key = topic.namespace.collection
        known = self._texts.get(key)
        if isinstance(known, bytes):
            return known
        change = view.change
        event: dict[str, Any] = {
            "operationType": change.operation,
            "clusterTime": Timestamp(*timestamp_parts(change.position.cluster_time)),
        }
        body = view.body if change.operation in DATA_OPERATIONS else None
        if body is not None and body.wall_time_ms is not None:
            event["wallTime"] = DatetimeMS(body.wall_time_ms)
        event["ns"] = {"coll": topic.namespace.collection}
        if body is not None:
            document_key = body.document_key
            if document_key is None or "_id" not in document_key:
                raise UndecodableError("a change without the _id of its document")
            event["documentKey"] = {"_id": document_key["_id"]}
        said = self._texts[key] = self._members(event)
        return said

    def _members(self, event: dict[str, Any]) -> bytes:
        """The members of a JSON object, each behind a comma."""
        return b"," + self._encode_json(event)[1:-1] if event else b""
