"""Frames of events: a change becomes, once per topic, the bytes that all its subscribers receive.

A frame is put together of the topic's own id and resume token, and of an event that topics of one kind have in
common: it is made once per change and kind, so each further topic costs the sealing of its token and a copy of the
bytes.
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

_KEPT_EVENTS = 8
"""So many of the largest events are kept for further topics of their kinds."""


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
        self._texts: dict[tuple[object, ...], bytes | UndecodableError | None] = {}
        """Of the change of `_view`, until they are too many."""
        self._text_bytes = 0

    def seal(self, topic: Topic, position: Position) -> str:
        """The resume token of a position for a topic."""
        return self._sealer.seal(topic.tenant, topic.binding, self._source, position)

    def view(self, change: Change) -> ChangeView:
        """What is computed of a change once; the same for as long as no other change comes."""
        view = self._view
        if view is None or view.change is not change:
            view = self._view = ChangeView(change)
            self._texts, self._text_bytes = {}, 0
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
            return self._frame(topic, change, self._encode_json(self._said(topic, view)))
        decision = decide(topic, view)
        if not isinstance(decision, Decision):
            return decision
        text = self._text(topic, view, decision)
        if text is None:
            return None
        frame = self._frame(topic, change, text)
        if len(frame) <= self._max_event_bytes:
            return frame
        event = self._said(topic, view)
        if decision.membership is not None:
            event["membership"] = decision.membership
        event["truncated"] = True
        frame = self._frame(topic, change, self._encode_json(event))
        # An `_id` of that size: a frame over the clients' limit would end each connection that replays it, for ever.
        return frame if len(frame) <= self._max_event_bytes else Loss("event_unavailable")

    def _frame(self, topic: Topic, change: Change, text: bytes) -> bytes:
        """A frame with this event, to which the topic's token is added."""
        token = self.seal(topic, change.position)
        return b'{"type":"event","topic":"%b","event":{"_id":"%b",%b}' % (
            topic.topic_id.encode(),
            token.encode(),
            text[1:],
        )

    def _text(self, topic: Topic, view: ChangeView, decision: Decision) -> bytes | None:
        """The event without its token, as JSON; None where the topic is not told of it. Raises `UndecodableError`.

        The key is all that it is made from. Documents and descriptions belong to the view, which is kept.
        """
        key = (
            topic.namespace.collection,
            topic.projection_form,
            topic.policy_fields_form,
            topic.exact,
            topic.policy_filtered,
            decision.membership,
            id(decision.document),
            id(decision.update),
        )
        if key in self._texts:
            text = self._texts[key]
        else:
            text = self._texts[key] = self._written(topic, view, decision)
            self._text_bytes += len(text) if isinstance(text, bytes) else 0
            if self._text_bytes > _KEPT_EVENTS * self._max_event_bytes:
                # Topics of a thousand kinds, and a large document: they stay until the next change, however late it is.
                self._texts, self._text_bytes = {}, 0
        if isinstance(text, UndecodableError):
            raise UndecodableError(*text.args)
        return text

    def _written(self, topic: Topic, view: ChangeView, decision: Decision) -> bytes | UndecodableError | None:
        shown = self._behind_policy(topic, view).show(topic, decision)
        if shown is None:
            return None
        try:
            event = self._said(topic, view)
            if shown.document is not None:
                event["fullDocument"] = shown.document
            if shown.update is not None:
                event["updateDescription"] = shown.update
            if decision.membership is not None:
                event["membership"] = decision.membership
            return self._encode_json(event)
        except UndecodableError as error:
            return error

    def _behind_policy(self, topic: Topic, view: ChangeView) -> PolicyView:
        """The change behind the topic's policy projection, which the topics of a collection have in common."""
        known = self._policy_view
        if known is None or known.view is not view or known.policy != topic.policy_fields:
            known = self._policy_view = PolicyView(view, topic.policy_fields)
        return known

    def _said(self, topic: Topic, view: ChangeView) -> dict[str, Any]:
        """What the change says of itself to every topic of its collection. Raises `UndecodableError`."""
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
            key = body.document_key
            if key is None or "_id" not in key:
                raise UndecodableError("a change without the _id of its document")
            event["documentKey"] = {"_id": key["_id"]}
        return event
