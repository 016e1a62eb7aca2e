"""What a topic is shown of a change: the projections of document and update description, and whether it is told at all.

The policy's projection hides; the client's own `fields` only leave out what the client may ask for. Three rules follow
for a topic whose policy hides something (docs/decisions/0010-a-hidden-change-is-not-told.md):

* **Both states known** (an exact topic: pre-image, and after-image or replacement): an update or replace behind which
  the visible document is the same and membership stays is not told. Else the update description is
  `visible.delta` of the two visible documents, which knows nothing of what is hidden.
* **Only the description known**, and every document of the collection is the topic's to see: an update is not told
  where nothing that it wrote is visible in any reading of its paths; the lookup helps to read them. In doubt it is
  told: to lose a visible change is worse than to tell that there was one.
* **A policy filter without images**: told. The change may have brought the document into view.

`entered` and `left` are always told: they follow from the policy's filter, or from what is visible.

Cost: the two visible documents and their delta are made once per change, for all topics with the same `policy_fields`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from feedsvc.core.changes import Document
from feedsvc.core.membership import ChangeView, Decision
from feedsvc.core.projection import Projection
from feedsvc.core.topics import Topic
from feedsvc.core.visible import Description, delta, same


class Shown(msgspec.Struct, frozen=True):
    """What an event carries; None: it does not."""

    document: dict[str, Any] | None = None
    update: Description | None = None


class PolicyView:
    """One change behind one policy projection."""

    def __init__(self, view: ChangeView, policy: Projection) -> None:
        self.view = view
        self.policy = policy
        self._states: tuple[Document, Document] | None = None
        self._delta: Description | None = None
        self._has_delta = False
        self._unchanged: bool | None = None
        self._hidden: bool | None = None

    def show(self, topic: Topic, decision: Decision) -> Shown | None:
        """What the topic, whose `policy_fields` these are, is shown of a change that it was decided to see; None where
        it is not told of it."""
        operation, body = self.view.change.operation, self.view.body
        states = self._both_states(topic, operation) if decision.membership == "stayed" else None
        if states is not None:
            before, after = states
            if self._is_unchanged(before, after):
                return None
            client = topic.projection.behind(self.policy)
            description = None
            if operation == "update" and decision.update is not None:
                description = self._visible_delta(before, after)
            return Shown(
                client.apply(after),
                None if description is None else client.apply_update(description, before),
            )
        if operation == "update" and self._writes_nothing_visible(topic):
            return None
        return Shown(
            None if decision.document is None else topic.projection.apply(decision.document),
            None
            if decision.update is None or operation != "update"
            else topic.projection.apply_update(decision.update, body.before, self.policy),
        )

    def _both_states(self, topic: Topic, operation: str) -> tuple[Document, Document] | None:
        """The visible document before and after, where both are known at that event."""
        if not topic.exact or not self.policy.stages:
            return None
        if self._states is None:
            body = self.view.body
            after = self.view.after_update() if operation == "update" else body.full_document
            if body.before is None or after is None:
                return None
            form = topic.policy_fields_form
            self._states = (
                self.view.behind(form, self.policy, body.before),
                self.view.behind(form, self.policy, after),
            )
        return self._states

    def _is_unchanged(self, before: Document, after: Document) -> bool:
        if self._unchanged is None:
            self._unchanged = same(before, after)
        return self._unchanged

    def _visible_delta(self, before: Document, after: Document) -> Description | None:
        if not self._has_delta:
            self._delta, self._has_delta = delta(before, after), True
        return self._delta

    def _writes_nothing_visible(self, topic: Topic) -> bool:
        """Whether an update of which only the description is known wrote nothing visible into a document that was and
        is the topic's to see."""
        body = self.view.body
        if topic.policy_filtered or not self.policy.stages or body.update_description is None:
            return False
        if self._hidden is None:
            image = body.full_document if body.before is None else body.before
            self._hidden = self.policy.hides_update(body.update_description, image)
        return self._hidden
