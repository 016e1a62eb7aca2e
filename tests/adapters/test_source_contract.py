"""What `ports.ChangeSource` and `ports.ChangeStream` promise, of the in-memory source and of the MongoDB adapter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import CoroutineType
from typing import get_args

import msgspec
import pytest

from feedsvc.core.changes import Change, ScopeLevel, TailScope
from feedsvc.core.positions import Position, PositionKind, boundary, record_position
from feedsvc.ports import Batch, ChangeStream, PositionLost, SourceUnavailable
from tests.adapters.conftest import World

LEVELS: tuple[ScopeLevel, ...] = get_args(ScopeLevel)
every_scope = pytest.mark.parametrize("level", LEVELS)
PATIENCE_S = 20


def scope(world: World, level: ScopeLevel = "collection", collection: str = "c") -> TailScope:
    if level == "collection":
        return TailScope(level, world.database, collection)
    return TailScope(level, world.database if level == "database" else "")


@asynccontextmanager
async def opened(world: World, at: Position, where: TailScope | None = None) -> AsyncIterator[ChangeStream]:
    stream = await world.source.open(where or scope(world), at)
    try:
        yield stream
    finally:
        await stream.close()


async def now(world: World) -> Position:
    return boundary(await world.source.operation_time())


async def until(
    stream: ChangeStream, enough: Callable[[list[Change], Batch], bool]
) -> tuple[list[Change], Batch]:
    """Read until `enough` says so of all changes and the last batch."""
    changes: list[Change] = []
    async with asyncio.timeout(PATIENCE_S):
        while True:
            batch = await stream.read()
            changes.extend(batch.changes)
            if enough(changes, batch):
                return changes, batch


async def records(stream: ChangeStream, count: int) -> list[Change]:
    changes, _ = await until(stream, lambda changes, _: len(changes) >= count)
    assert len(changes) == count
    return changes


async def idle(stream: ChangeStream) -> Position:
    """The next idle boundary, with no record before it."""
    changes, batch = await until(stream, lambda changes, batch: bool(changes) or batch.boundary is not None)
    assert changes == []
    assert batch.boundary is not None
    return batch.boundary


async def lost(world: World, at: Position, where: TailScope | None = None) -> PositionLost:
    """The loss that opening or reading raises."""

    async def attempt() -> None:
        async with opened(world, at, where) as stream:
            await until(stream, lambda changes, _: bool(changes))

    with pytest.raises(PositionLost) as caught:
        await attempt()
    return caught.value


def ids(changes: list[Change]) -> list[object]:
    return [(change.body().document_key or {}).get("_id") for change in changes]


def operations(changes: list[Change]) -> list[str]:
    return [change.operation for change in changes]


def digest_form(position: Position) -> Position:
    return msgspec.structs.replace(position, data=None, type_bits=None)


# Records


@every_scope
async def test_records_come_in_order_with_their_envelope(world: World, level: ScopeLevel) -> None:
    """Order, namespace, cluster time and body of the data operations, at each scope."""
    start = await now(world)
    world.create("c", images=False)
    world.insert("c", 1)
    world.update("c", 1, a=2)
    world.replace("c", 1, b=3)
    world.delete("c", 1)
    async with opened(world, start, scope(world, level)) as stream:
        changes = await records(stream, 4)
    assert operations(changes) == ["insert", "update", "replace", "delete"]
    assert all(change.namespace is not None and change.namespace.collection == "c" for change in changes)
    assert all(change.position.kind is PositionKind.EVENT and change.size_bytes > 0 for change in changes)
    times = [change.position.cluster_time for change in changes]
    assert times == sorted(set(times))
    assert times[0] > start.cluster_time
    insert, update, replace, _ = (change.body() for change in changes)
    assert insert.full_document == {"_id": 1}
    assert update.update_description is not None
    assert update.update_description["updatedFields"] == {"a": 2}
    assert replace.full_document == {"_id": 1, "b": 3}
    assert insert.wall_time_ms is not None
    assert abs(insert.wall_time_ms // 1000 - (times[0] >> 32)) <= 2


async def test_a_collection_scope_sees_its_collection_only(world: World) -> None:
    start = await now(world)
    world.insert("other", 1)
    world.insert_elsewhere()
    world.insert("c", 2)
    async with opened(world, start) as stream:
        assert ids(await records(stream, 1)) == [2]


async def test_pre_images_come_where_they_are_kept(world: World) -> None:
    """`before` is the document before the change, or None where the collection keeps no images."""
    world.create("kept", images=True)
    world.create("bare", images=False)
    start = await now(world)
    for collection in ("kept", "bare"):
        world.insert(collection, 1)
        world.update(collection, 1, a=2)
        world.delete(collection, 1)
    async with opened(world, start, scope(world, "database")) as stream:
        changes = await records(stream, 6)
    assert [change.body().before for change in changes[:3]] == [None, {"_id": 1}, {"_id": 1, "a": 2}]
    assert [change.body().before for change in changes[3:]] == [None, None, None]


async def test_the_lookup_may_show_a_later_state(world: World) -> None:
    """`full_document` of an update is what the lookup finds now; None once the document is gone."""
    start = await now(world)
    world.insert("c", 1)
    world.update("c", 1, a=1)
    world.delete("c", 1)
    async with opened(world, start) as stream:
        changes = await records(stream, 3)
    assert changes[1].body().full_document is None


# Resuming


@every_scope
async def test_resume_is_exclusive_at_every_record_of_a_transaction(world: World, level: ScopeLevel) -> None:
    """Records of one cluster time are told apart: resuming from each gives exactly those behind it."""
    world.create("c", images=False)
    start = await now(world)
    world.transaction("c", 1, 2, 3)
    world.insert("c", 4)
    async with opened(world, start, scope(world, level)) as stream:
        changes = await records(stream, 4)
    assert len({change.position.cluster_time for change in changes[:3]}) == 1
    for done in range(1, 4):
        for at in (changes[done - 1].position, digest_form(changes[done - 1].position)):
            async with opened(world, at, scope(world, level)) as stream:
                rest = await records(stream, 4 - done)
            assert [change.position for change in rest] == [change.position for change in changes[done:]]


async def test_a_bare_time_is_inclusive(world: World) -> None:
    """Opening at the cluster time of a record gives that record and all others of its time."""
    world.create("c", images=False)
    start = await now(world)
    world.transaction("c", 1, 2)
    async with opened(world, start) as stream:
        changes = await records(stream, 2)
    async with opened(world, boundary(changes[0].position.cluster_time)) as stream:
        assert ids(await records(stream, 2)) == [1, 2]


async def test_a_time_after_a_record_does_not_give_it(world: World) -> None:
    start = await now(world)
    world.insert("c", 1)
    async with opened(world, start) as stream:
        (first,) = await records(stream, 1)
    world.insert("c", 2)
    async with opened(world, boundary(first.position.cluster_time + 1)) as stream:
        assert ids(await records(stream, 1)) == [2]


@every_scope
async def test_a_boundary_resumes_before_whatever_comes_next(world: World, level: ScopeLevel) -> None:
    """By its token and by its time; a command in the same database just before it does not matter."""
    world.insert("c", 1)
    world.insert("sibling", 1)
    start = await now(world)
    async with opened(world, boundary(start.cluster_time + 1), scope(world, level)) as stream:
        world.drop("sibling")
        world.tick()
        reached = await idle_or_later(stream)
    assert reached.is_boundary
    assert reached.data is not None
    world.insert("c", 2)
    for at in (reached, msgspec.structs.replace(reached, data=None)):
        async with opened(world, at, scope(world, level)) as stream:
            changes, _ = await until(stream, lambda changes, _: 2 in ids(changes))
        assert ids(changes)[-1] == 2
        assert 1 not in ids(changes)


async def idle_or_later(stream: ChangeStream) -> Position:
    _, batch = await until(stream, lambda _, batch: batch.boundary is not None)
    assert batch.boundary is not None
    return batch.boundary


async def test_idle_boundaries_advance_past_a_quiet_collection(world: World) -> None:
    """Writes elsewhere move the boundary of a stream that sees none of them."""
    start = await now(world)
    async with opened(world, start) as stream:
        reached = await idle(stream)
        assert reached.cluster_time >= start.cluster_time
        before = await world.source.operation_time()
        world.insert_elsewhere()
        _, batch = await until(
            stream, lambda _, batch: batch.boundary is not None and batch.boundary.cluster_time > before
        )
        assert batch.changes == []


async def test_a_boundary_is_past_the_last_record_and_before_the_next(world: World) -> None:
    """A boundary sorts before the records of its time, so it is not given at the time of a record that was read."""
    start = await now(world)
    async with opened(world, start) as stream:
        world.insert("c", 1)
        (first,) = await records(stream, 1)
        world.insert_elsewhere()
        reached = await idle(stream)
        world.insert("c", 2)
        (second,) = await records(stream, 1)
    assert first.position.cluster_time < reached.cluster_time <= second.position.cluster_time


async def test_the_same_record_has_the_same_position_on_every_stream(world: World) -> None:
    start = await now(world)
    world.insert("c", 1)
    async with opened(world, start) as one, opened(world, start, scope(world, "deployment")) as other:
        mine, theirs = await records(one, 1), await until(other, lambda changes, _: 1 in ids(changes))
    assert mine[0].position in [change.position for change in theirs[0]]


# The end of a collection


async def gone(world: World, act: Callable[[], None], where: TailScope) -> tuple[list[Change], Batch]:
    """The records from before `act` until an invalidate."""
    world.insert("c", 1)
    start = await now(world)
    act()
    async with opened(world, boundary(start.cluster_time + 1), where) as stream:
        return await until(stream, lambda changes, _: "invalidate" in operations(changes))


async def test_a_drop_ends_a_collection_stream(world: World) -> None:
    """At scope `collection` MongoDB sends drop and invalidate, in one batch, and closes the stream."""
    changes, batch = await gone(world, lambda: world.drop("c"), scope(world))
    assert operations(changes) == ["drop", "invalidate"]
    assert len(batch.changes) == 2
    assert [change.position.kind for change in changes] == [PositionKind.EVENT, PositionKind.INVALIDATE]
    assert changes[1].namespace is None
    assert changes[0].position.data != changes[1].position.data
    assert batch.ended


async def test_an_ended_stream_goes_on_after_its_invalidate(world: World) -> None:
    """Both forms of the invalidate's position open a stream of what comes after it."""
    changes, _ = await gone(world, lambda: world.drop("c"), scope(world))
    world.insert("c", 2)
    for at in (changes[1].position, digest_form(changes[1].position)):
        async with opened(world, at) as stream:
            assert ids(await records(stream, 1)) == [2]


