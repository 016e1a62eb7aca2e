"""What `ports.DocumentSource` and `ports.DocumentCursor` promise, of the in-memory source and of the MongoDB adapter
with each driver; then what the adapter does with faults that only a server can have."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import bson
import pytest
from bson import Timestamp
from bson.raw_bson import RawBSONDocument

from feedsvc.adapters.mongo import MongoSource
from feedsvc.adapters.mongo.clients import Driver
from feedsvc.core.changes import Document, Namespace
from feedsvc.core.positions import timestamp_parts
from feedsvc.ports import DocumentCursor, EventUnavailable, SourceRefused, SourceUnavailable
from feedsvc.testing import MemoryOplog, MemorySource
from tests.adapters.conftest import AWAIT_S, World
from tests.support.engine import URI_VARIABLE, Engine, forget_driver_sockets
from tests.support.proxy import EngineProxy, Fault

MANY = 410
"""More than two batches of either source."""
PATIENCE_S = 20
SOCKET_S = 0.4


@pytest.fixture(scope="module")
def own_engine() -> Iterator[Engine]:
    """Nobody else has a cursor on it, and it may be stopped."""
    engine = Engine(sync_on_commit=False).start()
    engine.client.d.c.insert_many([{"_id": number, "a": "x" * 100} for number in range(MANY)])
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def mongodb_uri(own_engine: Engine) -> str:
    """In place of the shared engine, which syncs each write."""
    return os.environ.get(URI_VARIABLE) or own_engine.uri


@asynccontextmanager
async def found(
    world: World, query: Document | None = None, *, after: int | None = None, collection: str = "c"
) -> AsyncIterator[DocumentCursor]:
    time_now = await world.source.operation_time() if after is None else after
    cursor = await world.source.find(Namespace(world.database, collection), query or {}, time_now)
    try:
        yield cursor
    finally:
        await cursor.close()


async def everything(cursor: DocumentCursor) -> list[Document]:
    documents: list[Document] = []
    async with asyncio.timeout(PATIENCE_S):
        while read := await cursor.read():
            documents.extend(read)
    return documents


# Every source


async def test_it_finds_every_document_that_the_query_matches(world: World) -> None:
    world.insert("c", 1, 2, 3)
    world.update("c", 2, a=True)
    world.replace("c", 3, a=None)
    world.insert("other", 4)
    async with found(world) as cursor:
        assert sorted((await everything(cursor)), key=lambda document: document["_id"]) == [
            {"_id": 1},
            {"_id": 2, "a": True},
            {"_id": 3, "a": None},
        ]
    async with found(world, {"a": {"$exists": True}, "_id": {"$ne": 3}}) as cursor:
        assert await everything(cursor) == [{"_id": 2, "a": True}]


async def test_documents_come_in_several_reads_and_then_no_more(world: World) -> None:
    """Once each, while nobody writes; a read behind the end is empty again."""
    world.transaction("c", *range(MANY))
    async with found(world) as cursor:
        first = await cursor.read()
        assert 0 < len(first) < MANY
        rest = await everything(cursor)
        assert sorted(document["_id"] for document in [*first, *rest]) == list(range(MANY))
        assert list(await cursor.read()) == []


async def test_a_collection_that_does_not_exist_is_empty(world: World) -> None:
    async with found(world, collection="nothing") as cursor:
        assert list(await cursor.read()) == []


async def test_nothing_is_older_than_the_time_asked_for(world: World) -> None:
    """Each write is seen by the find that is asked to see it."""
    world.insert("c", 0)
    for number in range(1, 20):
        world.update("c", 0, a=number)
        async with found(world) as cursor:
            assert await everything(cursor) == [{"_id": 0, "a": number}]


async def test_what_is_written_behind_a_read_may_come_but_no_torn_document_does(world: World) -> None:
    """Each document comes in a state that it had at or after the time asked for."""
    world.transaction("c", *range(MANY))
    async with found(world) as cursor:
        seen = list(await cursor.read())
        world.update("c", 0, a=1)
        world.update("c", MANY - 1, a=1)
        world.delete("c", MANY - 2)
        seen += await everything(cursor)
    states = {document["_id"]: document for document in seen}
    assert states.keys() >= set(range(MANY - 2))
    assert states[MANY - 1] in ({"_id": MANY - 1}, {"_id": MANY - 1, "a": 1})


@pytest.mark.parametrize("end", ["drop", "rename"])
async def test_a_collection_that_ends_under_a_find_fails_it(world: World, end: str) -> None:
    """What was read by then must not pass for all there is."""
    world.transaction("c", *range(MANY))
    async with found(world) as cursor:
        await cursor.read()
        if end == "drop":
            world.drop("c")
        else:
            world.rename("c", "d")
        with pytest.raises(SourceUnavailable):
            await everything(cursor)
        with pytest.raises(SourceUnavailable):
            await cursor.read()


async def test_a_closed_cursor_reads_no_more(world: World) -> None:
    """And closes again."""
    world.insert("c", 1)
    for reads in (0, 1):
        async with found(world) as cursor:
            for _ in range(reads):
                await cursor.read()
            await cursor.close()
            with pytest.raises(SourceUnavailable):
                await cursor.read()


# In memory: an instance that lags


async def test_a_find_waits_until_its_time_is_visible() -> None:
    oplog = MemoryOplog()
    oplog.insert("d", "c", {"_id": 1})
    source = MemorySource(oplog)
    source.see_only(oplog.end)
    after = oplog.insert("d", "c", {"_id": 2})
    cursor = source.find_now(Namespace("d", "c"), {}, after)
    assert cursor.poll() is None
    read = asyncio.ensure_future(cursor.read())
    oplog.insert("d", "c", {"_id": 3})
    source.see_only(oplog.end - 1)
    assert await read == [{"_id": 1}, {"_id": 2}]
    assert source.open_cursors == 1
    await cursor.close()
    await cursor.close()
    assert source.open_cursors == 0


# The adapter: what is asked, and what a server answers


class Seen(Fault):
    """Answers nothing; keeps what is asked."""

    def __init__(self, command: str) -> None:
        super().__init__(command, None)
        self.commands: list[Mapping[str, Any]] = []

    def takes(self, command: Mapping[str, Any]) -> bool:
        if self._command in command:
            self.commands.append(command)
        return False


class Answer(Fault):
    """Answers a find with these documents and the end."""

    def __init__(self, *raw: bytes) -> None:
        super().__init__("find", None, collection="c")
        self._raw = raw

    @property
    def reply(self) -> dict[str, Any]:
        batch = [RawBSONDocument(raw) for raw in self._raw]
        return {"ok": 1.0, "cursor": {"id": bson.Int64(0), "ns": "d.c", "firstBatch": batch}}


@asynccontextmanager
async def source_of(uri: str, driver: Driver, **options: Any) -> AsyncIterator[MongoSource]:
    source = MongoSource(uri, driver=driver, max_streams=4, await_s=AWAIT_S, **options)
    await source.start()
    yield source
    await source.close()


@asynccontextmanager
async def proxied(engine: Engine, driver: Driver) -> AsyncIterator[tuple[MongoSource, EngineProxy]]:
    with EngineProxy(engine.port) as proxy:
        async with source_of(proxy.uri, driver) as source:
            yield source, proxy


NAMESPACE = Namespace("d", "c")


def open_cursors(engine: Engine) -> int:
    total: int = engine.client.admin.command("serverStatus")["metrics"]["cursor"]["open"]["total"]
    return total


async def test_a_find_is_causal_majority_and_simple(own_engine: Engine, driver: Driver) -> None:
    """In one session that has seen `after`, and with no wish of its own for an order, an index or a time limit."""
    async with proxied(own_engine, driver) as (source, proxy):
        finds, more = Seen("find"), Seen("getMore")
        proxy.faults = [finds, more]
        after = await source.operation_time()
        cursor = await source.find(NAMESPACE, {"_id": {"$gte": 0}}, after)
        assert len(await everything(cursor)) == MANY
        await cursor.close()
    (find,) = finds.commands
    asked = {name: find[name] for name in ("filter", "readConcern", "collation", "batchSize")}
    assert asked == {
        "filter": {"_id": {"$gte": 0}},
        "readConcern": {"level": "majority", "afterClusterTime": Timestamp(*timestamp_parts(after))},
        "collation": {"locale": "simple"},
        "batchSize": 200,
    }
    assert not find.keys() & {"sort", "hint", "maxTimeMS", "noCursorTimeout", "allowDiskUse"}
    assert [each["lsid"] for each in more.commands] == [find["lsid"]] * 2


async def test_no_cursor_stays_at_the_server(own_engine: Engine, driver: Driver) -> None:
    """Read to the end, closed in the middle, or never read."""
    async with source_of(own_engine.uri, driver) as source:
        for reads in (0, 1, 10):
            cursor = await source.find(NAMESPACE, {}, await source.operation_time())
            for _ in range(reads):
                await cursor.read()
            assert open_cursors(own_engine) == (1 if reads == 1 else 0)
            await cursor.close()
            assert open_cursors(own_engine) == 0


@pytest.mark.parametrize("command", ["find", "getMore"])
async def test_what_may_be_tried_again_is_unavailable(
    own_engine: Engine, driver: Driver, command: str
) -> None:
    """Killed cursors, snapshots that are too old, a clock that is behind, a connection that is cut; and the codes that
    mean a lost position to a stream, for a find has none."""
    async with proxied(own_engine, driver) as (source, proxy):
        for code in (43, 72, 136, 175, 237, 239, 286, 11600, None):
            cursor = await source.find(NAMESPACE, {}, await source.operation_time())
            fault = Fault(command, code, collection="c")
            proxy.faults = [fault]
            for _ in range(2):
                with pytest.raises(SourceUnavailable):
                    await everything(cursor)
            assert fault.hits in (1, 2)  # the driver itself tries a find twice, never a getMore
            await cursor.close()
            proxy.faults = []


async def test_what_the_user_may_not_read_is_refused(own_engine: Engine, driver: Driver) -> None:
    async with proxied(own_engine, driver) as (source, proxy):
        proxy.faults = [Fault("find", 13, collection="c")]
        cursor = await source.find(NAMESPACE, {}, await source.operation_time())
        with pytest.raises(SourceRefused):
            await cursor.read()
        await cursor.close()


async def test_a_document_that_is_not_bson_is_told_apart(own_engine: Engine, driver: Driver) -> None:
    """Trying again would not help it."""
    whole = bson.encode({"_id": 1, "a": "text"})
    async with proxied(own_engine, driver) as (source, proxy):
        proxy.faults = [Answer(whole, whole.replace(b"text", b"t\xffxt"))]
        cursor = await source.find(NAMESPACE, {}, await source.operation_time())
        for _ in range(2):
            with pytest.raises(EventUnavailable) as caught:
                await cursor.read()
            assert caught.value.code is None
        await cursor.close()


async def test_values_are_those_of_a_change(own_engine: Engine, driver: Driver) -> None:
    """Dates of any year as milliseconds, UUIDs as binary: as `decode.BODY_CODEC` says."""
    raw = bson.encode(
        {"_id": 1, "far": bson.DatetimeMS(2**60), "id": bson.Binary(b"\1" * 16, 4), "l": bson.Int64(1)}
    )
    async with proxied(own_engine, driver) as (source, proxy):
        proxy.faults = [Answer(raw)]
        cursor = await source.find(NAMESPACE, {}, await source.operation_time())
        (document,) = await cursor.read()
        await cursor.close()
    assert [type(value) for value in document.values()] == [int, bson.DatetimeMS, bson.Binary, bson.Int64]


async def test_large_documents_are_decoded_a_few_at_a_time(own_engine: Engine, driver: Driver) -> None:
    """However many came in one reply."""
    raw = [bson.encode({"_id": number, "a": "x" * 100_000}) for number in range(7)]
    async with proxied(own_engine, driver) as (source, proxy):
        proxy.faults = [Answer(*raw)]
        cursor = await source.find(NAMESPACE, {}, await source.operation_time())
        assert [len(await cursor.read()) for _ in range(4)] == [3, 3, 1, 0]
        await cursor.close()


@pytest.mark.parametrize("reads", [0, 1])
async def test_a_server_that_hangs_is_noticed(own_engine: Engine, driver: Driver, reads: int) -> None:
    """Before the find or in the middle: the read fails after the socket's time-out, and closing ends as well."""
    async with source_of(own_engine.uri, driver, socket_s=SOCKET_S, server_selection_s=SOCKET_S) as source:
        cursor = await source.find(NAMESPACE, {}, await source.operation_time())
        for _ in range(reads):
            await cursor.read()
        own_engine.pause()
        try:
            began = time.monotonic()
            with pytest.raises(SourceUnavailable):
                await everything(cursor)
            await cursor.close()
            assert time.monotonic() - began < PATIENCE_S / 2
        finally:
            own_engine.resume()


async def test_closing_does_not_wait_for_a_server_that_hangs(own_engine: Engine, driver: Driver) -> None:
    """The cursor is then left to the server."""
    async with source_of(own_engine.uri, driver, socket_s=PATIENCE_S) as source:
        cursor = await source.find(NAMESPACE, {}, await source.operation_time())
        await cursor.read()
        own_engine.pause()
        try:
            began = time.monotonic()
            await cursor.close()
            assert time.monotonic() - began < PATIENCE_S / 4
        finally:
            own_engine.resume()


async def test_a_server_that_is_gone_is_noticed(own_engine: Engine, driver: Driver) -> None:
    async with source_of(own_engine.uri, driver, server_selection_s=SOCKET_S) as source:
        cursor = await source.find(NAMESPACE, {}, await source.operation_time())
        await cursor.read()
        own_engine.kill()
        try:
            with pytest.raises(SourceUnavailable):
                await everything(cursor)
            await cursor.close()
        finally:
            own_engine.restart()
    forget_driver_sockets()
