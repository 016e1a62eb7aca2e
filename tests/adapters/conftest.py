"""The worlds of the source contract: the same few operations on an in-memory oplog and on a real engine, which each
driver reads in turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, Protocol, get_args

import pytest
from bson import Timestamp
from pymongo import MongoClient

from feedsvc.adapters.mongo import MongoSource
from feedsvc.adapters.mongo.clients import Driver
from feedsvc.core.changes import Change
from feedsvc.core.positions import timestamp_parts
from feedsvc.ports import ChangeSource, ChangeStream, DocumentSource
from feedsvc.testing import MemoryOplog, MemorySource
from tests.support.engine import Engine
from tests.support.proxy import EngineProxy

AWAIT_S = 0.1
PATIENCE_S = 20
DRIVERS: tuple[Driver, ...] = get_args(Driver)


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> Driver:
    name: Driver = request.param
    return name


@pytest.fixture
def proxy(engine: Engine) -> Iterator[EngineProxy]:
    with EngineProxy(engine.port) as proxy:
        yield proxy


async def changes_or_error(stream: ChangeStream) -> list[Change]:
    """The next changes of a stream, which an error or long silence takes the place of."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            batch = await stream.read()
            if batch.changes:
                return batch.changes


class Source(ChangeSource, DocumentSource, Protocol):
    """Both ports that a database is read through."""


class World(Protocol):
    """A database to write into and a source that reads it. `database` is fresh; "elsewhere" is another one."""

    database: str

    @property
    def source(self) -> Source: ...

    def tick(self) -> None: ...
    def create(self, collection: str, *, images: bool) -> None: ...
    def switch_images(self, collection: str, *, images: bool) -> None: ...
    def insert(self, collection: str, *ids: int) -> None: ...
    def insert_elsewhere(self) -> None: ...
    def update(self, collection: str, document_id: int, **fields: Any) -> None: ...
    def replace(self, collection: str, document_id: int, **fields: Any) -> None: ...
    def delete(self, collection: str, document_id: int) -> None: ...
    def transaction(self, collection: str, *ids: int) -> None: ...
    def drop(self, collection: str) -> None: ...
    def rename(self, collection: str, to: str) -> None: ...
    def drop_database(self) -> None: ...
    def trim(self, past: int) -> None: ...


class MemoryWorld:
    def __init__(self, database: str) -> None:
        self.oplog = MemoryOplog(images=False)
        self.source = MemorySource(self.oplog)
        self.database = database

    def tick(self) -> None:
        self.oplog.tick()

    def create(self, collection: str, *, images: bool) -> None:
        self.oplog.create(self.database, collection, images=images)

    def switch_images(self, collection: str, *, images: bool) -> None:
        self.oplog.create(self.database, collection, images=images)

    def insert(self, collection: str, *ids: int) -> None:
        for document_id in ids:
            self.oplog.insert(self.database, collection, {"_id": document_id})

    def insert_elsewhere(self) -> None:
        self.oplog.insert(f"{self.database}_elsewhere", "x", {"_id": self.oplog.end})

    def update(self, collection: str, document_id: int, **fields: Any) -> None:
        self.oplog.update(self.database, collection, document_id, fields)

    def replace(self, collection: str, document_id: int, **fields: Any) -> None:
        self.oplog.replace(self.database, collection, {"_id": document_id, **fields})

    def delete(self, collection: str, document_id: int) -> None:
        self.oplog.delete(self.database, collection, document_id)

    def transaction(self, collection: str, *ids: int) -> None:
        with self.oplog.transaction():
            self.insert(collection, *ids)

    def drop(self, collection: str) -> None:
        self.oplog.drop(self.database, collection)

    def rename(self, collection: str, to: str) -> None:
        self.oplog.rename(self.database, collection, to)

    def drop_database(self) -> None:
        self.oplog.drop_database(self.database)

    def trim(self, past: int) -> None:
        while self.oplog.entry(self.oplog.first).cluster_time <= past:
            self.oplog.tick()
            self.oplog.trim(1_000)


class EngineWorld:
    def __init__(
        self, database: str, source: MongoSource, client: MongoClient[dict[str, Any]], rolls: Engine | None
    ):
        self.source = source
        self.database = database
        self._client = client
        self._db = client[database]
        self._rolls = rolls

    def tick(self) -> None:
        """The engine writes a noop every second."""

    def create(self, collection: str, *, images: bool) -> None:
        options: dict[str, Any] = {"changeStreamPreAndPostImages": {"enabled": True}} if images else {}
        self._db.create_collection(collection, **options)

    def switch_images(self, collection: str, *, images: bool) -> None:
        self._db.command({"collMod": collection, "changeStreamPreAndPostImages": {"enabled": images}})

    def insert(self, collection: str, *ids: int) -> None:
        for document_id in ids:
            self._db[collection].insert_one({"_id": document_id})

    def insert_elsewhere(self) -> None:
        self._client[f"{self.database}_elsewhere"].x.insert_one({})

    def update(self, collection: str, document_id: int, **fields: Any) -> None:
        self._db[collection].update_one({"_id": document_id}, {"$set": fields})

    def replace(self, collection: str, document_id: int, **fields: Any) -> None:
        self._db[collection].replace_one({"_id": document_id}, fields)

    def delete(self, collection: str, document_id: int) -> None:
        self._db[collection].delete_one({"_id": document_id})

    def transaction(self, collection: str, *ids: int) -> None:
        with self._client.start_session() as session, session.start_transaction():
            self._db[collection].insert_many([{"_id": document_id} for document_id in ids], session=session)

    def drop(self, collection: str) -> None:
        self._db[collection].drop()

    def rename(self, collection: str, to: str) -> None:
        self._db[collection].rename(to, dropTarget=True)

    def drop_database(self) -> None:
        self._client.drop_database(self.database)

    def trim(self, past: int) -> None:
        assert self._rolls is not None, "this world's oplog is not small"
        self._rolls.roll_oplog(Timestamp(*timestamp_parts(past)))


@pytest.fixture(params=["memory", *DRIVERS])
async def world(request: pytest.FixtureRequest, fresh_database: str) -> AsyncIterator[World]:
    """A world without trimming."""
    if request.param == "memory":
        yield MemoryWorld(fresh_database)
        return
    uri = request.getfixturevalue("mongodb_uri")
    async for each in _engine_world(request.param, fresh_database, uri, None):
        yield each


@pytest.fixture(scope="session")
def small_engine() -> Iterator[Engine]:
    """An engine whose oplog can be made to expire."""
    engine = Engine(oplog_max_entries=500).start()
    yield engine
    engine.stop()


@pytest.fixture(params=["memory", *DRIVERS])
async def trimmed_world(request: pytest.FixtureRequest, fresh_database: str) -> AsyncIterator[World]:
    """A world whose `trim` works."""
    if request.param == "memory":
        yield MemoryWorld(fresh_database)
        return
    small: Engine = request.getfixturevalue("small_engine")
    async for each in _engine_world(request.param, fresh_database, small.uri, small):
        yield each


async def _engine_world(
    driver: Driver, database: str, uri: str, rolls: Engine | None
) -> AsyncIterator[World]:
    source = MongoSource(uri, driver=driver, max_streams=16, await_s=AWAIT_S)
    await source.start()
    with MongoClient[dict[str, Any]](uri) as client:
        yield EngineWorld(database, source, client, rolls)
        client.drop_database(database)
        client.drop_database(f"{database}_elsewhere")
    await source.close()