async def test_after_the_drop_itself_the_invalidate_is_still_owed(world: World) -> None:
    changes, _ = await gone(world, lambda: world.drop("c"), scope(world))
    for at in (changes[0].position, digest_form(changes[0].position)):
        async with opened(world, at) as stream:
            rest, batch = await until(stream, lambda changes, _: bool(changes))
        assert [change.position for change in rest] == [changes[1].position]
        assert batch.ended


async def test_a_rename_ends_a_collection_stream(world: World) -> None:
    changes, batch = await gone(world, lambda: world.rename("c", "d"), scope(world))
    assert operations(changes) == ["rename", "invalidate"]
    assert changes[0].renamed_to is not None
    assert changes[0].renamed_to.collection == "d"
    assert batch.ended


async def test_a_rename_onto_a_watched_collection_ends_its_stream(world: World) -> None:
    """MongoDB sends the rename to watchers of the target too; SecantusDB sends the drop of the old target."""
    world.insert("d", 7)
    changes, batch = await gone(world, lambda: world.rename("c", "d"), scope(world, collection="d"))
    assert operations(changes) in (["rename", "invalidate"], ["drop", "invalidate"])
    assert batch.ended


async def test_dropping_the_database_ends_a_database_stream(world: World) -> None:
    """The collections' drops get synthesised invalidates; the one behind dropDatabase is MongoDB's."""
    world.insert("c", 1)
    start = await now(world)
    world.drop_database()
    async with opened(world, boundary(start.cluster_time + 1), scope(world, "database")) as stream:
        changes, _ = await until(stream, lambda _, batch: batch.ended)
    assert operations(changes) == ["drop", "invalidate", "dropDatabase", "invalidate"]
    assert [change.position.kind for change in changes] == [
        PositionKind.DROP,
        PositionKind.INVALIDATE,
        PositionKind.EVENT,
        PositionKind.INVALIDATE,
    ]
    assert [change.namespace is None for change in changes] == [False, False, False, True]
    async with opened(world, changes[2].position, scope(world, "database")) as stream:
        rest, _ = await until(stream, lambda _, batch: batch.ended)
    assert [change.position for change in rest] == [changes[3].position]


