"""Motor as the driver: the blocking PyMongo behind coroutines, each call on a thread.

Motor's own change stream hops to a thread for every event and parks that thread while the server waits for changes.
The threads are a pool that all clients of the process share (`MOTOR_MAX_WORKERS`); with Motor's default, five for each
core, ten idle streams on two cores would stop every other call. Here three things are different, all of them with
the PyMongo stream that Motor gives away as `delegate`:

* reads of streams run on threads of the source's own, enough for each stream; Motor's pool serves the rest;
* events that a reply has already brought are taken without a thread, since no answer is waited for;
* a thread cannot be cancelled, and the interpreter does not end before its threads have. A stream that is cut off
  leaves its thread to the driver's own timeouts; `close()` interrupts those that are left.

Motor gets critical fixes only (docs/decisions/0008-motor-stays-supported.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from bson.raw_bson import RawBSONDocument
from motor.motor_asyncio import AsyncIOMotorClient

from feedsvc.adapters.mongo.clients import CLOSE_S, POOL_HEADROOM, Reads, Upstream, watched
from feedsvc.adapters.mongo.one_supervisor import without_resume
from feedsvc.core.changes import TailScope

T = TypeVar("T")


class MotorClients:
    """`clients.Clients` with Motor. Arguments as for `PyMongoClients`."""

    def __init__(self, uri: str, *, max_streams: int, max_reads: int, options: Mapping[str, Any]) -> None:
        # Twice: each stream may have been cut off from a server that hangs, and be open again.
        threads = 2 * max_streams + POOL_HEADROOM
        self._streams: Any = AsyncIOMotorClient(
            uri,
            document_class=RawBSONDocument,
            readConcernLevel="majority",
            maxPoolSize=threads,
            retryReads=False,
            **options,
        )
        self._reads: Any = AsyncIOMotorClient(uri, maxPoolSize=max_reads, **options)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="feedsvc-motor")

    @property
    def reads(self) -> Reads:
        client: Reads = self._reads
        return client

    async def watch(self, scope: TailScope, options: Mapping[str, Any]) -> Upstream:
        stream = watched(self._streams, scope).watch(**options)
        # Until it is entered it has not even been sent.
        return MotorUpstream(await stream.__aenter__(), self._on_thread)

    async def session(self) -> Any:
        return await self._reads.start_session(causal_consistency=True)

    async def close(self) -> None:
        await asyncio.gather(*(self._close(client.delegate) for client in (self._streams, self._reads)))
        self._threads.shutdown(wait=False)

    async def _close(self, client: Any) -> None:
        """Close a blocking client on a thread, and have every call that still waits fail within half a second.

        The last is what the driver does when its monitor finds that a server hangs; there is no public way.
        """
        topology = client._topology  # None where nothing was ever asked
        pools = [] if topology is None else [server.pool for server in topology._servers.values()]
        closing = self._on_thread(client.close)
        done = False
        while not done:
            done = bool((await asyncio.wait({closing}, timeout=CLOSE_S))[0])
            for pool in pools:
                for context in tuple(pool.active_contexts):
                    context.cancel()
        await closing

    def _on_thread(self, call: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, call)


class MotorUpstream:
    """`clients.Upstream` over Motor's change stream, which has been entered."""

    def __init__(self, stream: Any, on_thread: Callable[[Callable[[], Any]], asyncio.Future[Any]]) -> None:
        self._stream = stream
        self._delegate = stream.delegate
        without_resume(self._delegate)
        self._on_thread = on_thread

    @property
    def alive(self) -> bool:
        alive: bool = self._delegate.alive
        return alive

    @property
    def resume_token(self) -> Mapping[str, Any] | None:
        token: Mapping[str, Any] | None = self._delegate.resume_token
        return token

    async def try_next(self) -> bytes | None:
        event: RawBSONDocument | None
        if self._delegate._cursor._has_next():
            event = self._delegate.try_next()
        else:
            event = await self._on_thread(self._delegate.try_next)
        return None if event is None else bytes(event.raw)

    async def close(self) -> None:
        await self._stream.close()
