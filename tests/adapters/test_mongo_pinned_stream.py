"""A stream keeps one connection of PyMongo and asks on it past the driver: what the driver does around a `getMore` is
done all the same, and the connection comes back however the stream ends. Run these before PyMongo's pin is raised."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest

from feedsvc.adapters.mongo import MongoSource
from feedsvc.adapters.mongo.clients import POOL_HEADROOM, connect
from feedsvc.adapters.mongo.stream import BUFFER_CHANGES
from feedsvc.core.changes import Change, TailScope
from feedsvc.core.positions import boundary
from feedsvc.ports import ChangeStream, EventUnavailable, SourceError, SourceUnavailable
from tests.adapters.conftest import changes_or_error
from tests.support.engine import Engine
from tests.support.proxy import EngineProxy, Fault

PATIENCE_S = 20
AWAIT_S = 0.1
SCOPE = TailScope("collection", "pinned", "c")


@asynccontextmanager
async def source_at(uri: str, max_streams: int = 1, socket_s: float = 60.0) -> AsyncIterator[MongoSource]:
    source = MongoSource(
        uri, max_streams=max_streams, await_s=AWAIT_S, server_selection_s=2, socket_s=socket_s
    )
    await source.start()
    try:
        yield source
    finally:
        await source.close()


async def opened(source: MongoSource) -> ChangeStream:
    return await source.open(SCOPE, boundary(await source.operation_time()))


async def next_change(stream: ChangeStream) -> Change:
    return (await changes_or_error(stream))[0]


def numbers(proxy: EngineProxy, name: str) -> list[int]:
    """On which connections the proxy has seen a command."""
    return [number for number, command in proxy.commands if command == name]


async def seen(proxy: EngineProxy, name: str, times: int = 1) -> None:
    while len(numbers(proxy, name)) < times:  # noqa: ASYNC110 - the proxy is threads
        await asyncio.sleep(0.01)


async def met(fault: Fault, hits: int = 0) -> None:
    """Until it took more commands than that."""
    while fault.hits <= hits:  # noqa: ASYNC110 - the proxy is threads
        await asyncio.sleep(0.01)


async def test_a_stream_opens_reads_and_ends_on_one_connection(proxy: EngineProxy, engine: Engine) -> None:
    async with source_at(proxy.uri) as source:
        stream = await opened(source)
        for number in range(3):
            engine.client.pinned.c.insert_one({"_id": number})
            assert (await next_change(stream)).operation == "insert"
        await stream.close()
        await (await opened(source)).close()
    streams = set(numbers(proxy, "getMore"))
    assert len(streams) == 1
    assert streams == set(numbers(proxy, "killCursors"))
    assert len(numbers(proxy, "killCursors")) == 2
    engine.client.drop_database("pinned")


def fails_with(code: int | None) -> Fault:
    return Fault("getMore", code, collection="c")


SPOILT = Fault("getMore", 0, collection="c", answer={"cursor": {"id": "no number"}})
NO_CURSOR = Fault("getMore", 0, collection="c", answer={"something": "else"})
SILENT = Fault("getMore", 0, collection="c", silent=True)
NO_GOODBYE = Fault("killCursors", 0, silent=True)


@pytest.mark.parametrize(
    "fault",
    [
        fails_with(91),
        fails_with(43),
        fails_with(286),
        fails_with(None),
        SPOILT,
        NO_CURSOR,
        SILENT,
        NO_GOODBYE,
    ],
    ids=["91", "43", "286", "closed", "spoilt reply", "no cursor", "silence", "no goodbye"],
)
async def test_its_connection_comes_back_however_it_ends(proxy: EngineProxy, fault: Fault) -> None:
    """Twice as many streams as the pool has connections end so, and one more can be opened."""
    at_once = 1 + POOL_HEADROOM
    async with source_at(proxy.uri) as source:
        for _ in range(2):
            proxy.faults = []
            streams = await asyncio.gather(*(opened(source) for _ in range(at_once)))
            proxy.faults = [fault]
            if not fault.silent:
                for stream in streams:
                    with pytest.raises(SourceError):
                        await next_change(stream)
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*(stream.close() for stream in streams))
        proxy.faults = []
        await (await opened(source)).close()


async def test_a_cursor_that_the_server_has_forgotten_is_not_killed(proxy: EngineProxy) -> None:
    async with source_at(proxy.uri) as source:
        stream = await opened(source)
        proxy.faults = [fails_with(43)]
        with pytest.raises(SourceUnavailable):
            await next_change(stream)
        await stream.close()
        assert numbers(proxy, "killCursors") == []


async def test_one_that_goes_on_behind_an_invalidate_gives_the_first_connection_back(
    engine: Engine, fresh_database: str
) -> None:
    """A position without its token, which is found by time in a stream that ends there: two streams, one behind the
    other."""
    collection = engine.client[fresh_database].c
    scope = TailScope("collection", fresh_database, "c")
    async with source_at(engine.uri) as source:
        stream = await source.open(scope, boundary(await source.operation_time()))
        collection.insert_one({})
        collection.drop()
        changes: list[Change] = []
        while not changes or changes[-1].operation != "invalidate":
            changes += (await stream.read()).changes
        await stream.close()
        end = msgspec.structs.replace(changes[-1].position, data=None, type_bits=None)
        for number in range(2 * (1 + POOL_HEADROOM)):
            stream = await source.open(scope, end)
            collection.insert_one({"_id": number})
            assert (await next_change(stream)).operation == "insert"
            await stream.close()
    engine.client.drop_database(fresh_database)


async def test_a_reply_that_cannot_be_read_is_an_event_that_is_asked_for_again(proxy: EngineProxy) -> None:
    """`EventUnavailable` without a code, as for an event that is not valid BSON."""
    async with source_at(proxy.uri) as source:
        stream = await opened(source)
        proxy.faults = [SPOILT]
        with pytest.raises(EventUnavailable) as caught:
            await next_change(stream)
        assert caught.value.code is None
        await stream.close()


async def test_one_stream_too_many_is_told_so(proxy: EngineProxy) -> None:
    """It does not wait for ever; when another ends there is room."""
    async with source_at(f"{proxy.uri}&waitQueueTimeoutMS=500") as source:
        streams = [await opened(source) for _ in range(1 + POOL_HEADROOM)]
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(SourceUnavailable):
                await opened(source)
        await streams.pop().close()
        streams.append(await opened(source))
        await asyncio.gather(*(stream.close() for stream in streams))


@pytest.mark.parametrize(
    "silence",
    [
        Fault("aggregate", 0, collection="c", silent=True),
        Fault("find", 0, collection="oplog.rs", silent=True, having={"sort": {"$natural": 1}}),
    ],
    ids=["nobody answers", "behind the answer"],
)
async def test_an_opening_that_is_given_up_gives_its_connection_back(
    proxy: EngineProxy, silence: Fault
) -> None:
    async with source_at(proxy.uri) as source:
        for _ in range(2 * (1 + POOL_HEADROOM)):
            proxy.faults = [silence]
            hits = silence.hits
            opening = asyncio.create_task(opened(source))
            async with asyncio.timeout(PATIENCE_S):
                await met(silence, hits)
            assert not opening.done()
            while not opening.done():
                # Python 3.11 may swallow one of them (bpo-37658), and the driver waits for its reply.
                opening.cancel()
                await asyncio.wait({opening}, timeout=0.1)
        proxy.faults = []
        await (await opened(source)).close()


async def test_a_connection_is_returned_once_though_returning_it_is_cut_off(engine: Engine) -> None:
    """While the pool is busy, which is rare: it would lend what it got back twice to two streams at a time."""
    options = {"serverSelectionTimeoutMS": 2000}
    clients = connect("pymongo", engine.uri, max_streams=1, max_reads=1, options=options)
    watch = {"max_await_time_ms": 100}
    stream: Any = await clients.watch(SCOPE, watch)
    pool = stream._connection.pool_ref()
    async with pool.lock:
        closing = asyncio.create_task(stream.close())
        while not pool.lock._waiters:  # noqa: ASYNC110 - the driver's own lock
            await asyncio.sleep(0)
        closing.cancel()
    await asyncio.wait({closing})
    await stream.close()
    assert pool.requests == pool.active_sockets == pool.operation_count == 0
    one, other = cast(
        "tuple[Any, Any]", (await clients.watch(SCOPE, watch), await clients.watch(SCOPE, watch))
    )
    assert one._connection is not other._connection
    await asyncio.gather(one.close(), other.close())
    await clients.close()


async def test_the_first_answer_is_not_kept(engine: Engine, fresh_database: str) -> None:
    """Its events are views of all of it, up to 16 MB for as long as the stream is open."""
    collection = engine.client[fresh_database].c
    start = collection.database.command("ping")["operationTime"]
    collection.insert_many([{"x": "y" * 10_000} for _ in range(50)])
    clients = connect("pymongo", engine.uri, max_streams=1, max_reads=1, options={})
    scope = TailScope("collection", fresh_database, "c")
    stream: Any = await clients.watch(scope, {"start_at_operation_time": start})
    assert stream._events
    assert not stream._cursor._data
    for _ in range(50):
        assert type(await stream.try_next()) is bytes
    await stream.close()
    await clients.close()
    engine.client.drop_database(fresh_database)


@pytest.mark.parametrize("option", ["socketTimeoutMS=0", "timeoutMS=700"])
async def test_a_time_for_whole_operations_does_not_bound_a_stream(engine: Engine, option: str) -> None:
    """`timeoutMS` of the URI leaves the opening's rest on the socket; a stream is silent for longer than that."""
    clients = connect("pymongo", f"{engine.uri}&{option}", max_streams=1, max_reads=1, options={})
    stream = await clients.watch(SCOPE, {"max_await_time_ms": 1000})
    while await stream.try_next() is not None:
        pass
    await stream.close()
    await clients.close()


