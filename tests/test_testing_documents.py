"""The documents of the in-memory oplog where they go beyond the contract of a find: at each entry, for sources that
lag, and under a scan that goes on while others write."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from feedsvc.core.changes import Namespace
from feedsvc.ports import SourceRefused, SourceUnavailable
from feedsvc.testing import MemoryCursor, MemoryOplog, MemorySource

NAMES = ("a", "b")
State = dict[str, dict[int, dict[str, Any]]]


def everything(cursor: MemoryCursor) -> list[Any]:
    documents: list[Any] = []
    while read := cursor.poll():
        documents.extend(read)
    return documents


def states(oplog: MemoryOplog) -> list[State]:
    """What each entry leaves, computed anew: the first one is before entry 1."""
    found: list[State] = []
    now: State = {name: {} for name in NAMES}
    for number in range(oplog.first, oplog.end):
        entry = oplog.entry(number)
        documents = now.get(entry.namespace.collection, {})
        if entry.operation == "rename" and entry.renamed_to is not None:
            now = {**now, entry.renamed_to.collection: documents, entry.namespace.collection: {}}
        elif entry.operation == "drop":
            now = {**now, entry.namespace.collection: {}}
        elif entry.operation != "noop":
            rest = {key: value for key, value in documents.items() if key != entry.document_id}
            after = {} if entry.after is None else {entry.document_id: entry.after}
            now = {**now, entry.namespace.collection: {**rest, **after}}
        found.append(now)
    return found


def write(oplog: MemoryOplog, draw: Random) -> None:
    name, other = draw.sample(NAMES, 2)
    key = draw.randrange(6)
    exists = oplog.document(Namespace("d", name), key) is not None
    kind = draw.randrange(12)
    if kind == 0:
        oplog.drop("d", name)
    elif kind == 1:
        oplog.rename("d", name, other)
    elif kind == 2:
        with oplog.transaction():
            for number in range(6):
                oplog.insert("d", name, {"_id": number, "t": draw.random()})
    elif not exists or kind < 5:
        oplog.insert("d", name, {"_id": key, "n": draw.random()})
    elif kind < 8:
        oplog.delete("d", name, key)
    else:
        oplog.update("d", name, key, {"u": draw.random()})


@pytest.mark.parametrize("seed", range(5))
def test_a_source_finds_what_the_entries_that_it_sees_have_left(seed: int) -> None:
    """At each entry that it may stand at, after random writes, drops and renames, and trimming in between."""
    draw, oplog = Random(seed), MemoryOplog()
    for _ in range(100):
        write(oplog, draw)
    expected = states(oplog)
    oplog.trim(draw.randrange(1, 60))
    for _ in range(20):
        write(oplog, draw)
    source = MemorySource(oplog, max_documents=4)
    for number in range(oplog.first, len(expected)):
        source.see_only(number + 1)
        for name in NAMES:
            found = everything(source.find_now(Namespace("d", name), {}, 0))
            assert {document["_id"]: document for document in found} == expected[source.visible - 1][name]
            assert len(found) == len(expected[source.visible - 1][name])


def test_a_scan_meets_what_is_inserted_behind_it() -> None:
    """What is deleted and inserted again comes twice; what is deleted before the scan came there does not come."""
    oplog = MemoryOplog()
    for number in range(4):
        oplog.insert("d", "c", {"_id": number})
    cursor = MemorySource(oplog, max_documents=2).find_now(Namespace("d", "c"), {}, 0)
    assert cursor.poll() == [{"_id": 0}, {"_id": 1}]
    oplog.delete("d", "c", 0)
    oplog.insert("d", "c", {"_id": 0, "again": True})
    oplog.delete("d", "c", 2)
    oplog.update("d", "c", 3, {"later": True})
    assert everything(cursor) == [{"_id": 3, "later": True}, {"_id": 0, "again": True}]


def test_faults_of_finds_are_raised_once_each() -> None:
    source = MemorySource(MemoryOplog())
    source.fail_next_find(SourceUnavailable("find"))
    with pytest.raises(SourceUnavailable, match="find"):
        source.find_now(Namespace("d", "c"), {}, 0)
    broken, whole = (source.find_now(Namespace("d", "c"), {"a": 1}, 0) for _ in range(2))
    source.fail_next_cursor_read(SourceUnavailable("read"))
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match="read"):
            broken.poll()
    assert whole.poll() == []
    assert source.found == [
        (Namespace("d", "c"), {}, 0),
        (Namespace("d", "c"), {"a": 1}, 0),
        (Namespace("d", "c"), {"a": 1}, 0),
    ]
    assert source.open_cursors == 2


def test_a_query_outside_the_language_is_refused() -> None:
    with pytest.raises(SourceRefused):
        MemorySource(MemoryOplog()).find_now(Namespace("d", "c"), {"$where": "true"}, 0)
