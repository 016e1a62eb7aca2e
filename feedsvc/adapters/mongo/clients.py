"""What the source uses of a driver, and PyMongo's async API as the driver that has it.

Two clients: one pool for streams, which hold a connection nearly all the time, and one for everything else, so that
an oplog query never waits behind a hundred idle streams. Both belong to the loop in which they were made.

`motor_clients.py` is the other driver. Everything that the two do differently is in these two modules; the contract
tests of the source run on both.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal, Protocol

from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient

from feedsvc.adapters.mongo.pinned_stream import PinnedStream, pin_cursors
from feedsvc.adapters.mongo.uri import sets_option
from feedsvc.core.changes import TailScope
from feedsvc.ports import SourceRefused

Driver = Literal["pymongo", "motor"]

POOL_HEADROOM = 4
"""Connections beyond one per stream: for streams that are closing while the next are opened."""

QUEUE_MS = 30_000
"""Each stream keeps its connection, so one more than there are fails instead of waiting for ever. Long enough for many
that open at once, of which the driver connects two at a time."""

CLOSE_S = 1.0
"""How long a client that is closing may talk to a server that does not answer."""


class Upstream(Protocol):
    """A change stream, opened. One task reads it; `try_next` asks the server at most once and is never cancelled
    but to cut the stream off."""

    @property
    def alive(self) -> bool: ...

    @property
    def resume_token(self) -> Mapping[str, Any] | None: ...

    async def try_next(self) -> bytes | None:
        """The next event, as BSON."""
        ...

    async def close(self) -> None: ...


class Reads(Protocol):
    """The client for everything but streams.

    Databases are typed `Any`: use only what is awaited alike with both drivers, which is `command`, `find_one`,
    `list_collections` and `find_raw_batches` with their cursors. (`start_session` is not: see `Clients.session`.)
    """

    @property
    def admin(self) -> Any: ...

    def __getitem__(self, name: str) -> Any: ...


class Clients(Protocol):
    """Both clients of one driver."""

    @property
    def reads(self) -> Reads: ...

    async def watch(self, scope: TailScope, options: Mapping[str, Any]) -> Upstream:
        """Open a change stream; `options` are those of PyMongo's `watch`. Raises the driver's exceptions."""
        ...

    async def session(self) -> Any:
        """A causally consistent session of `reads`; asks no server. Its holder awaits `end_session()`."""
        ...

    async def close(self) -> None:
        """Release everything; streams that are still open fail."""
        ...


class PyMongoClients:
    """`max_streams` and `max_reads` bound the two pools; `options` go to both clients."""

    def __init__(self, uri: str, *, max_streams: int, max_reads: int, options: Mapping[str, Any]) -> None:
        queue = {} if sets_option(uri, "waitQueueTimeoutMS") else {"waitQueueTimeoutMS": QUEUE_MS}
        # A deployment's stream takes codec and read concern from its client, so all streams do.
        self._streams = AsyncMongoClient(
            uri,
            document_class=RawBSONDocument,
            readConcernLevel="majority",
            maxPoolSize=max_streams + POOL_HEADROOM,
            retryReads=False,
            **{**queue, **options},
        )
        pin_cursors(self._streams)
        self._reads: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(
            uri, maxPoolSize=max_reads, **options
        )

    @property
    def reads(self) -> Reads:
        return self._reads

    async def watch(self, scope: TailScope, options: Mapping[str, Any]) -> Upstream:
        return PinnedStream(self._streams, await watched(self._streams, scope).watch(**options))

    async def session(self) -> Any:
        return self._reads.start_session(causal_consistency=True)

    async def close(self) -> None:
        await asyncio.gather(*(_close(client) for client in (self._streams, self._reads)))


async def _close(client: AsyncMongoClient[Any]) -> None:
    """Closing says goodbye to the server, and a server that hangs holds that up for half a minute. What a cut attempt
    was saying is not said again: sessions in the first, cursors in the second, nothing in the third."""
    for _ in range(3):
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await client.close()
                return


def connect(
    driver: Driver, uri: str, *, max_streams: int, max_reads: int, options: Mapping[str, Any]
) -> Clients:
    """The clients of `driver`, made in the running loop without waiting for MongoDB.

    Raises the driver's exceptions for a bad URI, and `SourceRefused` where Motor is not installed.
    """
    if driver == "pymongo":
        return PyMongoClients(uri, max_streams=max_streams, max_reads=max_reads, options=options)
    # Motor reads it once, when it is imported. A call that was given up holds its thread until the driver gives up too.
    os.environ.setdefault("MOTOR_MAX_WORKERS", str(max_reads))
    try:
        from feedsvc.adapters.mongo.motor_clients import MotorClients
    except ModuleNotFoundError:
        raise SourceRefused("the driver Motor is not installed: it is the extra `motor`") from None
    return MotorClients(uri, max_streams=max_streams, max_reads=max_reads, options=options)


def watched(client: Any, scope: TailScope) -> Any:
    """What a stream of the scope is opened on: the client, a database or a collection."""
    if scope.level == "deployment":
        return client
    database = client[scope.database]
    return database if scope.level == "database" else database[scope.collection]
