from __future__ import annotations

from typing import Any

import msgspec
import pytest

from feedsvc.core.changes import UndecodableError
from feedsvc.core.messages import Snapshot, TopicRequest
from feedsvc.core.policy import Policy
from feedsvc.core.snapshot_pages import PageBounds, SnapshotPages, SnapshotTooLarge
from feedsvc.core.topics import Topic, effective_topic

POLICY = Policy.parse(
    {"tenant": {"claim": "tenant", "database": "app"}, "collections": {"x": {"fields": {"cost": 0}}}}
)
WIDE = PageBounds(page_bytes=10_000, frame_bytes=10_000, total_bytes=1 << 20, documents=1_000)


def topic(filter: dict[str, Any] | None = None) -> Topic:
    grant = POLICY.grant("acme", "alice", frozenset(), {}, None, "x")
    return effective_topic(grant, TopicRequest("x", filter=filter or {}), images=False)


def pages(bounds: PageBounds = WIDE, filter: dict[str, Any] | None = None) -> SnapshotPages:
    return SnapshotPages(topic(filter), msgspec.json.encode, bounds)


def read(given: SnapshotPages, *documents: dict[str, Any]) -> list[Snapshot]:
    """Every page of a snapshot."""
    frames = [frame for document in documents if (frame := given.add(document)) is not None]
    if given.unfinished:
        frames.append(given.finish())
    return [msgspec.json.decode(frame, type=Snapshot) for frame in frames]


def test_a_page_is_a_frame_of_the_protocol() -> None:
    """What is joined from ready documents reads as `messages.Snapshot`, field by field."""
    given = pages()
    assert given.add({"_id": 1}) is None
    assert given.add({"_id": 2}) is None
    frame = given.finish()
    expected = Snapshot(topic=topic().topic_id, page=0, documents=[{"_id": 1}, {"_id": 2}])
    assert msgspec.json.decode(frame) == msgspec.json.decode(msgspec.json.encode(expected))
    assert given.sent_bytes == len(frame)


def test_documents_are_matched_and_projected_as_events_are() -> None:
    """The find returns a superset: the client's filter decides behind the policy's projection."""
    shown = read(
        pages(filter={"cost": {"$exists": False}, "v": 1}), {"_id": 1, "v": 1, "cost": 5}, {"_id": 2, "v": 2}
    )
    assert [page.documents for page in shown] == [[{"_id": 1, "v": 1}]]


def test_a_document_with_more_text_than_the_filter_may_search_ends_the_snapshot() -> None:
    """Nobody knows whether it belongs there, and the next attempt would end alike."""
    given = pages(filter={"text": {"$regex": "a[ab]{30}c"}})
    assert given.add({"_id": 1, "text": "x" * 1_000}) is None
    with pytest.raises(SnapshotTooLarge):
        given.add({"_id": 2, "text": "x" * (1 << 20)})


def test_there_is_always_a_page_0() -> None:
    """It says that what came before does not count, so an empty snapshot has one, too."""
    assert [(page.page, page.documents) for page in read(pages())] == [(0, [])]


def test_a_page_keeps_its_bound_but_for_one_larger_document() -> None:
    """Pages are numbered from 0 and as full as they may be."""
    bounds = msgspec.structs.replace(WIDE, page_bytes=170)
    given = pages(bounds)
    frames = [given.add({"_id": number, "text": "x" * (300 if number == 3 else 20)}) for number in range(6)]
    frames.append(given.finish())
    written = [frame for frame in frames if frame is not None]
    shown = [msgspec.json.decode(frame, type=Snapshot) for frame in written]
    assert [page.page for page in shown] == list(range(len(shown)))
    assert [document["_id"] for page in shown for document in page.documents] == list(range(6))
    for frame, page in zip(written, shown, strict=True):
        assert len(frame) <= 170 or [document["_id"] for document in page.documents] == [3]
    assert max(len(page.documents) for page in shown) == 2


@pytest.mark.parametrize(
    "bounds",
    [
        msgspec.structs.replace(WIDE, documents=2),
        msgspec.structs.replace(WIDE, page_bytes=1, frame_bytes=100),
        msgspec.structs.replace(WIDE, total_bytes=200),
    ],
    ids=["documents", "one document in a frame", "bytes in all"],
)
def test_a_bound_ends_the_snapshot(bounds: PageBounds) -> None:
    """Before a byte too many is written."""
    with pytest.raises(SnapshotTooLarge):
        read(pages(bounds), *({"_id": number, "text": "x" * 60} for number in range(3)))


def test_what_json_cannot_carry_ends_the_snapshot() -> None:
    """The error of the encoder comes through."""

    def refuses(tree: object) -> bytes:
        raise UndecodableError("no JSON")

    with pytest.raises(UndecodableError):
        SnapshotPages(topic(), refuses, WIDE).add({"_id": 1})
