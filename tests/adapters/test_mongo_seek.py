"""Reading up to the record that a position names."""

from __future__ import annotations

import pytest

from feedsvc.adapters.mongo.seek import Past, Seek
from feedsvc.core.changes import Change, ChangeBody, Namespace
from feedsvc.core.positions import Position, PositionKind, boundary, record_position
from feedsvc.ports import PositionLost


def change(time: int, data: str, kind: PositionKind = PositionKind.EVENT) -> Change:
    return Change(record_position(kind, time, data), "insert", Namespace("d", "c"), ChangeBody)


def digest(time: int, data: str) -> Position:
    return Position(PositionKind.EVENT, time, None, record_position(PositionKind.EVENT, time, data).digest)


def test_everything_up_to_the_record_is_discarded() -> None:
    seek = Seek(digest(5, "b"))
    first, named, after, later = change(5, "a"), change(5, "b"), change(5, "c"), change(6, "d")
    assert seek.after((first,)) == ()
    assert seek.found is None
    assert seek.after((named, after)) == (after,)
    assert seek.found == named.position
    assert seek.after((later,)) == (later,)


def test_the_kind_counts() -> None:
    """A drop and its invalidate share a token."""
    seek = Seek(record_position(PositionKind.DROP, 5, "x"))
    drop, invalidate = change(5, "x", PositionKind.DROP), change(5, "x", PositionKind.INVALIDATE)
    assert seek.after((drop, invalidate)) == (invalidate,)


def test_a_later_record_proves_absence() -> None:
    with pytest.raises(PositionLost) as caught:
        Seek(digest(5, "b")).after((change(6, "c"),))
    assert not caught.value.history


def test_a_later_idle_time_proves_absence() -> None:
    seek = Seek(digest(5, "b"))
    seek.idle(5)
    with pytest.raises(PositionLost):
        seek.idle(6)


def test_nothing_is_absent_once_it_was_found() -> None:
    seek = Seek(digest(5, "b"))
    seek.after((change(5, "b"),))
    seek.idle(6)
    later = (change(7, "d"),)
    assert seek.after(later) == later


def test_behind_the_newest_entry_what_is_not_newer_is_discarded() -> None:
    """Newer than the entry and older than the boundary is a commit that was on its way: nobody has read it here."""
    start = boundary(7)
    past = Past(start, 5)
    assert past.found == start
    assert past.after((change(5, "a"),)) == ()
    on_its_way, later = (change(6, "b"),), (change(8, "c"),)
    assert past.after(on_its_way) == on_its_way
    past.idle(9)
    assert past.after(later) == later


def test_an_invalidate_that_is_discarded_is_where_the_next_stream_starts() -> None:
    past = Past(boundary(7), 5)
    invalidate = change(5, "a", PositionKind.INVALIDATE)
    assert past.after((invalidate,)) == ()
    assert past.found == invalidate.position