@pytest.mark.parametrize("level", ["database", "deployment"])
@pytest.mark.parametrize("act", ["drop", "rename"])
async def test_a_wide_scope_synthesises_the_invalidate(world: World, level: ScopeLevel, act: str) -> None:
    """Same upstream token, different kinds, one batch; the stream goes on."""
    end = (lambda: world.drop("c")) if act == "drop" else (lambda: world.rename("c", "d"))
    changes, batch = await gone(world, end, scope(world, level))
    drop, invalidate = changes[-2:]
    assert [drop.operation, invalidate.operation] == [act, "invalidate"]
    assert batch.changes[-2:] == [drop, invalidate]
    assert drop.position.kind is PositionKind.DROP
    assert invalidate.position == msgspec.structs.replace(drop.position, kind=PositionKind.INVALIDATE)
    assert invalidate.namespace == drop.namespace
    assert not batch.ended


@pytest.mark.parametrize("level", ["database", "deployment"])
async def test_a_drop_position_owes_the_synthesised_invalidate(world: World, level: ScopeLevel) -> None:
    """After DROP the invalidate comes first; after INVALIDATE it does not come again."""
    changes, _ = await gone(world, lambda: world.drop("c"), scope(world, level))
    drop, invalidate = (change.position for change in changes[-2:])
    world.insert("c", 2)
    for at in (drop, digest_form(drop)):
        async with opened(world, at, scope(world, level)) as stream:
            rest = await records(stream, 2)
        assert rest[0].position == invalidate
        assert operations(rest) == ["invalidate", "insert"]
    for at in (invalidate, digest_form(invalidate)):
        async with opened(world, at, scope(world, level)) as stream:
            assert operations(await records(stream, 1)) == ["insert"]