async def test_silence_is_over_after_the_socket_timeout(proxy: EngineProxy) -> None:
    """Again and again where a reply came in between: the time runs for one `getMore`."""
    async with source_at(proxy.uri, socket_s=0.6) as source:
        stream = await opened(source)
        began = asyncio.get_running_loop().time()
        async with asyncio.timeout(PATIENCE_S):
            while asyncio.get_running_loop().time() < began + 1.5:
                await stream.read()
            proxy.faults = [SILENT]
            began = asyncio.get_running_loop().time()
            with pytest.raises(SourceUnavailable, match="NetworkTimeout"):
                await next_change(stream)
        assert 0.5 < asyncio.get_running_loop().time() - began < 5
        await stream.close()


async def test_a_reader_that_pauses_is_not_silence(engine: Engine, fresh_database: str) -> None:
    """Nobody takes what was read for longer than the socket timeout, so nothing more is asked for."""
    collection = engine.client[fresh_database].c
    async with source_at(engine.uri, socket_s=2) as source:
        start = boundary(await source.operation_time())
        collection.insert_many([{"_id": number} for number in range(2 * BUFFER_CHANGES)])
        stream = await source.open(TailScope("collection", fresh_database, "c"), start)
        await asyncio.sleep(2 * (AWAIT_S + 2))
        count = 0
        async with asyncio.timeout(PATIENCE_S):
            while count < 2 * BUFFER_CHANGES:
                count += len((await stream.read()).changes)
        await stream.close()
    engine.client.drop_database(fresh_database)


