"""The source as a whole: what is refused, what is unavailable, and that no answer shows the URI."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from feedsvc.adapters.mongo import MongoSource
from feedsvc.core.changes import TailScope
from feedsvc.core.positions import boundary
from feedsvc.ports import SourceError, SourceRefused, SourceUnavailable
from tests.support.engine import Engine, forget_driver_sockets

NOBODY = "mongodb://user:hunter2@127.0.0.1:1/?directConnection=true"


@pytest.fixture(scope="module")
def standalone() -> Iterator[Engine]:
    engine = Engine(standalone=True).start()
    yield engine
    engine.stop()


async def test_a_standalone_is_refused_with_the_reason(standalone: Engine) -> None:
    source = MongoSource(standalone.uri, max_streams=1)
    await source.start()
    with pytest.raises(SourceRefused, match="replica set"):
        await source.identity()
    await source.close()


async def test_the_identity_is_the_replica_set(engine: Engine) -> None:
    source = MongoSource(engine.uri, max_streams=1)
    await source.start()
    assert await source.identity() == "secantus"
    await source.close()


@pytest.mark.parametrize(
    "uri", ["mongodb://user:hunter2@", "http://user:hunter2@host", "mongodb://host/?maxPoolSize=x"]
)
async def test_a_bad_uri_is_refused_without_repeating_it(uri: str) -> None:
    with pytest.raises(SourceError) as caught:
        await MongoSource(uri, max_streams=1).start()
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    """Starting does not wait for it; every call says so, without the URI."""
    source = MongoSource(NOBODY, max_streams=1, server_selection_s=0.1)
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


async def test_before_start_nothing_is_available() -> None:
    source = MongoSource(NOBODY, max_streams=1)
    with pytest.raises(SourceUnavailable):
        await source.operation_time()
    await source.close()


@pytest.mark.parametrize("database", ["admin", "local", "config", ""])
async def test_a_namespace_that_cannot_be_watched_is_no_batch(engine: Engine, database: str) -> None:
    """Whatever the server or the driver says to it, it is a `SourceError`."""
    source = MongoSource(engine.uri, max_streams=1, await_s=0.1)
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


async def test_streams_and_reads_do_not_share_a_pool(engine: Engine) -> None:
    """As many streams as allowed, all waiting, leave the other calls unhindered."""
    source = MongoSource(engine.uri, max_streams=8, await_s=5.0)
    await source.start()
    now = boundary(await source.operation_time())
    streams = [await source.open(TailScope("collection", "pool", f"c{index}"), now) for index in range(8)]
    assert await source.operation_time() >= now.cluster_time
    assert await source.oplog_window() is not None
    for stream in streams:
        engine.client["pool"]["c0"].insert_one({})
        await stream.close()
    await source.close()
