"""The source as a whole, with each driver: what is refused, what is unavailable, and that no answer shows the URI."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from feedsvc.adapters.mongo import MongoSource
from feedsvc.adapters.mongo.clients import Driver, Upstream
from feedsvc.core.changes import TailScope
from feedsvc.core.positions import boundary
from feedsvc.ports import SourceError, SourceRefused, SourceUnavailable
from tests.support.engine import Engine, forget_driver_sockets
from tests.support.fault_proxy import FaultProxy

PATIENCE_S = 10
NOBODY = "mongodb://user:hunter2@127.0.0.1:1/?directConnection=true"


@pytest.fixture(scope="module")
def standalone() -> Iterator[Engine]:
    engine = Engine(standalone=True).start()
    yield engine
    engine.stop()


async def test_a_standalone_is_refused_with_the_reason(driver: Driver, standalone: Engine) -> None:
    source = MongoSource(standalone.uri, driver=driver, max_streams=1)
    await source.start()
    with pytest.raises(SourceRefused, match="replica set"):
        await source.identity()
    await source.close()


async def test_the_identity_is_the_replica_set(driver: Driver, engine: Engine) -> None:
    source = MongoSource(engine.uri, driver=driver, max_streams=1)
    await source.start()
    assert await source.identity() == "secantus"
    await source.close()


@pytest.mark.parametrize(
    "uri", ["mongodb://user:hunter2@", "http://user:hunter2@host", "mongodb://host/?maxPoolSize=x"]
)
async def test_a_bad_uri_is_refused_without_repeating_it(driver: Driver, uri: str) -> None:
    with pytest.raises(SourceError) as caught:
        await MongoSource(uri, driver=driver, max_streams=1).start()
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


async def test_a_server_that_is_not_there_is_unavailable(driver: Driver) -> None:
    """Starting does not wait for it; every call says so, without the URI."""
    source = MongoSource(NOBODY, driver=driver, max_streams=1, server_selection_s=0.1)
    await source.start()
    scope = TailScope("collection", "d", "c")
    for call in (
        source.operation_time,
        source.oplog_window,
        source.identity,
        lambda: source.open(scope, boundary(1)),
    ):
        with pytest.raises(SourceUnavailable) as caught:
            await call()
        assert "hunter2" not in str(caught.value)
        assert "127.0.0.1" not in str(caught.value)
    await source.close()
    forget_driver_sockets()


async def test_before_start_nothing_is_available(driver: Driver) -> None:
    source = MongoSource(NOBODY, driver=driver, max_streams=1)
    with pytest.raises(SourceUnavailable):
        await source.operation_time()
    await source.close()


@pytest.mark.parametrize("database", ["admin", "local", "config", ""])
async def test_a_namespace_that_cannot_be_watched_is_no_batch(
    driver: Driver, engine: Engine, database: str
) -> None:
    """Whatever the server or the driver says to it, it is a `SourceError`."""
    source = MongoSource(engine.uri, driver=driver, max_streams=1, await_s=0.1)
    await source.start()
    if database == "":
        with pytest.raises(SourceError):
            await source.open(TailScope("collection", database, "c"), boundary(await source.operation_time()))
    else:
        stream = await source.open(
            TailScope("collection", database, "c"), boundary(await source.operation_time())
        )
        assert (await stream.read()).changes == []
        await stream.close()
    await source.close()


async def test_streams_that_wait_hold_nothing_up(driver: Driver, engine: Engine, fresh_database: str) -> None:
    """As many streams as allowed, more than Motor's pool has threads, all waiting: the other calls finish meanwhile,
    and the last stream delivers at once (SRC-12)."""
    count = 5 * (os.cpu_count() or 1) + 2
    source = MongoSource(engine.uri, driver=driver, max_streams=count, await_s=8.0)
    await source.start()
    now = boundary(await source.operation_time())
    names = [f"c{number}" for number in range(count)]
    streams = [await source.open(TailScope("collection", fresh_database, name), now) for name in names]
    async with asyncio.timeout(4.0):
        assert await source.operation_time() >= now.cluster_time
        assert await source.oplog_window() is not None
        assert await source.describe(fresh_database, names) == {}
        engine.client[fresh_database][names[-1]].insert_one({"_id": 1})
        while not (changes := (await streams[-1].read()).changes):
            pass
    assert [change.operation for change in changes] == ["insert"]
    for name in names:
        engine.client[fresh_database][name].insert_one({})
    await asyncio.gather(*(stream.close() for stream in streams))
    await source.close()


async def test_closing_does_not_wait_for_a_server_that_hangs(driver: Driver) -> None:
    """Neither for the goodbyes nor for a stream that was left open."""
    engine = Engine().start()
    source = MongoSource(engine.uri, driver=driver, max_streams=1, await_s=0.5)
    await source.start()
    stream = await source.open(TailScope("deployment"), boundary(await source.operation_time()))
    await stream.read()
    await asyncio.gather(*(source.operation_time() for _ in range(3)))
    engine.pause()
    try:
        async with asyncio.timeout(PATIENCE_S):
            await source.close()
            await stream.close()
    finally:
        engine.resume()
        engine.stop()


@pytest.mark.parametrize("option", ["&socketTimeoutMS=700", ";sockettimeoutms=700"])
async def test_the_socket_timeout_of_the_uri_wins(driver: Driver, engine: Engine, option: str) -> None:
    """A stream on a link that carries nothing any more is given up when the operator says so, not after a minute."""
    with FaultProxy(engine.port) as proxy:
        uri = f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true{option}"
        source = MongoSource(uri, driver=driver, max_streams=1, await_s=0.2)
        await source.start()
        stream = await source.open(TailScope("deployment"), boundary(await source.operation_time()))
        await stream.read()
        proxy.half_open()
        async with asyncio.timeout(PATIENCE_S):
            for call in (stream.read, source.operation_time):
                with pytest.raises(SourceUnavailable):
                    await call()
        assert await source.operation_time()
        await stream.close()
        await source.close()
    forget_driver_sockets()


async def test_motor_that_is_not_installed_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] == "motor" or name == "feedsvc.adapters.mongo.motor_clients":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "motor", None)
    with pytest.raises(SourceRefused, match="extra `motor`"):
        await MongoSource(NOBODY, driver="motor", max_streams=1).start()


THREADS_OF_MOTOR = """
from feedsvc.adapters.mongo.clients import connect
import asyncio

