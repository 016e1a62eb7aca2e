"""`ports.DocumentSource` on MongoDB: one `find`, read in pieces (decision 10).

The find runs in a causally consistent session that has been advanced to `after`, with read concern majority: the
driver sends it as `afterClusterTime`, and the server waits until its majority point is there, so no document is older
than the position at which the stream began. It is no point in time: each reply shows the majority state of its own
moment, and the find may see anything between `after` and its end. What this can do to a scan while others write:

* a scan of the collection goes by record id, which an update does not change; a scan of an index may meet a document
  twice, or not at all, whose key moved meanwhile (manual, "Read Isolation, Consistency, and Recency": cursor
  snapshot). A document that is met twice is sent twice, the later state last;
* a document that is missed, or met in a state that was already old, was changed after the find began, so after
  `after`: that change is an event that the stream has not delivered yet. So no sort and no hint is needed.

A find is not opened with `noCursorTimeout`: the server forgets a cursor that nobody reads for ten minutes, and a
client that takes nothing for so long has been closed as slow. It has no `maxTimeMS` either, which would count the
whole scan. Each reply is waited for as long as the URI's `socketTimeoutMS` says: a filter that no index serves, and
that finds no document in so much time, is not read to its end (see `_BATCH_DOCUMENTS`).

Documents come as raw batches: the driver decodes no document, and what is decoded at a time is bounded. Nothing about
a find is about a position of the stream: `PositionLost` never leaves this module.

Sources: manual, "Causal Consistency and Read and Write Concerns"; db/read_concern_mongod.cpp (code 72 where the node
has not heard of `after` yet; seen with secondaries in powersync-ja/powersync-service#710).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol

from bson import Timestamp
from bson.errors import BSONError
from pymongo.read_concern import ReadConcern

from feedsvc.adapters.mongo.clients import CLOSE_S, Clients
from feedsvc.adapters.mongo.decode import decode_document
from feedsvc.adapters.mongo.errors import classify
from feedsvc.core.changes import Document, Namespace
from feedsvc.core.positions import timestamp_parts
from feedsvc.ports import PositionLost, SourceError, SourceRefused, SourceUnavailable

_BATCH_DOCUMENTS = 200
"""Per reply, and 16 MB in any case. Few, so that a scan which matches little answers before its socket times out."""

_READ_BYTES = 256 * 1024
"""Decoded at a time, which holds the event loop for some 2 ms; one document in any case."""

_CLOCK_BEHIND = 72
"""InvalidOptions: to a find like this one only said where the node's clock is behind `after`."""


class RawCursor(Protocol):
    """What is used of a raw batch cursor; both drivers have it."""

    @property
    def alive(self) -> bool: ...

    def next(self) -> Awaitable[bytes]: ...

    async def close(self) -> None: ...


async def find(clients: Clients, namespace: Namespace, query: Document, after: int) -> MongoCursor:
    """A cursor that asks the server at its first `read`. Raises the driver's exceptions."""
    session = await clients.session()
    session.advance_operation_time(Timestamp(*timestamp_parts(after)))
    collection = clients.reads[namespace.database].get_collection(
        namespace.collection, read_concern=ReadConcern("majority")
    )
    cursor = collection.find_raw_batches(
        query, session=session, batch_size=_BATCH_DOCUMENTS, collation={"locale": "simple"}
    )
    return MongoCursor(cursor, session)


class MongoCursor:
    """`ports.DocumentCursor`. Holds one reply, undecoded but for what was given out, and one session."""

    def __init__(self, cursor: RawCursor, session: Any) -> None:
        self._cursor = cursor
        self._session = session
        self._pieces: Iterator[bytes] = iter(())
        self._error: SourceError | None = None
        self._closed = False

    async def read(self) -> Sequence[Document]:
        if self._closed:
            raise SourceUnavailable("the cursor is closed")
        if self._error is not None:
            raise self._error
        try:
            return self._decoded() or await self._next_reply()
        except Exception as error:
            self._error = _classified(error)
            raise self._error from None

    async def close(self) -> None:
        self._closed = True
        self._pieces = iter(())
        for release in (self._cursor.close, self._session.end_session):
            # A server that does not answer forgets the cursor by itself.
            with suppress(Exception):
                async with asyncio.timeout(CLOSE_S):
                    await release()

    async def _next_reply(self) -> list[Document]:
        """A reply without documents that is not the last one (a mongos may send it) is followed by the next."""
        while self._cursor.alive:
            try:
                raw = await self._cursor.next()
            except StopAsyncIteration:
                continue
            self._pieces = _split(raw)
            return self._decoded()
        return []

    def _decoded(self) -> list[Document]:
        documents: list[Document] = []
        size = 0
        for piece in self._pieces:
            documents.append(decode_document(piece))
            size += len(piece)
            if size >= _READ_BYTES:
                break
        return documents


def _split(batch: bytes) -> Iterator[bytes]:
    """The documents of a raw batch: each begins with its length (BSON specification 1.1, `int32`)."""
    view, start = memoryview(batch), 0
    while start < len(batch):
        end = start + max(int.from_bytes(view[start : start + 4], "little"), 5)
        yield bytes(view[start:end])
        start = end


def _classified(error: Exception) -> SourceError:
    if isinstance(error, BSONError):
        return SourceUnavailable("the reply of MongoDB is not valid BSON")
    found = classify(error)
    if isinstance(found, PositionLost) or (isinstance(found, SourceRefused) and found.code == _CLOCK_BEHIND):
        return SourceUnavailable(f"the documents cannot be read now: {found}", found.code)
    return found