async def test_dropping_a_database_at_deployment_scope(world: World) -> None:
    """dropDatabase is a DROP with the database as its namespace, and its invalidate is ours."""
    world.insert("c", 1)
    start = boundary(await world.source.operation_time() + 1)
    world.drop_database()
    async with opened(world, start, scope(world, "deployment")) as stream:
        changes = await records(stream, 4)
    assert operations(changes) == ["drop", "invalidate", "dropDatabase", "invalidate"]
    assert changes[2].position.kind is PositionKind.DROP
    assert changes[2].namespace is not None
    assert (changes[2].namespace.database, changes[2].namespace.collection) == (world.database, "")
    assert changes[3].namespace == changes[2].namespace


# Losses


async def test_an_expired_record_is_lost_with_its_history(trimmed_world: World) -> None:
    world = trimmed_world
    start = await now(world)
    world.insert("c", 1)
    async with opened(world, start) as stream:
        (record,) = await records(stream, 1)
    world.trim(record.position.cluster_time)
    for at in (record.position, digest_form(record.position)):
        assert (await lost(world, at)).history


async def test_an_expired_time_is_lost_with_its_history(trimmed_world: World) -> None:
    """Where the engine starts silently from its oldest entry, the adapter notices."""
    world = trimmed_world
    start = await now(world)
    world.trim(start.cluster_time)
    assert (await lost(world, start)).history


async def test_an_expired_boundary_is_lost_with_its_history(trimmed_world: World) -> None:
    world = trimmed_world
    async with opened(world, await now(world)) as stream:
        reached = await idle(stream)
    world.trim(reached.cluster_time)
    assert (await lost(world, reached)).history


@pytest.mark.parametrize("data", ["", "zz", "aa", "8263515EAC000000022B0429296E1404", "é"])
async def test_a_hand_made_token_is_lost(world: World, data: str) -> None:
    """Whatever a server says to a token that it did not make, the position is lost."""
    at = record_position(PositionKind.EVENT, await world.source.operation_time(), data)
    world.insert("c", 1)
    await lost(world, at)


@pytest.mark.parametrize("kind", [PositionKind.EVENT, PositionKind.DROP, PositionKind.INVALIDATE])
async def test_a_digest_that_no_record_has_is_lost(world: World, kind: PositionKind) -> None:
    """Once the stream is past its time, without history: the oplog does reach that far."""
    at = digest_form(record_position(kind, await world.source.operation_time(), "nobody"))
    world.insert("c", 1)
    assert not (await lost(world, at)).history


