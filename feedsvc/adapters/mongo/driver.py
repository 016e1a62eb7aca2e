"""MongoDB behind the ports `ChangeSource` and `DocumentSource`, with PyMongo's async API or with Motor (`clients.py`).

Streams are never filtered: a `$match` on documents can make a stream impossible to resume, and the lookup is
repeated at resume and may differ (docs of MongoDB, "Change Streams Production Recommendations"). They open with
`startAfter`, never `resumeAfter`, which refuses the token of an invalidate.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Collection, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from bson import Timestamp
from pymongo.errors import OperationFailure, PyMongoError

from feedsvc.adapters.mongo import oplog, snapshot, split
from feedsvc.adapters.mongo.clients import Clients, Driver, Reads, Upstream, connect
from feedsvc.adapters.mongo.errors import HISTORY_LOST, classify
from feedsvc.adapters.mongo.image_expiry import ImageExpiry
from feedsvc.adapters.mongo.seek import Past, Seek
from feedsvc.adapters.mongo.stream import MongoStream
from feedsvc.adapters.mongo.upstream_token import opens_by_time, start_after
from feedsvc.adapters.mongo.uri import sets_option
from feedsvc.core.changes import Document, Namespace, TailScope
from feedsvc.core.positions import Position, timestamp_parts
from feedsvc.ports import CollectionInfo, OplogWindow, PositionLost, SourceUnavailable

_BATCH_EVENTS = 1_000
"""Per reply; unlimited, a catch-up would collect 16 MB before its first event is seen."""

MAX_READS = 32
"""Questions to MongoDB at a time, beside the streams."""

T = TypeVar("T")


class MongoSource:
    """`ports.ChangeSource` and `ports.DocumentSource` over a replica set or a sharded cluster.

    `max_streams`: how many streams may be open at once. `driver`: which library talks to MongoDB. `await_s`: how long
    the server waits before it answers "nothing new"; it bounds idle progress and closing. `server_selection_s`: how
    long an operation looks for a usable server. `socket_s`: after how long beyond that a silent connection counts as
    dead; a `socketTimeoutMS` of the URI wins.

    It decides how long a stream on a half-open link is deaf (its clients hear `stalled` meanwhile, and lose nothing).
    Twenty seconds would be long enough for that, but a stream that scans a long stretch of oplog without a match is
    silent as well, and one that is given up begins the same scan anew: too short a time, and it never arrives.
    """

    def __init__(
        self,
        uri: str,
        *,
        max_streams: int,
        driver: Driver = "pymongo",
        await_s: float = 1.0,
        max_reads: int = MAX_READS,
        server_selection_s: float = 5.0,
        socket_s: float = 60.0,
    ) -> None:
        self._uri = uri
        self._driver: Driver = driver
        self._await_s = await_s
        self._max_streams = max_streams
        self._max_reads = max_reads
        self._options: dict[str, Any] = {
            "appname": "feedsvc",
            # A server that said "not primary" is unknown until the next `hello`, for all streams and all reads. One
            # that is streamed may be ten seconds away; one that is polled is sent at once.
            "serverMonitoringMode": "poll",
            "datetime_conversion": "DATETIME_MS",
            "serverSelectionTimeoutMS": int(server_selection_s * 1000),
        }
        if not sets_option(uri, "socketTimeoutMS"):
            self._options["socketTimeoutMS"] = int((await_s + socket_s) * 1000)
        self._clients: Clients | None = None
        self._image_expiry = ImageExpiry()
        self._first: int | None = None
        self._first_at = float("-inf")
        self._splits = True  # until the server refuses the stage and opens the stream without it

    async def start(self) -> None:
        """Create the clients in the running loop. Does not wait for MongoDB: each call finds out by itself."""
        try:
            self._clients = connect(
                self._driver,
                self._uri,
                max_streams=self._max_streams,
                max_reads=self._max_reads,
                options=self._options,
            )
        except Exception as error:
            raise classify(error) from None

    async def close(self) -> None:
        """Close both clients; streams that are still open fail."""
        if self._clients is not None:
            await self._clients.close()

    @property
    def reads(self) -> Reads:
        """The client for everything but streams; its documents decode as `decode.BODY_CODEC` says."""
        return self._started().reads

    async def open(
        self, scope: TailScope, position: Position, *, await_s: float | None = None
    ) -> MongoStream:
        await_s = self._await_s if await_s is None else min(self._await_s, await_s)
        return await self._classified(self._open(scope, position, await_s))

    async def find(self, namespace: Namespace, query: Document, after: int) -> snapshot.MongoCursor:
        return await self._classified(snapshot.find(self._started(), namespace, query, after))

    async def operation_time(self) -> int:
        return await self._classified(oplog.operation_time(self.reads))

    async def describe(self, database: str, collections: Collection[str]) -> Mapping[str, CollectionInfo]:
        return await self._classified(oplog.describe(self.reads, database, collections))

    async def oplog_window(self, *, first_age_s: float = 0.0) -> OplogWindow | None:
        return await self._classified(self._window(first_age_s))

    async def _window(self, first_age_s: float) -> OplogWindow | None:
        now = time.monotonic()
        if now - self._first_at > first_age_s:
            self._first, self._first_at = await oplog.oplog_first(self.reads), now
        last = None if self._first is None else await oplog.oplog_last(self.reads)
        if self._first is None or last is None:
            return None
        expire_s = await self._image_expiry.seconds(self.reads)
        return OplogWindow(self._first, last, images_expire_s=expire_s)

    async def identity(self) -> str:
        return await self._classified(oplog.identity(self.reads))

    async def _classified(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except Exception as error:
            raise classify(error) from None

    async def _open(self, scope: TailScope, position: Position, await_s: float) -> MongoStream:
        if not opens_by_time(position):
            upstream = await self._watch(scope, await_s, start_after=start_after(position))
            return MongoStream(upstream, scope.level, position, await_s=await_s)
        # SecantusDB dates its answers ahead of all entries, and a stream opened at a time that no entry has reached
        # misses what is committed while the engine looks for one (decision 5). Opened at an entry, it does not. Where
        # that question is not answered the stream is: it must not fail because of another pool's connections.
        newest, start = None, position.cluster_time
        with suppress(PyMongoError, SourceUnavailable):
            newest = await oplog.oplog_last(self.reads)
        seek: Seek | Past | None = None if position.is_boundary else Seek(position)
        if newest is not None and newest < start:
            start, seek = newest, seek or Past(position, newest)
        upstream = await self._open_by_time(scope, await_s, start)

        async def reopen(found: Position) -> Upstream:
            return await self._watch(scope, await_s, start_after=start_after(found))

        return MongoStream(upstream, scope.level, position, await_s=await_s, seek=seek, reopen=reopen)

    async def _open_by_time(self, scope: TailScope, await_s: float, cluster_time: int) -> Upstream:
        """Open at a time and make sure that the oplog still holds it: SecantusDB starts from its oldest entry
        without a word. An oplog that may not be read is trusted: MongoDB answers 286 by itself."""
        seconds, increment = timestamp_parts(cluster_time)
        upstream = await self._watch(scope, await_s, start_at_operation_time=Timestamp(seconds, increment))
        try:
            first = await oplog.oplog_first(self.reads)
            if first is not None and first > cluster_time:
                raise PositionLost("the oplog no longer reaches this time", HISTORY_LOST, history=True)
        except BaseException:
            await asyncio.shield(upstream.close())
            raise
        return upstream

    async def _watch(self, scope: TailScope, await_s: float, **start: Any) -> Upstream:
        """A change stream of the scope with the options that every stream has, and where it starts."""
        clients = self._started()
        options = {
            "full_document": "updateLookup",
            "full_document_before_change": "whenAvailable",
            "max_await_time_ms": int(await_s * 1000),
            "batch_size": _BATCH_EVENTS,
            **start,
        }
        if self._splits:
            try:
                return await clients.watch(scope, {**options, "pipeline": [split.STAGE]})
            except OperationFailure as error:
                if error.code not in split.STAGE_REFUSED_CODES:
                    raise
        upstream = await clients.watch(scope, options)
        self._splits = False
        return upstream

    def _started(self) -> Clients:
        if self._clients is None:
            raise SourceUnavailable("the source has not been started")
        return self._clients