async def test_a_server_that_hangs_is_noticed_by_the_monitor(proxy: EngineProxy) -> None:
    """Long before the socket's own minute is over: the driver interrupts all connections to it."""
    uri = f"{proxy.uri}&connectTimeoutMS=300&heartbeatFrequencyMS=500"
    async with source_at(uri) as source:
        stream = await opened(source)
        proxy.faults = [Fault("", 0, silent=True)]
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(SourceUnavailable):
                await next_change(stream)
            await stream.close()


async def test_a_server_that_is_not_primary_any_more_is_looked_at_again(proxy: EngineProxy) -> None:
    """The driver is told what a `getMore` was answered: its monitor asks at once, not in ten seconds."""
    async with source_at(proxy.uri) as source:
        stream = await opened(source)
        await seen(proxy, "hello", 2)  # what the monitors of both clients still had to ask
        proxy.commands.clear()
        proxy.faults = [fails_with(10107)]
        with pytest.raises(SourceUnavailable):
            await next_change(stream)
        async with asyncio.timeout(5):
            await seen(proxy, "hello")
        await stream.close()


async def test_one_failure_does_not_touch_the_streams_beside_it(proxy: EngineProxy, engine: Engine) -> None:
    """A connection that breaks has the driver pause the pool; the others have theirs already."""
    async with source_at(proxy.uri, max_streams=2) as source:
        breaks, lasts = await opened(source), await opened(source)
        broken = Fault("getMore", None, collection="c", times=1)
        proxy.faults = [broken]
        ends = asyncio.gather(first_end(breaks), first_end(lasts))
        async with asyncio.timeout(PATIENCE_S):
            await met(broken)
        await asyncio.to_thread(engine.client.pinned.c.insert_one, {})
        assert sorted(await ends) == ["SourceUnavailable", "insert"]
        await asyncio.gather(breaks.close(), lasts.close())
    engine.client.drop_database("pinned")


async def first_end(stream: ChangeStream) -> str:
    try:
        return (await next_change(stream)).operation
    except SourceError as error:
        return type(error).__name__


async def test_streams_end_with_their_client(proxy: EngineProxy) -> None:
    async with source_at(proxy.uri) as source:
        stream = await opened(source)
        await source.close()
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(SourceUnavailable):
                await next_change(stream)
            await stream.close()


async def test_an_operator_may_have_it_compressed(engine: Engine) -> None:
    """Requests, and with them the replies of a server, which compresses what was asked so."""
    with EngineProxy(engine.port, speaks_zlib=True) as proxy:
        async with source_at(f"{proxy.uri}&compressors=zlib") as source:
            stream = await opened(source)
            before = proxy.compressed
            engine.client.pinned.c.insert_one({"x": "y" * 1000})
            body = (await next_change(stream)).body()
            assert body.full_document is not None
            assert body.full_document["x"] == "y" * 1000
            assert proxy.compressed > before
            await stream.close()
    engine.client.drop_database("pinned")


@pytest.mark.parametrize("count", [1, 2_500])
async def test_what_the_first_answer_brings_is_read_first(engine: Engine, count: int) -> None:
    async with source_at(engine.uri) as source:
        start = boundary(await source.operation_time())
        engine.client.pinned.c.insert_many([{"_id": number} for number in range(count)])
        stream = await source.open(SCOPE, start)
        found: list[object] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < count:
                found += [
                    (change.body().document_key or {})["_id"] for change in (await stream.read()).changes
                ]
        assert found == list(range(count))
        await stream.close()
    engine.client.drop_database("pinned")
