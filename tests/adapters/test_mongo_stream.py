"""What the reader behind a stream does with errors, bounds, cancellation and closing.

The upstream is scripted where its answers must come in an exact order; what a dead, frozen or restarted server does
is seen on the engine.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import bson
import pytest
from bson import Timestamp
from pymongo.errors import AutoReconnect, OperationFailure

from feedsvc.adapters.mongo import MongoSource
from feedsvc.adapters.mongo.clients import Driver
from feedsvc.adapters.mongo.seek import Seek
from feedsvc.adapters.mongo.stream import BUFFER_BYTES, BUFFER_CHANGES, MongoStream
from feedsvc.core.changes import ScopeLevel, TailScope
from feedsvc.core.positions import Position, PositionKind, boundary, record_position
from feedsvc.ports import Batch, EventUnavailable, PositionLost, SourceUnavailable
from tests.support.engine import Engine, forget_driver_sockets

PATIENCE_S = 20
IDLE = None


class ScriptedUpstream:
    """A driver's change stream that answers from a list, then idles until it is closed."""

    def __init__(self, *answers: bytes | Exception | None, ends: bool = False) -> None:
        self._answers = list(answers)
        self._ends = ends
        self.asked = 0
        self.exhausted = asyncio.Event()
        self.closed = False
        self.resume_token: dict[str, Any] | None = None
        self.swallow_cancellations = 0

    @property
    def alive(self) -> bool:
        return bool(self._answers) or not self._ends

    async def try_next(self) -> bytes | None:
        self.asked += 1
        if self._answers:
            answer = self._answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        self.exhausted.set()
        while True:
            try:
                await asyncio.sleep(0.01)
                return None
            except asyncio.CancelledError:
                if self.swallow_cancellations == 0:
                    raise
                self.swallow_cancellations -= 1

    async def close(self) -> None:
        self.closed = True


def event(number: int, operation: str = "insert", size: int = 0) -> bytes:
    document = {
        "_id": {"_data": f"82{number:016X}"},
        "operationType": operation,
        "clusterTime": Timestamp(0, number),
        "fullDocument": {"pad": b"x" * size},
    }
    if operation != "invalidate":
        document["ns"] = {"db": "d", "coll": "c"}
    return bson.encode(document)


@asynccontextmanager
async def reading(
    upstream: ScriptedUpstream, level: ScopeLevel = "collection", seek: Seek | None = None
) -> AsyncIterator[MongoStream]:
    stream = MongoStream(upstream, level, boundary(0), await_s=0.1, seek=seek)
    try:
        yield stream
    finally:
        await stream.close()


def times(batch: Batch) -> list[int]:
    return [change.position.cluster_time for change in batch.changes]


async def test_all_that_is_there_is_one_batch() -> None:
    async with reading(ScriptedUpstream(event(1), event(2), event(3))) as stream:
        assert times(await stream.read()) == [1, 2, 3]


async def test_records_before_an_error_come_first() -> None:
    """Then each read raises it, and the cursor is released without waiting for `close`."""
    upstream = ScriptedUpstream(event(1), OperationFailure("gone", 286))
    async with reading(upstream) as stream:
        assert times(await stream.read()) == [1]
        for _ in range(2):
            with pytest.raises(PositionLost) as caught:
                await stream.read()
            assert caught.value.history
    assert upstream.closed


async def test_an_event_that_cannot_be_read_is_an_error_after_the_records_before_it() -> None:
    broken = bson.encode({"_id": {"_data": "82"}, "operationType": "insert"})
    async with reading(ScriptedUpstream(event(1), broken)) as stream:
        assert times(await stream.read()) == [1]
        with pytest.raises(EventUnavailable):
            await stream.read()


async def test_a_drop_waits_for_its_invalidate() -> None:
    """An idle batch in between must not split the pair into two batches."""
    upstream = ScriptedUpstream(event(1), event(2, "drop"), event(2, "invalidate"), ends=True)
    async with reading(upstream) as stream:
        batch = await stream.read()
        assert [change.operation for change in batch.changes] == ["insert", "drop", "invalidate"]
        assert batch.ended
        assert (await stream.read()).ended


