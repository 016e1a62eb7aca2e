"""The matcher: whatever it leaves out would not have been seen, and what is equal costs nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from feedsvc.adapters.mongo.extjson import encode_json
from feedsvc.core.changes import Change
from feedsvc.core.frames import FrameBuilder
from feedsvc.core.matcher import PORTION, IndexPlan, Matcher, plan
from feedsvc.core.membership import ChangeView
from feedsvc.core.positions import boundary
from feedsvc.core.tail import EveryTopic, LoggedTopic, Router, Tail
from feedsvc.core.tokens import TokenSealer
from feedsvc.core.topics import Topic
from tests.core.change_cases import AT, ORDERS, change
from tests.core.match_cases import Draw, broken, topic


def matcher(*topics: Topic) -> Matcher:
    made = Matcher(ChangeView)
    for one in topics:
        made.add(LoggedTopic(one, 0))
    return made


def routed(made: Matcher, what: Change) -> list[Topic]:
    topics = [logged.topic for portion in made.route(what) for logged in portion]
    assert len(topics) == len(set(topics))
    return topics  # type: ignore[return-value]


# -- the rule -----------------------------------------------------------------------------------------------


def logs(
    router: Callable[[FrameBuilder], Router], topics: Sequence[Topic], changes: Sequence[Change]
) -> list[list[tuple[int, bytes, str | None]]]:
    """What stands in the log of each topic after these changes."""
    failures: list[Exception] = []
    builder = FrameBuilder(
        TokenSealer([b"k" * 32]), b"s" * 8, encode_json, 1 << 20, lambda _, error: failures.append(error)
    )
    tail = Tail(boundary(0), builder.build, live=True, router=lambda: router(builder))
    held = [tail.hold(one) for one in topics]
    for what in changes:
        for _ in tail.append(what, {}):
            pass
    assert not failures
    entries = [logged.log.after(0, 1 << 30) for logged in held]
    return [[(entry.ordinal, entry.frame, entry.loss) for entry in one] for one in entries]


def compare(seed: int) -> int:
    """With the index and without, every log has the same frames and losses; how many there were."""
    draw = Draw(seed)
    topics = list({draw.topic(): None for _ in range(8)})
    changes = [draw.change(number) for number in range(1, 6)]
    asked = logs(lambda _: EveryTopic(), topics, changes)
    assert logs(lambda builder: Matcher(builder.view), topics, changes) == asked, f"seed {seed}"
    return sum(map(len, asked))


def test_the_index_gives_what_asking_every_topic_gives() -> None:
    """Random topics and changes; two in ten of what was asked must have been seen, or nothing was shown."""
    assert sum(compare(seed) for seed in range(300)) > 0.2 * 300 * 8 * 5


@pytest.mark.verify
def test_the_index_gives_what_asking_every_topic_gives_at_length() -> None:
    """The same, 400,000 times a topic and a change."""
    scale = 1_000 if os.environ.get("VERIFY_SCALE") == "short" else 10_000
    print(sum(compare(seed) for seed in range(scale)), "frames and losses of", scale * 8 * 5)


# -- what it costs -------------------------------------------------------------------------------------------

CROWD = 100


@pytest.mark.parametrize("images", [True, False])
@pytest.mark.parametrize("policy", [{}, {"t": 1}])
def test_of_a_crowd_of_equalities_only_those_that_agree_are_told(
    images: bool, policy: dict[str, Any]
) -> None:
    """On one field, on two, on as many fields as topics, behind a policy: an insert tells one topic of them."""
    shapes: list[Callable[[int], dict[str, Any]]] = [
        lambda n: {"a": n},
        lambda n: {"a": n, "b": "open"},
        lambda n: {"a": n // 10, "b": n % 10},
        lambda n: {f"f{n}": 1},
        lambda n: {"$or": [{"a": n}, {"b": n + CROWD}]},
    ]
    documents: list[dict[str, Any]] = [
        {"a": 7},
        {"a": 7, "b": "open"},
        {"a": 0, "b": 7},
        {"f7": 1},
        {"a": 7, "b": 7 + CROWD},
    ]
    for document, shape in zip(documents, shapes, strict=True):
        made = matcher(*(topic(shape(n), policy=policy, images=images) for n in range(CROWD)))
        assert routed(made, change("insert", None, document | {"t": 1})) == [
            topic(shape(7), policy=policy, images=images)
        ]


def test_an_update_tells_who_lost_the_document_and_who_has_it_now() -> None:
    """With images both states are looked up; behind a policy filter without images only the later one is known."""
    exact = [topic({"a": n}) for n in range(20)]
    update = {"updatedFields": {"a": 5}, "removedFields": [], "truncatedArrays": []}
    what = change("update", {"a": 3}, {"a": 9}, update=update)
    assert routed(matcher(*exact), what) == [exact[3], exact[5]]
    closed = [topic({"a": n}, policy={"$or": [{"a": {"$gt": -1}}]}, images=False) for n in range(20)]
    assert routed(matcher(*closed), what) == [closed[9]]
    assert routed(matcher(*closed), change("delete", {"a": 3})) == []


def test_who_must_be_told_whatever_the_document() -> None:
    """Without a filter; without images and policy filter, of all but inserts; on images where one is missing."""
    everything, one, other = topic({}), topic({"a": 1}), topic({"a": 2}, images=False)
    made = matcher(everything, one, other)
    image = {"a": 3, "s": 1, "v": 1}
    assert set(routed(made, change("insert", None, image))) == {everything}
    assert set(routed(made, change("update", image, image))) == {everything, other}
    assert set(routed(made, change("update", None, image))) == {everything, one, other}
    assert set(routed(made, change("delete", image))) == {everything, other}


def test_the_clients_fields_are_looked_up_behind_the_policys_projection() -> None:
    """An inclusion drops the scalars of an array, which moves what is behind them; a hidden field is not found."""
    moved = topic({"a.0.b": 1}, hidden={"a.b": 1})
    probing = topic({"secret": 1}, hidden={"secret": 0})
    what = change("insert", None, {"a": [5, {"b": 1}], "secret": 1})
    assert routed(matcher(moved, probing), what) == [moved]


def test_a_body_that_cannot_be_decoded_is_told_to_all_of_its_collection() -> None:
    """They are lost; the topics of other collections hear nothing."""
    topics = [topic({"a": n}) for n in range(5)]
    what = Change(AT, "insert", ORDERS, broken)
    assert routed(matcher(*topics), what) == topics


def test_a_value_of_no_bson_type_is_each_topics_own_failure() -> None:
    """The look-up cannot go on, so all are told, and `Build` finds out which of them it concerns."""
    topics = [topic({"a": 1}), topic({"b": 1})]
    assert routed(matcher(*topics), change("insert", None, {"a": object(), "b": 1})) == topics


@pytest.mark.parametrize("wanted", [{"v": {"$gt": 1}}, {"a": 1, "v": {"$gt": 1}}])
def test_others_may_run_between_the_portions_of_a_crowd(wanted: dict[str, Any]) -> None:
    """Those that have to be asked are asked a portion at a time, also where most of them do not see the change."""
    topics = [topic(wanted | {"w": {"$lt": n}}) for n in range(PORTION * 3 + 1)]
    made = matcher(*topics)
    portions = list(made.route(change("insert", None, {"a": 1, "v": 2, "w": 5})))
    assert len(portions) == 4
    assert [logged.topic for portion in portions for logged in portion] == topics[6:]
    assert sum(map(len, portions)) == len(topics) - 6


@pytest.mark.parametrize(
    ("size_bytes", "largest"), [(1_000, PORTION), (40_960, PORTION // 10), (16 << 20, 1)]
)
def test_of_a_large_change_fewer_topics_are_asked_at_a_time(size_bytes: int, largest: int) -> None:
    """Each of them may search all of its text."""
    made = matcher(*[topic({"w": {"$lt": n}}) for n in range(PORTION * 2)])
    what = msgspec.structs.replace(change("insert", None, {"a": 1, "v": 2, "w": -1}), size_bytes=size_bytes)
    assert max(map(len, made.route(what))) == largest


def test_topics_that_came_and_went_leave_nothing() -> None:
    """Of every kind and access path."""
    draw, made = Draw(1), Matcher(ChangeView)
    held = [LoggedTopic(draw.topic(), 0) for _ in range(CROWD)]
    for logged in held:
        made.add(logged)
    assert len(made.members) == CROWD
    for logged in held:
        made.remove(logged)
    assert not made.members
    assert all(
        not group.members and not group.lookups and not group.scanned for group in made._groups.values()
    )


@pytest.mark.parametrize(
    "one, expected",
    [
        (topic({}), IndexPlan((), False, True, 0)),
        (topic({"b": 1, "a": {"$in": [1, 2]}}), IndexPlan((("a", "b"),), False, False, 0)),
        (topic({"a": 1, "b.c": {"$gt": 1}}), IndexPlan((("a",),), True, False, 6)),
        (topic({"a": {"$gt": 1}}), IndexPlan((), True, True, 2)),
        (topic({"$or": [{"a": 1}, {"b": 1}]}), IndexPlan((("a",), ("b",)), False, False, 0)),
        (topic({"a": 1}, images=False), IndexPlan((("a",),), False, True, 0)),
        (topic({"a": 1}, images=False, operations=["insert"]), IndexPlan((("a",),), False, False, 0)),
        (topic({"a": 1}, images=False, policy={"t": 1}), IndexPlan((("a", "t"),), False, False, 0)),
        (topic({"a": {"$regex": "x"}}, images=False), IndexPlan((), True, True, 4)),
    ],
)
def test_the_plan_says_what_the_index_does(one: Topic, expected: IndexPlan) -> None:
    """Which look-ups find a topic, whether its filter has more to say, whether it is asked whatever comes."""
    assert plan(one) == expected