async def main():
    clients = connect("motor", "mongodb://127.0.0.1:1/", max_streams=1, max_reads=7, options={})
    import motor.frameworks.asyncio
    print(motor.frameworks.asyncio.max_workers)
    await clients.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("set_by_operator, threads", [({}, 7), ({"MOTOR_MAX_WORKERS": "3"}, 3)])
def test_motor_has_a_thread_for_each_read_unless_the_operator_says_otherwise(
    set_by_operator: dict[str, str], threads: int
) -> None:
    inherited = {name: value for name, value in os.environ.items() if name != "MOTOR_MAX_WORKERS"}
    command = [sys.executable, "-c", THREADS_OF_MOTOR]
    environment = inherited | set_by_operator
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.stdout.strip(), done.stderr) == (str(threads), "")


async def test_a_stream_may_be_asked_to_answer_sooner_but_not_later(
    driver: Driver, engine: Engine, fresh_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = MongoSource(engine.uri, driver=driver, max_streams=1, await_s=0.5)
    await source.start()
    clients = source._started()
    asked: list[int] = []
    watch = clients.watch

    async def noting(scope: TailScope, options: Mapping[str, Any]) -> Upstream:
        asked.append(options["max_await_time_ms"])
        return await watch(scope, options)

    monkeypatch.setattr(clients, "watch", noting)
    for await_s in (None, 0.1, 3.0):
        now = boundary(await source.operation_time())
        stream = await source.open(TailScope("collection", fresh_database, "c"), now, await_s=await_s)
        await stream.close()
    await source.close()
    assert asked == [500, 100, 500]


async def test_a_time_ahead_of_all_entries_opens_behind_the_newest(
    driver: Driver, engine: Engine, fresh_database: str
) -> None:
    """What was there stays untold, an invalidate at the very end, too; what comes next is told."""
    source = MongoSource(engine.uri, driver=driver, max_streams=1, await_s=0.1)
    await source.start()
    numbers = engine.client[fresh_database]["c"]
    for last in (lambda: numbers.insert_one({"_id": 1}), numbers.drop):
        last()
        ahead = boundary(await source.operation_time() + 1)
        stream = await source.open(TailScope("collection", fresh_database, "c"), ahead)
        assert (await stream.read()).changes == []
        numbers.insert_one({"_id": 2})
        while not (changes := (batch := await stream.read()).changes):
            assert not batch.ended
        assert [change.operation for change in changes] == ["insert"]
        assert changes[0].body().document_key == {"_id": 2}
        await stream.close()
    await source.close()