async def test_a_drop_whose_invalidate_fails_is_not_given() -> None:
    """It will be read again, together with its invalidate, from the position before it."""
    async with reading(ScriptedUpstream(event(1), event(2, "drop"), AutoReconnect(""))) as stream:
        assert times(await stream.read()) == [1]
        with pytest.raises(SourceUnavailable):
            await stream.read()


async def test_an_end_without_an_invalidate_is_an_error() -> None:
    """A killed cursor looks like an end; the position is not lost."""
    async with reading(ScriptedUpstream(event(1), ends=True)) as stream:
        assert times(await stream.read()) == [1]
        with pytest.raises(SourceUnavailable):
            await stream.read()


async def test_a_record_behind_an_unread_boundary_makes_it_void() -> None:
    upstream = ScriptedUpstream(IDLE, event(9))
    upstream.resume_token = {"_data": f"82{5:016X}"}
    async with reading(upstream) as stream:
        await upstream.exhausted.wait()
        batch = await stream.read()
        assert times(batch) == [9]
        assert batch.boundary is None


async def test_a_stream_that_is_sought_gives_no_boundary_before_it_is_found() -> None:
    wanted = Position(
        PositionKind.EVENT, 5, None, record_position(PositionKind.EVENT, 5, f"82{5:016X}").digest
    )
    upstream = ScriptedUpstream(event(3), IDLE, event(5), event(6))
    upstream.resume_token = {"_data": f"82{4:016X}"}
    async with reading(upstream, seek=Seek(wanted)) as stream:
        batch = await stream.read()
        while not batch.changes:
            assert batch.boundary is None
            batch = await stream.read()
        assert times(batch) == [6]


def fragments(number: int, count: int) -> list[bytes]:
    """A large event at cluster time `number`; its tokens name later times, which must not be believed."""
    whole = bson.decode(event(number))
    pieces: list[dict[str, Any]] = [{} for _ in range(count)]
    for place, (name, value) in enumerate(whole.items()):
        pieces[place % count][name] = value
    return [
        bson.encode(
            {
                **piece,
                "_id": {"_data": f"82{number:016X}{place:02X}"},
                "splitEvent": {"fragment": place, "of": count},
            }
        )
        for place, piece in enumerate(pieces, 1)
    ]


async def test_a_large_event_in_fragments_is_one_change_with_the_last_token() -> None:
    """Empty batches in between are signs of life, but name no position: it would be in the middle of the event."""
    first, second, last = fragments(5, 3)
    upstream = ScriptedUpstream(event(4), first, IDLE, second, IDLE, last, event(6))
    upstream.resume_token = {"_data": f"82{9:016X}"}
    async with reading(upstream) as stream:
        positions: list[Position] = []
        while len(positions) < 3:
            batch = await stream.read()
            assert batch.boundary is None
            positions += [change.position for change in batch.changes]
    assert [position.data for position in positions] == [
        f"82{4:016X}",
        f"82{5:016X}03",
        f"82{6:016X}",
    ]


async def test_a_stream_that_idles_in_the_middle_of_an_event_is_alive_without_a_position() -> None:
    upstream = ScriptedUpstream(fragments(5, 2)[0])
    upstream.resume_token = {"_data": f"82{9:016X}"}
    async with reading(upstream) as stream:
        for _ in range(3):
            assert await stream.read() == Batch([])


@pytest.mark.parametrize(
    "end, expected",
    [(AutoReconnect(""), SourceUnavailable), (event(6), EventUnavailable), (None, SourceUnavailable)],
    ids=["the connection breaks", "another event follows", "the stream ends"],
)
async def test_half_of_a_large_event_is_never_given(
    end: bytes | Exception | None, expected: type[Exception]
) -> None:
    """It is read again from the position before it, or its loss is told."""
    answers = [event(4), fragments(5, 2)[0], *([end] if end is not None else [])]
    async with reading(ScriptedUpstream(*answers, ends=end is None)) as stream:
        assert times(await stream.read()) == [4]
        with pytest.raises(expected):
            await stream.read()


@pytest.mark.parametrize("size, bound", [(0, BUFFER_CHANGES), (1 << 20, BUFFER_BYTES >> 20)])
async def test_the_buffer_is_bounded(size: int, bound: int) -> None:
    """Without a reader the upstream is asked no more often than the bound, in records or in bytes."""
    upstream = ScriptedUpstream(*(event(number, size=size) for number in range(1, bound + 50)))
    async with reading(upstream) as stream:
        for _ in range(bound):
            await asyncio.sleep(0)
        assert upstream.asked == bound
        got: list[int] = []
        while len(got) < bound + 49:
            got.extend(times(await stream.read()))
        assert got == list(range(1, bound + 50))


