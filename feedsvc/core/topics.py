"""Topics: a client's request behind the policy, in canonical form.

Two names are computed from it. The *topic id* covers the whole effective topic, so equal topics of one configuration
share one stream and one set of frames. The *binding* is what resume tokens carry: it leaves out the policy's
projection and the image mode, so that hiding one more field resyncs nobody. Topics are compared by their whole
canonical form, never by a hash.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import UNSET

from feedsvc.core.changes import DATA_OPERATIONS, Document, Namespace
from feedsvc.core.errors import Refusal
from feedsvc.core.extjson import ExtendedJsonError, decode
from feedsvc.core.filters.compile import Predicate, compile_filter
from feedsvc.core.filters.nodes import Filter
from feedsvc.core.filters.parse import FilterError, canonical_form, check_written, parse_filter
from feedsvc.core.messages import Fidelity, TopicRequest
from feedsvc.core.policy import Grant
from feedsvc.core.positions import Position
from feedsvc.core.projection import IDENTITY, Projection, ProjectionError
from feedsvc.core.tokens import BINDING_BYTES

_TOPIC_ID_BYTES = 15
_CANONICAL_VERSION = b"1"

Behind = Callable[[bytes, Projection, Document], Document]
"""A document behind a projection, whose form comes first; whoever asks many topics of one document projects it once."""


def behind(form: bytes, fields: Projection, document: Document) -> Document:
    return fields.apply(document)


class Topic:
    """One effective topic. `exact`: membership is decided on stored images; `deletes`: deletes are sent.

    Equal and hashable by canonical form. `policy_filtered`: documents of others may exist in the collection.
    `policy_filter` looks at whole documents, `client_filter` at what `policy_fields` leaves of them. The two `_form`
    are equal for projections that show the same: what is made of one document for many topics is kept by them.
    """

    __slots__ = (
        "__weakref__",
        "_client_matches",
        "_hash",
        "_policy_matches",
        "binding",
        "canonical",
        "client_filter",
        "deletes",
        "exact",
        "matches_all",
        "namespace",
        "operations",
        "policy_fields",
        "policy_fields_form",
        "policy_filter",
        "policy_filtered",
        "projection",
        "projection_form",
        "sealed",
        "tenant",
        "topic_id",
    )

    def __init__(
        self,
        grant: Grant,
        client_filter: Filter,
        client_fields: Projection,
        operations: frozenset[str],
        images: bool,
    ) -> None:
        self.policy_filter = policy_filter = parse_filter(grant.filter)
        self.client_filter = client_filter
        self.policy_fields = policy_fields = Projection.parse(grant.fields) if grant.fields else IDENTITY
        self.policy_fields_form = _projection_form(policy_fields)
        self.tenant = grant.tenant
        self.namespace = Namespace(grant.database, grant.collection)
        self.operations = operations
        self.exact = images
        self.policy_filtered = bool(grant.filter)
        self.deletes = images or not self.policy_filtered
        self.projection = policy_fields.then(client_fields)
        self.projection_form = _projection_form(self.projection)
        everything = canonical_form(parse_filter({}))
        policy_form, client_form = canonical_form(policy_filter), canonical_form(client_filter)
        self.matches_all = policy_form == client_form == everything
        self._policy_matches: Predicate | None = (
            None if policy_form == everything else compile_filter(policy_filter)
        )
        self._client_matches: Predicate | None = (
            None if client_form == everything else compile_filter(client_filter)
        )
        bound = (
            grant.tenant.encode(),
            grant.database.encode(),
            grant.collection.encode(),
            policy_form,
            client_form,
            _projection_form(client_fields),
            ",".join(operation for operation in DATA_OPERATIONS if operation in operations).encode(),
        )
        mode = b"exact" if images else b"partial"
        self.canonical = _packed(b"topic", *bound, self.policy_fields_form, mode)
        self.binding = sha256(_packed(b"binding", *bound)).digest()[:BINDING_BYTES]
        digest = sha256(self.canonical).digest()[:_TOPIC_ID_BYTES]
        self.topic_id = base64.urlsafe_b64encode(digest).decode()
        self._hash = hash(self.canonical)
        self.sealed: tuple[Position, str] | None = None
        """The position whose resume token was last asked for, and that token: for who makes them."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topic) and self.canonical == other.canonical

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Topic({self.topic_id})"

    @property
    def fidelity(self) -> Fidelity:
        return Fidelity("exact" if self.exact else "partial", self.deletes)

    def matches(self, document: Document, behind: Behind = behind) -> bool:
        """Whether this topic's clients may see and want the document.

        The policy's filter sees the document whole; the client's sees it behind the policy's projection, so a hidden
        field is missing and cannot be probed.
        """
        if self._policy_matches is not None and not self._policy_matches(document):
            return False
        if self._client_matches is None:
            return True
        if self.policy_fields is not IDENTITY:
            document = behind(self.policy_fields_form, self.policy_fields, document)
        return self._client_matches(document)


def effective_topic(grant: Grant, request: TopicRequest, *, images: bool) -> Topic:
    """The topic of a request under a grant. Raises `Refusal`: `filter_invalid`, `filter_unsupported`, `bad_request`,
    or `images_required` where a policy filter meets a collection without images."""
    client_filter = _parsed_filter(request.filter)
    client_fields = _parsed_fields(request.fields)
    operations = DATA_OPERATIONS if request.operations is UNSET else tuple(request.operations)
    if not operations:
        raise Refusal("bad_request", "topic.operations names at least one operation")
    topic = Topic(grant, client_filter, client_fields, frozenset(operations), images)
    if topic.policy_filtered and not images and not grant.allow_partial:
        raise Refusal(
            "images_required",
            f"collection {grant.collection}: enable changeStreamPreAndPostImages, or set allowPartial in the policy",
        )
    return topic


def _parsed_fields(raw: Mapping[str, Any]) -> Projection:
    """The projection, whose numbers a client may write in canonical Extended JSON as any other.

    Every frame of the topic is made with it, so it has the bound of a filter.
    """
    try:
        check_written(raw)
        fields = decode(raw)
        if not isinstance(fields, dict):
            raise Refusal("bad_request", "topic.fields is a document")
        return Projection.parse(fields) if fields else IDENTITY
    except (ExtendedJsonError, FilterError, ProjectionError) as error:
        raise Refusal("bad_request", f"topic.fields: {error}") from None


def _parsed_filter(raw: Mapping[str, Any]) -> Filter:
    """The filter. The bound is on what the client wrote, too: it is kept for as long as the subscription lasts, parsed
    anew at every refresh of the JWT, and may be long where its canonical form is short."""
    try:
        check_written(raw)
        document = decode(raw)
        if not isinstance(document, dict):
            raise Refusal("filter_invalid", "topic.filter is a document")
        return parse_filter(document)
    except ExtendedJsonError as error:
        raise Refusal("filter_invalid", f"topic.filter: {error}") from None
    except FilterError as error:
        raise Refusal(error.code, f"topic.filter: {error}") from None


def _projection_form(projection: Projection) -> bytes:
    return msgspec.json.encode(projection.canonical(), order="deterministic")


def _packed(*parts: bytes) -> bytes:
    """An injective joining of byte strings."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in (_CANONICAL_VERSION, *parts))
