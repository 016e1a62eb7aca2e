"""Tails: numbering, routing to topics, losses, order and trimming."""

from __future__ import annotations

import msgspec
import pytest

from feedsvc.core.burst import Burst
from feedsvc.core.changes import Change, ChangeBody, Namespace, expand
from feedsvc.core.positions import Position, PositionKind, boundary, record_position
from feedsvc.core.subscription import Place, Subscription, TopicKey
from feedsvc.core.tail import EveryTopic, LoggedTopic, Loss, OrderError, Tail

EVENT, DROP = PositionKind.EVENT, PositionKind.DROP
ORDERS, USERS, OTHER = Namespace("app", "orders"), Namespace("app", "users"), Namespace("else", "orders")


class Named(msgspec.Struct, frozen=True):
    """A topic for placement: a name on a collection."""

    name: str
    namespace: Namespace


class Silent:
    """An outlet that is never used here."""

    writable = True
    direct = None

    def subscribed(self, subscription: Subscription, *, resumed: bool, position: Position | None) -> None: ...
    def frames(self, burst: Burst) -> None: ...
    def live(self, subscription: Subscription) -> None: ...
    def resync(self, subscription: Subscription, reason: str, position: Position) -> None: ...
    def snapshot_due(self, subscription: Subscription) -> None: ...
    def snapshot_end(self, subscription: Subscription, position: Position) -> None: ...
    def too_slow(self, subscription: Subscription) -> None: ...


def build(topic: TopicKey, change: Change) -> bytes | Loss | None:
    """Everything is seen, but for replaces; updates are lost."""
    assert isinstance(topic, Named)
    if change.operation == "replace":
        return None
    if change.operation == "update":
        return Loss("images_lost")
    return f"{topic.name}:{change.operation}".encode()


def change(
    operation: str,
    time: int,
    token: str,
    namespace: Namespace | None = ORDERS,
    *,
    kind: PositionKind = EVENT,
    renamed_to: Namespace | None = None,
) -> Change:
    return Change(record_position(kind, time, token), operation, namespace, ChangeBody, 0, renamed_to)


def read(tail: Tail, *changes: Change) -> dict[LoggedTopic, None]:
    touched: dict[LoggedTopic, None] = {}
    for one in changes:
        for _ in tail.append(one, touched):
            pass
    return touched


def seen(logged: LoggedTopic) -> list[str]:
    return [entry.loss or entry.frame.decode() for entry in logged.log.after(0, 1 << 20)]


@pytest.fixture
def tail() -> Tail:
    return Tail(boundary(1), build, live=True)


def test_every_record_takes_an_ordinal_matched_or_not(tail: Tail) -> None:
    """Ordinals count what was read, so that a position of a change nobody wanted is found as well."""
    logged = tail.hold(Named("a", ORDERS))
    touched = read(
        tail,
        change("insert", 2, "1", OTHER),
        change("insert", 2, "2"),
        change("replace", 3, "3"),
        change("delete", 4, "4"),
    )
    assert tail.ring.head_ordinal == 4
    assert [entry.ordinal for entry in logged.log.after(0, 1000)] == [2, 4]
    assert list(touched) == [logged]


def test_a_loss_stands_in_the_log_in_its_place(tail: Tail) -> None:
    """A topic that cannot be continued is lost where its readers come to that change, not before."""
    logged = tail.hold(Named("a", ORDERS))
    read(tail, change("insert", 2, "1"), change("update", 3, "2"), change("delete", 4, "3"))
    assert seen(logged) == ["a:insert", "images_lost", "a:delete"]


def test_routing_of_data_and_control_events(tail: Tail) -> None:
    """Data and drops go to the collection, dropDatabase to the database, an upstream invalidate to all."""
    orders, users, other = (
        tail.hold(Named(name, namespace))
        for name, namespace in (("orders", ORDERS), ("users", USERS), ("other", OTHER))
    )
    read(
        tail,
        change("insert", 2, "1"),
        change("drop", 3, "2", USERS),
        change("dropDatabase", 4, "3", Namespace("app", "")),
        change("invalidate", 5, "4", None),
        change("create", 6, "5"),
        change("insert", 7, "6", None),
    )
    assert seen(orders) == ["orders:insert", "orders:dropDatabase", "orders:invalidate"]
    assert seen(users) == ["users:drop", "users:dropDatabase", "users:invalidate"]
    assert seen(other) == ["other:invalidate"]


def test_a_rename_ends_the_source_and_loses_the_target(tail: Tail) -> None:
    """Documents that no event announced come under the new name: its topics are lost, and are not told to forget."""
    source, target = tail.hold(Named("from", ORDERS)), tail.hold(Named("to", USERS))
    read(tail, *expand(change("rename", 2, "1", ORDERS, kind=DROP, renamed_to=USERS)))
    read(tail, change("insert", 3, "2", USERS))
    assert seen(source) == ["from:rename", "from:invalidate"]
    assert seen(target) == ["event_unavailable", "to:insert"]
    read(tail, *expand(change("drop", 4, "3", USERS, kind=DROP)))
    assert seen(target)[-2:] == ["to:drop", "to:invalidate"]


def test_a_rename_onto_a_watched_collection_at_scope_collection(tail: Tail) -> None:
    """There the invalidate behind it is MongoDB's own and names no collection; it is swallowed as well."""
    target = tail.hold(Named("to", USERS))
    read(tail, change("rename", 2, "1", ORDERS, renamed_to=USERS))
    read(tail, change("invalidate", 2, "2", None))
    assert seen(target) == ["event_unavailable"]


