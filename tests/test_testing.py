"""The in-memory ports where they go beyond the source contract: lag, faults, cuts, trimming, and the other edges."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedsvc.core.changes import Change, TailScope
from feedsvc.core.positions import Position, PositionKind, boundary, record_position
from feedsvc.ports import AuthError, Claims, PositionLost, SourceUnavailable
from feedsvc.testing import (
    START,
    ManualClock,
    MemoryConnection,
    MemoryOplog,
    MemorySource,
    MemoryStream,
    MemoryVerifier,
)

SCOPE = TailScope("collection", "d", "c")


def filled(count: int = 4) -> MemoryOplog:
    oplog = MemoryOplog()
    for number in range(count):
        oplog.insert("d", "c", {"_id": number})
    return oplog


def batches(stream: MemoryStream) -> list[list[Change]]:
    """The changes of each batch that can be read now."""
    found: list[list[Change]] = []
    while (batch := stream.poll()) is not None and batch.changes:
        found.append(batch.changes)
    return found


def ids(stream: MemoryStream) -> list[object]:
    """The `_id` of each change that can be read now."""
    return [(change.body().document_key or {})["_id"] for batch in batches(stream) for change in batch]


def changes(source: MemorySource, scope: TailScope = SCOPE, at: Position | None = None) -> list[Change]:
    batch = source.open_now(scope, at or boundary(START)).poll()
    return batch.changes if batch else []


# The oplog


def test_cluster_times_rise_and_a_transaction_shares_one() -> None:
    oplog = MemoryOplog()
    first = oplog.insert("d", "c", {"_id": 1})
    with oplog.transaction():
        inside = {oplog.insert("d", "c", {"_id": 2}), oplog.insert("d", "c", {"_id": 3})}
        assert oplog.end == 2
    last = oplog.tick(5)
    assert inside == {first + 1}
    assert {oplog.entry(number).cluster_time for number in (2, 3)} == inside
    assert last >> 32 == (first >> 32) + 5


@given(st.integers(0, 2**40), st.sampled_from("ebi"), st.integers(0, 2**63))
def test_tokens_are_opaque_and_can_be_read_back_by_their_oplog_only(value: int, kind: str, seed: int) -> None:
    oplog = MemoryOplog(seed=seed)
    assert oplog.token_value(oplog.token(kind, value)) == (kind, value)
    assert MemoryOplog(seed=seed + 1).token_value(oplog.token(kind, value)) != (kind, value)


def test_tokens_do_not_sort() -> None:
    tokens = [MemoryOplog().token("e", number) for number in range(100)]
    assert tokens != sorted(tokens)
    assert len(set(tokens)) == 100


@pytest.mark.parametrize("count, left", [(0, 0), (1, 1), (2, 2), (3, 2), (4, 4), (99, 4)])
def test_trimming_keeps_whole_cluster_times_and_the_newest(count: int, left: int) -> None:
    oplog = filled(1)
    with oplog.transaction():
        oplog.insert("d", "c", {"_id": 7})
        oplog.insert("d", "c", {"_id": 8})
    oplog.tick()
    oplog.trim(count)
    assert oplog.first == left


def test_an_update_keeps_both_images() -> None:
    oplog = filled(1)
    oplog.update("d", "c", 0, {"a": 1, "b": 2})
    oplog.update("d", "c", 0, {"a": 3}, remove=["b"])
    body = changes(MemorySource(oplog))[-1].body()
    assert body.before == {"_id": 0, "a": 1, "b": 2}
    assert body.full_document == {"_id": 0, "a": 3}
    assert body.update_description == {
        "updatedFields": {"a": 3},
        "removedFields": ["b"],
        "truncatedArrays": [],
    }


def test_images_can_be_turned_off() -> None:
    oplog = filled(1)
    oplog.create("d", "c", images=False)
    oplog.delete("d", "c", 0)
    assert changes(MemorySource(oplog))[-1].body().before is None


def test_an_update_of_nothing_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        MemoryOplog().update("d", "c", 1, {})


# One instance's view


def test_a_lagging_source_sees_a_prefix() -> None:
    oplog = filled(4)
    source = MemorySource(oplog)
    source.see_only(3)
    stream = source.open_now(SCOPE, boundary(START))
    assert ids(stream) == [0, 1]
    assert source.operation_time_now() == oplog.entry(2).cluster_time
    source.see_only(None)
    assert ids(stream) == [2, 3]


def test_lag_never_cuts_a_transaction() -> None:
    oplog = filled(1)
    with oplog.transaction():
        oplog.insert("d", "c", {"_id": 7})
        oplog.insert("d", "c", {"_id": 8})
    source = MemorySource(oplog)
    source.see_only(3)
    assert ids(source.open_now(SCOPE, boundary(START))) == [0]


def test_a_position_that_is_not_visible_yet_waits() -> None:
    """Another instance has read further: that is not a loss."""
    oplog = filled(4)
    ahead = changes(MemorySource(oplog))[2].position
    source = MemorySource(oplog)
    source.see_only(2)
    for position in (ahead, msgspec.structs.replace(ahead, data=None)):
        stream = source.open_now(SCOPE, position)
        assert stream.poll() is None
        source.see_only(None)
        assert ids(stream) == [3]
        source.see_only(2)


def test_an_unknown_record_is_lost_only_when_its_time_is_past() -> None:
    oplog = filled(4)
    source = MemorySource(oplog)
    source.see_only(3)
    unknown = record_position(PositionKind.EVENT, oplog.entry(2).cluster_time, oplog.token("e", 999))
    stream = source.open_now(SCOPE, unknown)
    assert stream.poll() is None
    source.see_only(None)
    with pytest.raises(PositionLost) as caught:
        stream.poll()
    assert not caught.value.history


def test_a_record_of_another_scope_is_not_found() -> None:
    """As MongoDB's 280: the token exists, but this stream does not see its event."""
    oplog = filled(1)
    oplog.insert("d", "other", {"_id": 1})
    other = changes(MemorySource(oplog), TailScope("collection", "d", "other"))[0].position
    oplog.tick()
    with pytest.raises(PositionLost):
        MemorySource(oplog).open_now(SCOPE, other).poll()


