"""Lockstep: whoever joins and leaves, at whatever moment, stands exactly behind what was written to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from feedsvc.core import lockstep as lockstep_module
from feedsvc.core.burst import DEFLATE_FROM_BYTES, Burst
from feedsvc.core.lockstep import Direct, Given, Lockstep
from feedsvc.core.positions import Position, boundary
from feedsvc.core.subscription import Subscription


class Reader:
    """A member and its transport: it keeps the number of each burst, and leaves where its socket is full."""

    def __init__(self, lockstep: Lockstep, cursor: int, *, deflates: bool = False) -> None:
        outlet: Any = self
        topic: Any = "topic"
        self.subscription = Subscription(topic, outlet, at(cursor))
        self.subscription.cursor = self.first = cursor
        self.got: list[int] = []
        self.full_at: int | None = None
        """Of this burst its socket takes a part only."""
        lockstep.apart[self.subscription] = None
        SOCKETS.append(self)
        self.direct = Direct(len(SOCKETS) - 1, self.write_rest, deflates=deflates)
        lockstep.join(self.subscription, self.direct)

    def write_rest(self, data: memoryview) -> None:
        assert self.full_at is not None
        assert data == rest(self.full_at)
        self.got.append(self.full_at)
        self.direct.full()

    @property
    def inside(self) -> bool:
        return self.subscription.lockstep is not None

    def stands(self) -> tuple[int, Position | None, Position | None]:
        self.subscription.settle()
        return self.subscription.cursor, self.subscription.at, self.subscription.told


SOCKETS: list[Reader] = []
"""By their descriptors."""
BURSTS: dict[int, Burst] = {}
"""By their numbers."""


def write_each(descriptors: Sequence[int], data: bytes) -> list[tuple[int, memoryview]]:
    number = next(
        number for number, burst in BURSTS.items() if data is burst._websocket or data is burst._deflated
    )
    rests = []
    for place, reader in enumerate(SOCKETS[descriptor] for descriptor in descriptors):
        assert reader.inside
        assert data is (BURSTS[number].deflated if reader.direct.deflates else BURSTS[number].websocket)
        if reader.full_at == number:
            rests.append((place, rest(number)))
        else:
            reader.got.append(number)
    return rests


def rest(number: int) -> memoryview:
    return memoryview(b"the rest of %d" % number)


def at(cursor: int) -> Position:
    return boundary(cursor + 1)


def give(
    lockstep: Lockstep, number: int, meanwhile: Callable[[], object] = lambda: None, *, size: int = 1
) -> int:
    """To how many; between two slices others have a turn."""
    BURSTS[number] = Burst([b"%d" % number * size])
    giving = lockstep.give(write_each, BURSTS[number], Given(number, at(number), at(number)))
    while True:
        try:
            next(giving)
        except StopIteration as end:
            written: int = end.value
            return written
        meanwhile()


def test_all_get_a_burst_and_stand_behind_it() -> None:
    lockstep = Lockstep()
    readers = [Reader(lockstep, 0) for _ in range(3)]
    assert give(lockstep, 1) == 3
    assert [reader.got for reader in readers] == [[1]] * 3
    assert {reader.stands() for reader in readers} == {(1, at(1), at(1))}
    assert not lockstep.apart


def test_one_that_is_full_in_the_middle_of_its_write_has_got_it() -> None:
    lockstep = Lockstep()
    first, full, last = (Reader(lockstep, 0) for _ in range(3))
    full.full_at = 1
    give(lockstep, 1)
    assert full.stands() == (1, at(1), at(1))
    assert list(lockstep.apart) == [full.subscription]
    assert give(lockstep, 2) == 2
    assert (first.got, full.got, last.got) == ([1, 2], [1], [1, 2])


def test_one_that_leaves_between_two_slices_gets_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockstep_module, "_YIELD_EVERY", 1)
    lockstep = Lockstep()
    early, late, rest = (Reader(lockstep, 0) for _ in range(3))
    leaving = [early, late]

    def leave() -> None:
        while leaving:
            leaving.pop().subscription.full()

    assert give(lockstep, 1, leave) == 2
    assert (early.got, late.got, rest.got) == ([1], [], [1])
    assert (early.stands()[0], late.stands()[0], rest.stands()[0]) == (1, 0, 1)
    assert len(lockstep) == 1


def test_what_one_was_told_later_stays() -> None:
    """A checkpoint moves one of them on; what all were given before it takes nothing back."""
    lockstep = Lockstep()
    one, other = Reader(lockstep, 0), Reader(lockstep, 0)
    give(lockstep, 1)
    one.subscription.settle()
    one.subscription.cursor, one.subscription.at, one.subscription.told = 5, at(5), at(5)
    assert (one.stands(), other.stands()) == ((5, at(5), at(5)), (1, at(1), at(1)))
    give(lockstep, 6)
    assert one.stands() == other.stands() == (6, at(6), at(6))


def test_where_the_last_one_left_the_next_begins_anew() -> None:
    """The numbers of a tail that lost its place begin again at zero."""
    lockstep = Lockstep()
    reader = Reader(lockstep, 7)
    assert lockstep.dissolve() == [reader.subscription]
    assert lockstep.given is None
    again = Reader(lockstep, 0)
    assert again.stands()[0] == 0
    give(lockstep, 1)
    assert again.stands()[0] == 1


def test_each_gets_the_form_that_its_peer_reads() -> None:
    """Of a burst that has two; to compress it costs nothing where nobody is to get it."""
    lockstep = Lockstep()
    readers = [Reader(lockstep, 0, deflates=number % 3 == 0) for number in range(7)]
    readers[3].full_at = readers[4].full_at = 2
    assert give(lockstep, 1) == give(lockstep, 2, size=DEFLATE_FROM_BYTES) == 7
    assert give(lockstep, 3, size=DEFLATE_FROM_BYTES) == 5
    assert [len(reader.got) for reader in readers] == [3, 3, 3, 2, 2, 3, 3]
    for reader in readers:
        if reader.direct.deflates:
            reader.direct.full()
    assert give(lockstep, 4, size=DEFLATE_FROM_BYTES) == 3
    assert BURSTS[4]._deflated is None


@settings(deadline=None)
@examples(st.data())
def test_everybody_got_exactly_what_lies_behind_where_it_began(data: st.DataObject) -> None:
    lockstep = Lockstep()
    readers: list[Reader] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lockstep_module, "_YIELD_EVERY", data.draw(st.integers(1, 3), label="slice"))
        for number in range(1, data.draw(st.integers(1, 6), label="bursts") + 1):
            readers += [
                Reader(lockstep, number - 1, deflates=deflates)
                for deflates in data.draw(st.lists(st.booleans(), max_size=4), label="join")
            ]
            inside = [reader for reader in readers if reader.inside]
            for reader in inside:
                reader.full_at = number if data.draw(st.booleans(), label="full") else None

            def leave(inside: list[Reader] = inside) -> None:
                for reader in inside:
                    if reader.inside and data.draw(st.integers(0, 4), label="gone") == 0:
                        reader.subscription.full()

            size = data.draw(st.sampled_from([1, DEFLATE_FROM_BYTES]), label="size")
            written = give(lockstep, number, leave, size=size)
            assert written >= sum(number in reader.got for reader in readers if reader.inside)
            assert len(lockstep) == sum(reader.inside for reader in readers)
    for reader in readers:
        assert reader.got == list(range(reader.first + 1, reader.stands()[0] + 1))