def test_a_record_that_was_read_is_passed_over(tail: Tail) -> None:
    """A stream that was reopened may repeat itself: no second ordinal, no second frame."""
    logged = tail.hold(Named("a", ORDERS))
    first, second = change("insert", 2, "1"), change("delete", 3, "2")
    read(tail, first, second)
    assert read(tail, first, second) == {}
    assert seen(logged) == ["a:insert", "a:delete"]
    tail.trim(0, 0)
    assert read(tail, first, second) == {}
    assert tail.ring.head_ordinal == 2


def test_a_record_of_an_earlier_time_breaks_the_order(tail: Tail) -> None:
    """What was not read and is older than the head can only be a stream that went back."""
    read(tail, change("insert", 2, "1"), change("insert", 5, "2"))
    with pytest.raises(OrderError):
        read(tail, change("insert", 4, "3"))
    assert tail.ring.head_ordinal == 2


def test_a_record_behind_a_boundary_of_its_time(tail: Tail) -> None:
    """A boundary sorts before the records of its time, which may still come."""
    tail.ring.advance(boundary(5))
    read(tail, change("insert", 5, "1"))
    assert tail.ring.head_ordinal == 1


class Router(EveryTopic):
    """Two topics at a time."""

    def route(self, change: Change) -> list[list[LoggedTopic]]:
        members = list(self.members)
        return [members[first : first + 2] for first in range(0, len(members), 2)]


def test_a_record_is_read_in_slices() -> None:
    """Rule 11: others may run after every frame, and after every portion that was asked, frames or not."""
    tail = Tail(boundary(1), build, live=True, router=Router)
    for name in "abc":
        tail.hold(Named(name, ORDERS))
    tail.hold(Named("d", USERS))
    assert len(list(tail.append(change("insert", 2, "1"), {}))) == 3 + 2
    assert len(list(tail.append(change("replace", 3, "2"), {}))) == 2
    assert len(list(tail.append(change("insert", 4, "3", OTHER), {}))) == 0


def test_routing_is_each_collections_own() -> None:
    """A collection that nobody watches any more has no router, and its next topic makes a new one."""
    made: list[EveryTopic] = []

    def router() -> EveryTopic:
        made.append(EveryTopic())
        return made[-1]

    tail = Tail(boundary(1), build, live=True, router=router)
    orders, user = [tail.hold(Named(name, ORDERS)) for name in "ab"], tail.hold(Named("c", USERS))
    assert [list(one.members) for one in made] == [orders, [user]]
    for logged in orders:
        tail.release(logged)
    again = tail.hold(Named("a", ORDERS))
    assert [list(one.members) for one in made] == [[], [user], [again]]


def test_a_new_log_starts_at_the_head(tail: Tail) -> None:
    """A topic that is new to the tail promises nothing of what was read before."""
    read(tail, change("insert", 2, "1"))
    logged = tail.hold(Named("a", ORDERS))
    assert logged.log.start == 1
    assert tail.hold(Named("a", ORDERS)) is logged
    assert (logged.holders, len(tail.topics)) == (2, 1)


def test_the_last_release_forgets_the_topic(tail: Tail) -> None:
    """Nothing is built or kept for a topic without holders."""
    logged, again = tail.hold(Named("a", ORDERS)), tail.hold(Named("a", ORDERS))
    read(tail, change("insert", 2, "1"))
    tail.release(again)
    assert seen(logged) == ["a:insert"]
    tail.release(logged)
    assert not tail.topics
    assert tail.space.size_bytes == 0
    assert read(tail, change("insert", 3, "2")) == {}


def test_a_restart_begins_with_an_empty_ring_and_empty_logs(tail: Tail) -> None:
    """Rule 4: the start is the floor and the head; held topics stay."""
    logged = tail.hold(Named("a", ORDERS))
    read(tail, change("insert", 2, "1"))
    tail.restart(boundary(9))
    assert tail.head == tail.ring.floor == tail.opened_at == boundary(9)
    assert (logged.log.start, len(logged.log), tail.space.size_bytes) == (0, 0, 0)
    read(tail, change("insert", 10, "2"))
    assert seen(logged) == ["a:insert"]


def reader(tail: Tail, logged: LoggedTopic, place: Place, cursor: int) -> Subscription:
    subscription = Subscription(logged.topic, Silent(), boundary(1))
    subscription.place, subscription.cursor = place, cursor
    logged.readers[subscription] = None
    return subscription


def test_a_live_tail_trims_whoever_reads(tail: Tail) -> None:
    """Its bounds hold against a reader that does not move; that reader falls off the log."""
    logged = tail.hold(Named("a", ORDERS))
    reader(tail, logged, Place.LIVE, 0)
    read(tail, *(change("insert", time, str(time)) for time in range(2, 12)))
    tail.trim(3, 0)
    assert len(tail.ring) == 3
    assert (len(logged.log), logged.log.start) == (0, 10)


def test_a_catch_up_tail_keeps_what_its_slowest_reader_needs() -> None:
    """Rule 12: over the limit it must stop reading instead."""
    tail = Tail(boundary(1), build, live=False)
    logged = tail.hold(Named("a", ORDERS))
    slow = reader(tail, logged, Place.CATCHING, 4)
    reader(tail, logged, Place.CATCHING, 9)
    read(tail, *(change("insert", time, str(time)) for time in range(2, 12)))
    tail.trim(3, 0)
    assert tail.slowest_cursor() == 4
    assert (tail.ring.floor_ordinal, logged.log.start) == (4, 4)
    assert tail.over(3, 1 << 20)
    assert tail.over(100, 1)
    slow.cursor = 9
    tail.trim(3, 0)
    assert (tail.ring.floor_ordinal, logged.log.start) == (7, 9)
    assert not tail.over(3, 1 << 20)
