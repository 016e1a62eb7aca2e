"""The documents of an in-memory oplog as of any of its entries, for sources that lag behind it.

A *record* is a document's life from insert to delete, named by the number of the insert: a scan in the order of records
is what a collection scan by record id is to MongoDB. Each record keeps its versions as far back as a source may look,
which is the oplog's oldest entry. The last version of a document that is gone stays: a test does not live long.

A write costs O(1) but for what it makes unobservable, a drop or a rename O(n log n) in the collection, a scan O(log n)
to begin.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from feedsvc.core.changes import Namespace
from feedsvc.testing.entries import Document, Entry


class _Version(NamedTuple):
    """The number of an entry and the document as it left it; None: gone."""

    number: int
    document: Document | None


class _Collection(msgspec.Struct):
    order: list[int] = []
    """Records in their order, those whose document is gone as well."""
    versions: dict[int, list[_Version]] = {}
    """Of each record, oldest first."""
    live: dict[Any, int] = {}
    """The record of each `_id` that exists now."""
    ends: list[int] = []
    """The entries that dropped the collection, renamed it, or renamed another one over it."""

    def put(self, record: int, number: int, document: Document | None, first: int) -> None:
        versions = self.versions.get(record)
        if versions is None:
            versions = self.versions[record] = []
            self.order.append(record)
        versions.append(_Version(number, document))
        while len(versions) > 1 and versions[1].number <= first:
            del versions[0]

    def end(self, number: int, first: int) -> None:
        for record in self.live.values():
            self.put(record, number, None, first)
        self.live.clear()
        self.ends.append(number)


class Versions:
    """Fed with every entry, in order."""

    def __init__(self) -> None:
        self._collections: dict[Namespace, _Collection] = {}

    def apply(self, entry: Entry, first: int) -> None:
        """`first` is the oldest entry that the oplog has: nobody looks at what was before it."""
        collection, number = self._collection(entry.namespace), entry.number
        if entry.operation in ("insert", "update", "replace"):
            record = collection.live.setdefault(entry.document_id, number)
            collection.put(record, number, entry.after, first)
        elif entry.operation == "delete":
            collection.put(collection.live.pop(entry.document_id), number, None, first)
        elif entry.operation == "drop":
            collection.end(number, first)
        elif entry.renamed_to is not None:
            target = self._collection(entry.renamed_to)
            target.end(number, first)
            for document_id, record in collection.live.items():
                target.put(record, number, collection.versions[record][-1].document, first)
                target.live[document_id] = record
            target.order.sort()
            collection.end(number, first)

    def scan(self, namespace: Namespace, behind: int, end: int) -> Iterator[tuple[int, Document]]:
        """The records behind record `behind` with their documents, as of just before entry `end`."""
        collection = self._collection(namespace)
        for at in range(bisect_right(collection.order, behind), len(collection.order)):
            record = collection.order[at]
            versions = collection.versions[record]
            seen = bisect_left(versions, end, key=lambda version: version.number)
            document = versions[seen - 1].document if seen else None
            if document is not None:
                yield record, document

    def ends(self, namespace: Namespace, end: int) -> int:
        """How many collections of this name have ended before entry `end`."""
        return bisect_left(self._collection(namespace).ends, end)

    def _collection(self, namespace: Namespace) -> _Collection:
        return self._collections.setdefault(namespace, _Collection())
