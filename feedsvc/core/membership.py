"""The membership decision: what a change means for one topic, from the images that exist.

With images (`exact`) the document before and after the change are known, the latter as pre-image plus delta, so
entering and leaving are decided at that event. Without them (`partial`) only the lookup is known, which may already
show a later state or nothing: what does not match now is sent as `left`, and what matches carries no membership.
An exact topic that matches everything needs no image: an update never leaves it.
A `left` needs an image that satisfies the whole policy filter, so a partial topic behind a policy filter sends
neither deletes nor moves away, nor the delta of a change that may have been another tenant's.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from feedsvc.core.changes import Change, ChangeBody, Document, UndecodableError
from feedsvc.core.images import AmbiguousDeltaError, after_image
from feedsvc.core.projection import Projection
from feedsvc.core.tail import Loss
from feedsvc.core.topics import Topic

Membership = Literal["entered", "stayed", "left"]


class Decision(msgspec.Struct, frozen=True):
    """What clients are told. `document` and `update` are not projected yet; `membership` None: cannot tell."""

    membership: Membership | None
    document: Document | None = None
    update: Document | None = None


_LEFT = Decision("left")


class ChangeView:
    """A change with what is computed from it once, whatever the number of topics: its body, its after-image, and each
    image behind each of the policy's projections. What failed once is not tried again."""

    __slots__ = ("_after", "_behind", "_body", "_computed", "change")

    def __init__(self, change: Change) -> None:
        self.change = change
        self._body: ChangeBody | UndecodableError | None = None
        self._after: Document | None = None
        self._computed = False
        self._behind: dict[tuple[bytes, int], Document] = {}

    @property
    def body(self) -> ChangeBody:
        """Raises `UndecodableError`."""
        body = self._body
        if body is None:
            try:
                body = self._body = self.change.body()
            except UndecodableError as error:
                self._body = error
                raise
        elif isinstance(body, UndecodableError):
            raise UndecodableError(*body.args)
        return body

    def after_update(self) -> Document | None:
        """The document as this update left it: pre-image plus delta; None where either is missing or ambiguous."""
        if not self._computed:
            body = self.body
            self._computed = True
            if body.before is not None and body.update_description is not None:
                try:
                    self._after = after_image(body.before, body.update_description)
                except AmbiguousDeltaError:
                    pass
        return self._after

    def behind(self, form: bytes, fields: Projection, document: Document) -> Document:
        """An image of this change, and no other document, behind a projection; equal projections have equal forms."""
        key = (form, id(document))
        behind = self._behind.get(key)
        if behind is None:
            behind = self._behind[key] = fields.apply(document)
        return behind


def decide(topic: Topic, view: ChangeView) -> Decision | Loss | None:
    """The decision for a data operation; None where the topic does not see it. Raises `UndecodableError`."""
    if view.change.operation not in topic.operations:
        return None
    if topic.exact and not topic.matches_all:
        return _exact(topic, view)
    return _partial(topic, view)


def _exact(topic: Topic, view: ChangeView) -> Decision | Loss | None:
    operation, body = view.change.operation, view.body
    after = body.full_document
    if operation == "insert":
        was = False
    else:
        if body.before is None:
            return Loss("images_lost")
        was = topic.matches(body.before, view.behind)
        if operation == "update":
            after = view.after_update()
            if after is None:
                return Loss("images_lost")
    now = operation != "delete" and after is not None and topic.matches(after, view.behind)
    if now:
        if was:
            return Decision("stayed", after, body.update_description)
        return Decision("entered", after)
    return _LEFT if was else None


def _partial(topic: Topic, view: ChangeView) -> Decision | None:
    operation, body = view.change.operation, view.body
    if operation == "delete":
        return _LEFT if topic.deletes else None
    document = body.full_document
    if operation == "update" and topic.exact:
        document = view.after_update() or document
        if document is None:
            return Decision("stayed", None, body.update_description)
    if document is None or not topic.matches(document, view.behind):
        return _LEFT if operation != "insert" and topic.deletes else None
    if operation == "insert":
        return Decision("entered", document)
    membership: Membership | None = "stayed" if topic.matches_all else None
    return Decision(membership, document, None if topic.policy_filtered else body.update_description)
