"""The answer of `POST /v1/topics/explain`: what a topic is, what the index does with it, what it promises.

It answers the client in the client's terms. Of the policy it says only that it AND-s a filter (`policyFilter`): its
paths and constants, and which fields it hides, are the operator's. So `filter` and `fields` are the client's own, in
canonical form, and of the look-ups only paths that the client named are shown. A hidden field in the client's filter
is told about as a field that no document has: the same words, the same index. `residual`, `scanned` and `cost` are
those of both filters together, which is a figure and no word of the policy's.

A topic that would be refused is an answer as well (`refused`), for that is what was asked.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from feedsvc.core.changes import DATA_OPERATIONS
from feedsvc.core.errors import Refusal
from feedsvc.core.extjson import decode, to_json
from feedsvc.core.filters.spelling import spelled
from feedsvc.core.matcher import plan
from feedsvc.core.messages import Fidelity, TopicRequest
from feedsvc.core.projection import Projection
from feedsvc.core.topics import Topic


class CanonicalTopic(msgspec.Struct, rename="camel", frozen=True):
    """The topic in readable words. `filter` is relaxed Extended JSON; `policyFilter`: the policy AND-s its own."""

    collection: str
    filter: dict[str, Any]
    policy_filter: bool
    operations: list[str]
    fields: dict[str, Any]
    membership: Literal["exact", "partial"]


class TopicIndex(msgspec.Struct, frozen=True):
    """What the matcher's index does with the topic.

    `lookups`: the paths of each hash look-up that finds it, of those that the client named. `residual`: what a look-up
    finds is asked further conditions. `scanned`: there are changes for which it is asked whatever is in the document.
    `cost`: conditions that a change may cost in vain.
    """

    lookups: list[list[str]]
    residual: bool
    scanned: bool
    cost: int


class SnapshotAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether `snapshot` can be asked for; if not, the code and message with which it would be refused."""

    available: bool
    code: str | UnsetType = UNSET
    message: str | UnsetType = UNSET


class RefusedTopic(msgspec.Struct, frozen=True):
    """Why a `subscribe` with this topic would be refused."""

    code: str
    message: str


class Explained(msgspec.Struct, frozen=True):
    """A topic that a `subscribe` would get."""

    topic: str
    canonical: CanonicalTopic
    index: TopicIndex
    fidelity: Fidelity
    snapshot: SnapshotAnswer


class Refused(msgspec.Struct, frozen=True):
    """A topic that a `subscribe` would not get."""

    refused: RefusedTopic


def explained(topic: Topic, request: TopicRequest, snapshot: Refusal | None) -> Explained:
    """The answer for the topic that was made of `request`; `snapshot`: why it cannot have one."""
    canonical = CanonicalTopic(
        collection=topic.namespace.collection,
        filter=_json(spelled(topic.client_filter)),
        policy_filter=topic.policy_filtered,
        operations=[name for name in DATA_OPERATIONS if name in topic.operations],
        fields=_fields(request),
        membership=topic.fidelity.membership,
    )
    return Explained(
        topic=topic.topic_id,
        canonical=canonical,
        index=_index(topic),
        fidelity=topic.fidelity,
        snapshot=SnapshotAnswer(True)
        if snapshot is None
        else SnapshotAnswer(False, snapshot.code, snapshot.message),
    )


def refused(refusal: Refusal) -> Refused:
    return Refused(RefusedTopic(refusal.code, refusal.message))


def _index(topic: Topic) -> TopicIndex:
    found = plan(topic)
    named = topic.client_filter.paths
    lookups = {tuple(path for path in branch if path in named) for branch in found.lookups}
    return TopicIndex(
        lookups=sorted(list(branch) for branch in lookups if branch),
        residual=found.residual,
        scanned=found.scanned,
        cost=found.cost,
    )


def _fields(request: TopicRequest) -> dict[str, Any]:
    """The client's own projection in canonical form. What is left of it behind the policy's would tell of that."""
    fields = decode(request.fields)
    assert isinstance(fields, dict)
    projection = Projection.parse(fields)
    if not projection.stages:
        return {}
    (stage,) = projection.stages
    return {path: int(stage.include) for path in stage.paths or ("_id",)}


def _json(value: object) -> dict[str, Any]:
    written = to_json(value)
    assert isinstance(written, dict)
    return written