async def test_cancellation_is_obeyed_though_the_driver_swallows_it() -> None:
    """When a loop shuts down, the driver takes a cancellation for a network error and resumes."""
    upstream = ScriptedUpstream()
    upstream.swallow_cancellations = 1
    stream = MongoStream(upstream, "collection", boundary(0), await_s=0.1)
    await upstream.exhausted.wait()
    (task,) = (task for task in asyncio.all_tasks() if task.get_name() == "feedsvc-stream-reader")
    task.cancel()
    await asyncio.wait({task}, timeout=PATIENCE_S)
    assert task.done()
    await stream.read()
    with pytest.raises(SourceUnavailable):
        await stream.read()


LEAVES_A_STREAM_OPEN = """
import asyncio, sys
from feedsvc.adapters.mongo import MongoSource
from feedsvc.core.changes import TailScope
from feedsvc.core.positions import boundary

async def main():
    source = MongoSource(sys.argv[1], driver=sys.argv[2], max_streams=1, await_s=0.1)
    await source.start()
    start = boundary(await source.operation_time())
    await (await source.open(TailScope("deployment"), start)).read()

asyncio.run(main())
"""


def test_a_loop_ends_though_a_stream_is_open(driver: Driver, mongodb_uri: str) -> None:
    """The same with a real driver: a process that is left by an exception must end."""
    command = [sys.executable, "-c", LEAVES_A_STREAM_OPEN, mongodb_uri, driver]
    subprocess.run(command, timeout=PATIENCE_S, check=True)


# A server that fails


@asynccontextmanager
async def own_engine(driver: Driver) -> AsyncIterator[tuple[Engine, MongoSource]]:
    engine = Engine().start()
    source = MongoSource(engine.uri, driver=driver, max_streams=2, await_s=0.1, server_selection_s=0.5)
    await source.start()
    yield engine, source
    await source.close()
    engine.stop()
    forget_driver_sockets()


async def test_a_crash_is_survived_from_the_same_position(driver: Driver) -> None:
    """Killed and started again: the read fails as unavailable, and the position opens as if nothing had been."""
    async with own_engine(driver) as (engine, source):
        scope = TailScope("collection", "d", "c")
        start = boundary(await source.operation_time())
        engine.client.d.c.insert_many([{"_id": 1}, {"_id": 2}])
        stream = await source.open(scope, start)
        first = (await until_changes(stream))[0]
        engine.kill()
        with pytest.raises(SourceUnavailable):
            await until_error(stream)
        await stream.close()
        with pytest.raises(SourceUnavailable):
            await source.open(scope, first.position)
        engine.restart()
        again = await source.open(scope, first.position)
        assert [change.body().document_key for change in await until_changes(again)] == [{"_id": 2}]
        await again.close()


@pytest.mark.parametrize("fault", [{"errorCode": 11600}, {"closeConnection": True}])
async def test_the_driver_resumes_nothing_by_itself(driver: Driver, fault: dict[str, Any]) -> None:
    """One failed `getMore` is an error of the stream, though the next one would succeed."""
    async with own_engine(driver) as (engine, source):
        stream = await source.open(TailScope("deployment"), boundary(await source.operation_time()))
        await stream.read()
        engine.client.admin.command(
            "configureFailPoint",
            "failCommand",
            mode={"times": 1},
            data={"failCommands": ["getMore"], **fault},
        )
        with pytest.raises(SourceUnavailable):
            await until_error(stream)
        await stream.close()


async def test_closing_does_not_wait_for_a_frozen_server(driver: Driver) -> None:
    async with own_engine(driver) as (engine, source):
        stream = await source.open(TailScope("deployment"), boundary(await source.operation_time()))
        await stream.read()
        engine.pause()
        try:
            async with asyncio.timeout(PATIENCE_S / 2):
                await stream.close()
        finally:
            engine.resume()


async def until_changes(stream: MongoStream) -> list[Any]:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            batch = await stream.read()
            if batch.changes:
                return batch.changes


async def until_error(stream: MongoStream) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await stream.read()