async def test_an_absent_digest_is_lost_on_a_quiet_stream_too(world: World) -> None:
    """An idle boundary past its time proves absence as well as a record does."""
    at = digest_form(record_position(PositionKind.EVENT, await world.source.operation_time(), "nobody"))
    async with opened(world, at) as stream:
        world.insert_elsewhere()
        with pytest.raises(PositionLost) as caught:
            await until(stream, lambda _, batch: batch.boundary is not None)
    assert not caught.value.history


# Reading and closing


async def test_a_cancelled_read_loses_nothing(world: World) -> None:
    start = await now(world)
    async with opened(world, start) as stream:
        await idle(stream)
        reader = asyncio.create_task(stream.read())
        await asyncio.sleep(0)
        reader.cancel()
        await asyncio.wait({reader})
        world.insert("c", 1)
        assert ids(await records(stream, 1)) == [1]


async def test_close_is_idempotent_and_leaks_no_task(world: World) -> None:
    stream = await world.source.open(scope(world), await now(world))
    await stream.read()
    await stream.close()
    await stream.close()
    assert [task for task in asyncio.all_tasks() if runs_our_code(task)] == []


def runs_our_code(task: asyncio.Task[object]) -> bool:
    """The driver's monitors and sockets have tasks that live as long as its clients."""
    coroutine = task.get_coro()
    return (
        task is not asyncio.current_task()
        and isinstance(coroutine, CoroutineType)
        and ("/feedsvc/" in coroutine.cr_code.co_filename)
    )


async def test_a_read_after_close_fails(world: World) -> None:
    stream = await world.source.open(scope(world), await now(world))
    await stream.close()
    with pytest.raises(SourceUnavailable):
        await stream.read()


async def test_closing_ends_a_waiting_read(world: World) -> None:
    stream = await world.source.open(scope(world), await now(world))
    reading = asyncio.create_task(until(stream, lambda changes, _: bool(changes)))
    await asyncio.sleep(0)
    await stream.close()
    with pytest.raises(SourceUnavailable):
        await asyncio.wait_for(reading, PATIENCE_S)


async def test_streams_are_independent(world: World) -> None:
    """Closing one stream of a scope leaves the other."""
    start = await now(world)
    async with opened(world, start) as kept:
        async with opened(world, start):
            pass
        world.insert("c", 1)
        assert ids(await records(kept, 1)) == [1]


# Beside the streams


async def test_describe_tells_whether_images_are_kept(world: World) -> None:
    """Of each collection that was asked for and exists, as it is now: changed, dropped and made anew."""

    async def described() -> dict[str, bool]:
        names = ("kept", "bare", "missing", "gone")
        return {
            name: info.images for name, info in (await world.source.describe(world.database, names)).items()
        }

    world.create("kept", images=True)
    world.create("bare", images=False)
    world.create("gone", images=True)
    world.create("unasked", images=True)
    world.drop("gone")
    assert await described() == {"kept": True, "bare": False}
    world.switch_images("kept", images=False)
    world.switch_images("bare", images=True)
    world.create("gone", images=False)
    world.insert("missing", 1)
    assert await described() == {"kept": False, "bare": True, "gone": False, "missing": False}
    assert await world.source.describe(world.database, []) == {}


async def test_the_operation_time_is_that_of_a_finished_write_or_later(world: World) -> None:
    """A stream opened at the operation time gives every write that follows, and it moves on with writes."""
    before = await world.source.operation_time()
    world.insert("c", 1)
    assert await world.source.operation_time() > before
    async with opened(world, boundary(before)) as stream:
        (record,) = await records(stream, 1)
    assert record.position.cluster_time <= await world.source.operation_time()


async def test_the_oplog_window_spans_the_writes(world: World) -> None:
    world.insert("c", 1)
    window = await world.source.oplog_window()
    assert window is not None
    assert window.first <= window.last <= await world.source.operation_time()
    assert window.seconds_with_images == window.seconds >= 0


async def test_the_oplog_window_moves_when_the_oplog_is_trimmed(trimmed_world: World) -> None:
    before = await trimmed_world.source.oplog_window()
    assert before is not None
    trimmed_world.trim(before.first)
    after = await trimmed_world.source.oplog_window()
    assert after is not None
    assert after.first > before.first


async def test_the_identity_is_stable(world: World) -> None:
    first: Callable[[], Awaitable[str]] = world.source.identity
    assert await first() == await first() != ""
