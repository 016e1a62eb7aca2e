"""The driver opens nothing again by itself: one failure is one error for the reader, and no `aggregate` is sent twice.

What is replaced is private to the driver, so this is asked of the driver itself, through a proxy that counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import get_args

import pytest

from feedsvc.adapters.mongo import MongoSource
from feedsvc.adapters.mongo.clients import Driver
from feedsvc.adapters.mongo.split import STAGE
from feedsvc.core.changes import Change, TailScope
from feedsvc.core.positions import boundary
from feedsvc.ports import PositionLost, SourceError, SourceUnavailable
from tests.adapters.conftest import changes_or_error
from tests.support.engine import Engine
from tests.support.proxy import EngineProxy, Fault

CODES = [43, 91, 133, 189, 234, 10107, 11600, None]
"""All of those that a driver would resume from; None closes the connection."""

SCOPE = TailScope("collection", "supervised", "c")
every_driver = pytest.mark.parametrize("driver", get_args(Driver))
every_code = pytest.mark.parametrize("code", CODES)


@asynccontextmanager
async def source_of(proxy: EngineProxy, driver: Driver) -> AsyncIterator[MongoSource]:
    source = MongoSource(proxy.uri, max_streams=2, await_s=0.1, driver=driver)
    await source.start()
    yield source
    await source.close()


@every_driver
@every_code
async def test_a_failed_read_is_an_error_and_not_a_resume(
    proxy: EngineProxy, driver: Driver, code: int | None
) -> None:
    """With MongoDB's label too, which asks drivers to resume; the same stream cannot be read again."""
    async with source_of(proxy, driver) as source:
        stream = await source.open(SCOPE, boundary(await source.operation_time()))
        proxy.faults = [Fault("getMore", code, collection="c", labels=["ResumableChangeStreamError"])]
        with pytest.raises(SourceUnavailable):
            await changes_or_error(stream)
        proxy.faults = []
        with pytest.raises(SourceUnavailable):
            await stream.read()
        await stream.close()
    assert len(proxy.opened) == 1


@every_driver
@every_code
async def test_a_failed_open_is_sent_once(proxy: EngineProxy, driver: Driver, code: int | None) -> None:
    async with source_of(proxy, driver) as source:
        proxy.faults = [Fault("aggregate", code)]
        with pytest.raises(SourceUnavailable):
            await source.open(SCOPE, boundary(await source.operation_time()))
    assert len(proxy.opened) == 1


@every_driver
async def test_a_server_that_is_not_primary_is_asked_again_within_a_second(
    proxy: EngineProxy, driver: Driver
) -> None:
    """All streams and reads share what is known of the server; a monitor that waits for news would stop them."""
    async with source_of(proxy, driver) as source:
        now = boundary(await source.operation_time())
        proxy.faults = [Fault("aggregate", 10107, times=1)]
        with pytest.raises(SourceUnavailable):
            await source.open(SCOPE, now)
        began = asyncio.get_running_loop().time()
        await (await source.open(SCOPE, now)).close()
        assert asyncio.get_running_loop().time() - began < 2


@every_driver
@pytest.mark.parametrize("code", [43, 91, 133, 136, 189, 280, 286, 10107, 11600, None])
async def test_an_oplog_that_cannot_be_read_says_nothing_about_a_position(
    proxy: EngineProxy, driver: Driver, code: int | None
) -> None:
    """Not even with the codes that lose one when a stream is answered so."""
    async with source_of(proxy, driver) as source:
        now = boundary(await source.operation_time())
        proxy.faults = [Fault("find", code, collection="oplog.rs")]
        with pytest.raises(SourceUnavailable):
            await source.open(SCOPE, now)
        with pytest.raises(SourceUnavailable):
            await source.oplog_window()


async def test_an_oplog_that_may_not_be_read_is_trusted(proxy: EngineProxy) -> None:
    async with source_of(proxy, "pymongo") as source:
        now = boundary(await source.operation_time())
        proxy.faults = [Fault("find", 13, collection="oplog.rs")]
        await (await source.open(SCOPE, now)).close()
        assert await source.oplog_window() is None


# Large events


@every_driver
async def test_streams_ask_for_large_events_in_fragments(proxy: EngineProxy, driver: Driver) -> None:
    async with source_of(proxy, driver) as source:
        await (await source.open(SCOPE, boundary(await source.operation_time()))).close()
    assert [command["pipeline"][1:] for command in proxy.opened] == [[STAGE]]


async def test_a_server_that_does_not_know_the_stage_is_asked_for_it_once(proxy: EngineProxy) -> None:
    proxy.faults = [Fault("aggregate", 40324, stage="$changeStreamSplitLargeEvent")]
    async with source_of(proxy, "pymongo") as source:
        now = boundary(await source.operation_time())
        for _ in range(2):
            await (await source.open(SCOPE, now)).close()
    assert [len(command["pipeline"]) for command in proxy.opened] == [2, 1, 1]


@pytest.mark.parametrize(
    "code, expected", [(286, PositionLost), (40324, SourceError), (91, SourceUnavailable)]
)
async def test_an_error_that_has_nothing_to_do_with_the_stage_does_not_give_it_up(
    proxy: EngineProxy, code: int, expected: type[SourceError]
) -> None:
    """Nor one that comes without the stage as well."""
    async with source_of(proxy, "pymongo") as source:
        now = boundary(await source.operation_time())
        proxy.faults = [Fault("aggregate", code)]
        with pytest.raises(expected):
            await source.open(SCOPE, now)
        proxy.faults = []
        await (await source.open(SCOPE, now)).close()
    assert len(proxy.opened[-1]["pipeline"]) == 2


@every_driver
async def test_an_event_in_fragments_comes_whole_and_is_resumed_behind(
    engine: Engine, driver: Driver
) -> None:
    """SRC-02: 9 MB replaced by 9 MB, with both images; then a small insert, also after the large event's position."""
    database = engine.client[f"large_{driver}"]
    database.create_collection("c", changeStreamPreAndPostImages={"enabled": True})
    scope = TailScope("collection", database.name, "c")
    source = MongoSource(engine.uri, max_streams=2, await_s=0.1, driver=driver)
    await source.start()
    start = boundary(await source.operation_time())
    before, after = "b" * 9_000_000, "a" * 9_000_000
    database.c.insert_one({"_id": 1, "x": before})
    database.c.update_one({"_id": 1}, {"$set": {"x": after}})
    database.c.insert_one({"_id": 2})
    stream = await source.open(scope, start)
    changes: list[Change] = []
    while len(changes) < 3:
        changes += await changes_or_error(stream)
    await stream.close()
    large = changes[1]
    assert large.size_bytes > 16 << 20
    body = large.body()
    assert body.before == {"_id": 1, "x": before}
    assert body.update_description is not None
    assert body.update_description["updatedFields"] == {"x": after}
    assert [change.operation for change in changes] == ["insert", "update", "insert"]
    resumed = await source.open(scope, large.position)
    assert [change.position for change in await changes_or_error(resumed)] == [changes[2].position]
    await resumed.close()
    await source.close()
    engine.client.drop_database(database.name)
