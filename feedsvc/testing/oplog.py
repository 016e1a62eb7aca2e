"""A deterministic oplog in memory, and the documents behind it.

Tokens are a bijective scramble of an entry's number or of a cluster time: opaque, in no order, and the same on every
`MemorySource` that reads the oplog, as MongoDB's are on every node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from feedsvc.core.changes import COLLECTION_GONE_OPERATIONS, Namespace
from feedsvc.core.positions import cluster_time_of
from feedsvc.testing.entries import Document, Entry
from feedsvc.testing.versions import Versions

START = cluster_time_of(1_800_000_000, 1)
"""The cluster time of a new oplog's first entry (January 2027)."""

_BITS = 64
_MASK = (1 << _BITS) - 1
_ODD = 0x9E3779B97F4A7C15
_INVERSE = pow(_ODD, -1, 1 << _BITS)

EVENT_TOKEN, BOUNDARY_TOKEN, INVALIDATE_TOKEN = "e", "b", "i"


class MemoryOplog:
    """A replica set's oplog and the documents behind it.

    Writes take the next cluster time (one increment each, all of a `transaction()` the same one); `tick()` is
    MongoDB's periodic noop. Entries are numbered from 0 and keep their numbers when older ones are trimmed.
    """

    def __init__(self, name: str = "memory", *, seed: int = 0, images: bool = True) -> None:
        self.name = name
        self.now = START - 1
        self.first = 0
        """The number of the oldest entry that is still there."""
        self.versions = Versions()
        """The documents as of each entry: what a find sees."""
        self.images_expire_s: int | None = None
        """What is told of the expiry of pre-images; none of them goes before its entry here."""
        self._seed = seed & _MASK
        self._default_images = images
        self._images: dict[tuple[str, str], bool] = {}
        self._entries: list[Entry] = []
        self._documents: dict[tuple[str, str], dict[Any, Document]] = {}
        self._transaction: list[Entry] | None = None
        self._listeners: list[Callable[[], None]] = []
        self.tick(0)

    @property
    def end(self) -> int:
        """The number that the next entry will get."""
        return self.first + len(self._entries)

    def entry(self, number: int) -> Entry:
        return self._entries[number - self.first]

    def splits(self, number: int) -> bool:
        """Whether entry `number` has the cluster time of the entry before it."""
        return self.entry(number - 1).cluster_time == self.entry(number).cluster_time

    def create(self, database: str, collection: str, *, images: bool | None = None) -> None:
        """Create a collection, or change whether it keeps pre-images; a write creates one with the default."""
        self._documents.setdefault((database, collection), {})
        self._images[database, collection] = self._default_images if images is None else images

    def images(self, database: str, collection: str) -> bool:
        """Whether an existing collection keeps pre-images."""
        return self._images.get((database, collection), False)

    def exists(self, database: str, collection: str) -> bool:
        return (database, collection) in self._images

    def document(self, namespace: Namespace, document_id: Any) -> Document | None:
        """The document as it is now: what `updateLookup` finds."""
        return self._documents.get((namespace.database, namespace.collection), {}).get(document_id)

    def insert(self, database: str, collection: str, document: Document) -> int:
        """Insert (or overwrite) by `_id`; like all writes it returns the cluster time."""
        self._collection(database, collection)[document["_id"]] = dict(document)
        return self._write("insert", database, collection, document["_id"], after=dict(document))

    def update(
        self,
        database: str,
        collection: str,
        document_id: Any,
        fields: Document,
        *,
        remove: Sequence[str] = (),
    ) -> int:
        """`$set` top-level `fields` and `$unset` those in `remove`; KeyError if there is no such document."""
        documents = self._collection(database, collection)
        before = documents[document_id]
        after = {key: value for key, value in (before | fields).items() if key not in remove}
        documents[document_id] = after
        update = {"updatedFields": dict(fields), "removedFields": list(remove), "truncatedArrays": []}
        return self._write(
            "update", database, collection, document_id, before=before, after=after, update=update
        )

    def replace(self, database: str, collection: str, document: Document) -> int:
        documents = self._collection(database, collection)
        before = documents[document["_id"]]
        documents[document["_id"]] = dict(document)
        return self._write(
            "replace", database, collection, document["_id"], before=before, after=dict(document)
        )

    def delete(self, database: str, collection: str, document_id: Any) -> int:
        before = self._collection(database, collection).pop(document_id)
        return self._write("delete", database, collection, document_id, before=before)

    def drop(self, database: str, collection: str) -> int:
        self._documents.pop((database, collection), None)
        self._images.pop((database, collection), None)
        return self._write("drop", database, collection)

    def rename(self, database: str, collection: str, to: str) -> int:
        """Rename inside the database, over an existing target too."""
        self._documents[database, to] = self._documents.pop((database, collection), {})
        self._images[database, to] = self._images.pop((database, collection), self._default_images)
        return self._write("rename", database, collection, renamed_to=Namespace(database, to))

    def drop_database(self, database: str) -> int:
        """A `drop` for each collection, then `dropDatabase`."""
        for owner, collection in sorted(self._documents):
            if owner == database:
                self.drop(database, collection)
        return self._write("dropDatabase", database, "")

    def tick(self, seconds: int = 1) -> int:
        """A noop `seconds` later: cluster time moves on and idle streams say so."""
        self.now = max(self.now + 1, cluster_time_of((self.now >> 32) + seconds, 1) if seconds else 0)
        self._append([Entry(self.end, self.now, "noop", Namespace("", ""))])
        return self.now

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All writes inside have one cluster time and become visible together at the end."""
        if self._transaction is not None:
            raise RuntimeError("transactions do not nest")
        self._transaction = []
        try:
            yield
        finally:
            entries, self._transaction = self._transaction, None
            if entries:
                self.now += 1
                self._append([msgspec.structs.replace(entry, cluster_time=self.now) for entry in entries])

    def trim(self, count: int) -> None:
        """Drop up to `count` of the oldest entries: whole cluster times only, and never the newest."""
        count = min(count, len(self._entries) - 1)
        while count > 0 and self.splits(self.first + count):
            count -= 1
        del self._entries[:count]
        self.first += count

    def wake(self) -> None:
        """Let every waiting read return, empty if there is nothing: the server's answer after its await."""
        for listener in tuple(self._listeners):
            listener()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` whenever a waiting read should look again; returns how to stop."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def token(self, kind: str, value: int) -> str:
        """The opaque token of an entry's number (`e`, `i`) or of a cluster time (`b`)."""
        return f"{kind}{((value ^ self._seed) * _ODD) & _MASK:016x}"

    def token_value(self, token: str) -> tuple[str, int] | None:
        """What `token` was made from; None for a token that no oplog made."""
        try:
            value = (int(token[1:], 16) * _INVERSE & _MASK) ^ self._seed
        except ValueError:
            return None
        return (token[0], value) if token[:1] in (EVENT_TOKEN, BOUNDARY_TOKEN, INVALIDATE_TOKEN) else None

    def _collection(self, database: str, collection: str) -> dict[Any, Document]:
        key = (database, collection)
        if key not in self._documents:
            self.create(database, collection)
        return self._documents[key]

    def _write(
        self, operation: str, database: str, collection: str, document_id: Any = None, **images: Any
    ) -> int:
        if operation in ("update", "replace", "delete") and not self.images(database, collection):
            images["before"] = None
        namespace = Namespace(database, collection)
        if self._transaction is not None:
            if operation in COLLECTION_GONE_OPERATIONS:
                raise RuntimeError(f"{operation} cannot be part of a transaction")
            number = self.end + len(self._transaction)
            self._transaction.append(Entry(number, 0, operation, namespace, document_id, **images))
            return self.now + 1
        self.now += 1
        self._append([Entry(self.end, self.now, operation, namespace, document_id, **images)])
        return self.now

    def _append(self, entries: list[Entry]) -> None:
        self._entries.extend(entries)
        for entry in entries:
            self.versions.apply(entry, self.first)
        self.wake()