def test_batches_may_be_cut_inside_a_transaction() -> None:
    oplog = MemoryOplog()
    with oplog.transaction():
        for number in range(3):
            oplog.insert("d", "c", {"_id": number})
    stream = MemorySource(oplog, max_records=2).open_now(SCOPE, boundary(START))
    assert [len(batch) for batch in batches(stream)] == [2, 1]


def test_a_drop_is_never_cut_from_its_invalidate() -> None:
    oplog = filled(1)
    oplog.drop("d", "c")
    stream = MemorySource(oplog, max_records=1).open_now(TailScope("deployment"), boundary(START))
    operations = [[change.operation for change in batch] for batch in batches(stream)]
    assert operations == [["insert"], ["drop", "invalidate"]]


def test_a_cursor_that_is_overtaken_by_trimming_is_lost() -> None:
    oplog = filled(4)
    stream = MemorySource(oplog, max_records=1).open_now(SCOPE, boundary(START))
    stream.poll()
    oplog.trim(4)
    with pytest.raises(PositionLost) as caught:
        stream.poll()
    assert caught.value.code == 136


# Faults


async def test_faults_are_raised_once_each() -> None:
    source = MemorySource(filled(1))
    source.fail_next_open(SourceUnavailable("open"))
    with pytest.raises(SourceUnavailable, match="open"):
        await source.open(SCOPE, boundary(START))
    stream = await source.open(SCOPE, boundary(START))
    source.fail_next_read(SourceUnavailable("read"))
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match="read"):
            await stream.read()
    again = await source.open(SCOPE, boundary(START))
    assert len((await again.read()).changes) == 1
    assert len(source.opened) == 3


@pytest.mark.parametrize("what", ["insert", "fault", "close", "wake", "tick"])
async def test_a_waiting_read_is_woken(what: str) -> None:
    """By whatever could change its answer, and by `wake`, which is the server's empty reply."""
    oplog = filled(0)
    source = MemorySource(oplog)
    stream = await source.open(SCOPE, boundary(START))
    await stream.read()
    reading = asyncio.create_task(stream.read())
    await asyncio.sleep(0)
    assert not reading.done()
    if what == "insert":
        oplog.insert("d", "c", {"_id": 1})
        assert len((await reading).changes) == 1
    elif what == "fault":
        source.fail_next_read(SourceUnavailable("now"))
        with pytest.raises(SourceUnavailable, match="now"):
            await reading
    elif what == "close":
        await stream.close()
        with pytest.raises(SourceUnavailable):
            await reading
    elif what == "wake":
        oplog.wake()
        batch = await reading
        assert (batch.changes, batch.boundary) == ([], None)
    else:
        oplog.tick()
        assert (await reading).boundary is not None


# The other edges


def test_a_connection_keeps_frames_until_it_is_closed() -> None:
    connection = MemoryConnection()
    connection.write([b'{"a":1}', b'{"b":2}'])
    connection.close(4200, "bye")
    connection.close(4000, "late")
    connection.write([b"{}"])
    assert connection.messages() == [{"a": 1}, {"b": 2}]
    assert connection.closed == (4200, "bye")
    assert not connection.writable


def test_a_connection_calls_back_each_time_its_room_changes() -> None:
    calls: list[bool] = []
    connection = MemoryConnection(room=2)
    connection.on_room(lambda: calls.append(connection.writable))
    connection.write([b"1"])
    assert connection.writable
    connection.write([b"2"])
    assert not connection.writable
    connection.set_room(5)
    connection.set_room(6)
    connection.set_writable(False)
    connection.set_writable(True)
    connection.set_writable(True)
    assert calls == [False, True] * 2


async def test_a_verifier_knows_its_table() -> None:
    claims = Claims("ann", 1.0, frozenset(), {"sub": "ann"})
    verifier = MemoryVerifier({"good": claims, "old": AuthError("auth_expired", "expired")})
    assert await verifier.verify("good") is claims
    for jwt, code in (("old", "auth_expired"), ("unknown", "auth_invalid")):
        with pytest.raises(AuthError) as caught:
            await verifier.verify(jwt)
        assert caught.value.code == code


def test_a_manual_clock_moves_when_told() -> None:
    clock = ManualClock(monotonic=5.0, wall=100.0)
    clock.advance(1.5)
    assert (clock.monotonic(), clock.wall()) == (6.5, 101.5)
    with pytest.raises(ValueError):
        clock.advance(-1)
