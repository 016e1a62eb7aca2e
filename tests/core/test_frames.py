"""Event frames: what they carry, what they never carry, and what a change that cannot be built costs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from bson import Int64, ObjectId, Timestamp
from bson.datetime_ms import DatetimeMS
from hypothesis import given, settings
from hypothesis import strategies as st

from feedsvc.adapters.mongo.extjson import encode_json
from feedsvc.core.changes import Change, ChangeBody, Namespace, UndecodableError, expand
from feedsvc.core.filters.regex import TooMuchText
from feedsvc.core.frames import FrameBuilder
from feedsvc.core.images import AmbiguousDeltaError, after_image
from feedsvc.core.messages import Event, TopicRequest
from feedsvc.core.policy import Grant
from feedsvc.core.positions import PositionKind, record_position
from feedsvc.core.tail import Loss
from feedsvc.core.tokens import TokenSealer
from feedsvc.core.topics import Topic, effective_topic
from feedsvc.core.visible import same
from tests.core.change_cases import AT, MATCH, ORDERS, OTHER, change, topic

SEALER = TokenSealer([b"k" * 32])
SOURCE = b"s" * 8
_event = msgspec.json.Decoder(Event)


class Built:
    """A frame builder, and what it was told of failures."""

    def __init__(self, max_event_bytes: int = 1 << 20) -> None:
        self.failures: list[tuple[Topic, Exception]] = []
        self.builder = FrameBuilder(
            SEALER,
            SOURCE,
            encode_json,
            max_event_bytes,
            lambda topic, error: self.failures.append((topic, error)),
        )

    def event(self, one: Topic, what: Change) -> dict[str, Any]:
        """The `event` of the frame, after it was held against the struct."""
        frame = self.builder.build(one, what)
        assert isinstance(frame, bytes)
        assert not self.failures
        return checked(frame, one)


def checked(frame: bytes, one: Topic) -> dict[str, Any]:
    """The frame says exactly what `messages.Event` knows: no field is lost by decoding it with the struct."""
    raw = msgspec.json.decode(frame)
    assert msgspec.to_builtins(_event.decode(frame)) == raw
    assert (raw["type"], raw["topic"]) == ("event", one.topic_id)
    event = raw["event"]
    assert isinstance(event, dict)
    return event


OPERATIONS: list[tuple[str, dict[str, Any] | None, dict[str, Any] | None]] = [
    ("insert", None, MATCH),
    ("update", MATCH, MATCH),
    ("update", OTHER, MATCH),
    ("update", MATCH, OTHER),
    ("update", None, MATCH),
    ("update", None, OTHER),
    ("update", None, None),
    ("replace", MATCH, MATCH),
    ("replace", OTHER, MATCH),
    ("replace", MATCH, OTHER),
    ("replace", None, MATCH),
    ("delete", MATCH, None),
    ("delete", None, None),
]


@pytest.mark.parametrize("images", [True, False])
@pytest.mark.parametrize("filtered_by", ["nobody", "client", "policy"])
@pytest.mark.parametrize("operation, before, after", OPERATIONS)
def test_the_rules_of_section_4(
    operation: str,
    before: dict[str, Any] | None,
    after: dict[str, Any] | None,
    filtered_by: str,
    images: bool,
) -> None:
    """Of every case: what goes with which membership, the projection, the key, and the policy without images."""
    one = topic(filtered_by, images=images, hidden={"v": 0})
    key = {"region": "hidden-shard-key", "_id": 1}
    what = change(operation, before if images else None, after, key=key)
    frame = Built().builder.build(one, what)
    if not isinstance(frame, bytes):
        assert frame is None or frame == "images_lost"
        return
    event = checked(frame, one)
    assert event["_id"] == SEALER.seal("acme", one.binding, SOURCE, AT)
    assert event["operationType"] == operation
    assert event["clusterTime"] == {"$timestamp": {"t": 1_800_000_000, "i": 3}}
    assert event["wallTime"] == {"$date": "2027-01-15T08:00:00.123Z"}
    assert event["ns"] == {"coll": "orders"}
    assert event["documentKey"] == {"_id": 1}
    assert "truncated" not in event
    membership = event.get("membership")
    if membership == "left":
        assert not {"fullDocument", "updateDescription"} & set(event)
    if membership == "entered" or operation != "update":
        assert "updateDescription" not in event
    if "fullDocument" in event:
        assert event["fullDocument"] == {"_id": 1, "s": (after or OTHER)["s"]}
        assert filtered_by == "nobody" or event["fullDocument"]["s"] == 1
    if "updateDescription" in event:
        assert event["updateDescription"]["updatedFields"] == {"s": (after or OTHER)["s"]}
    if filtered_by == "policy" and not images:
        assert operation != "delete"
        assert membership != "left"
        assert "updateDescription" not in event


def test_the_same_change_has_the_same_bytes_everywhere() -> None:
    """Two builders (two instances) make equal frames, and the token is that of the position."""
    one, what = topic("client"), change("update", MATCH, MATCH)
    assert Built().builder.build(one, what) == Built().builder.build(topic("client"), what)


def test_an_update_whose_lookup_found_nothing_has_no_document() -> None:
    """`fullDocument` is absent where it is not known; an exact topic without filter does not call that leaving."""
    event = Built().event(topic(), change("update", None, None))
    assert event["membership"] == "stayed"
    assert "fullDocument" not in event
    assert event["updateDescription"]["updatedFields"] == {"s": 2, "v": 5}


def test_values_are_relaxed_extended_json() -> None:
    """Safe integers are numbers, others `$numberLong`; dates, ids and timestamps have their wrappers."""
    document = {
        "_id": ObjectId("0123456789abcdef01234567"),
        "big": Int64(2**53),
        "small": Int64(5),
        "when": DatetimeMS(0),
        "ts": Timestamp(1, 2),
    }
    event = Built().event(topic(), change("insert", None, document, key={"_id": document["_id"]}))
    assert event["documentKey"] == {"_id": {"$oid": "0123456789abcdef01234567"}}
    assert event["fullDocument"] == {
        "_id": {"$oid": "0123456789abcdef01234567"},
        "big": {"$numberLong": str(2**53)},
        "small": 5,
        "when": {"$date": "1970-01-01T00:00:00Z"},
        "ts": {"$timestamp": {"t": 1, "i": 2}},
    }


@pytest.mark.parametrize("operation", ["drop", "rename", "dropDatabase", "invalidate"])
@pytest.mark.parametrize("operations", [["insert"], None])
def test_control_events_are_always_sent(operation: str, operations: list[str] | None) -> None:
    """Whatever operations were asked for; of a rename without the new name; the body is not needed."""

    def body() -> ChangeBody:
        raise UndecodableError

    namespace = Namespace("app", "" if operation == "dropDatabase" else "orders")
    gone = Change(
        record_position(PositionKind.DROP, AT.cluster_time, "82"),
        operation,
        namespace,
        body,
        renamed_to=Namespace("app", "secret-name"),
    )
    one = topic("policy", operations=operations)
    event = Built().event(one, gone)
    assert set(event) == {"_id", "operationType", "clusterTime", "ns"}
    assert (event["operationType"], event["ns"]) == (operation, {"coll": "orders"})


def test_a_drop_and_its_invalidate_have_different_tokens() -> None:
    """A client that finished the drop is owed the invalidate."""
    position = record_position(PositionKind.DROP, AT.cluster_time, "82")
    one, built = topic(), Built()
    drop, invalidate = (built.event(one, what) for what in expand(change("drop", position=position)))
    assert drop["_id"] != invalidate["_id"]
    assert SEALER.open("acme", drop["_id"]).position == position


def test_a_large_event_loses_its_document() -> None:
    """Beyond the bound the documents are left out, and the event says so; at the bound it is whole."""
    document = {"_id": 1, "s": 1, "v": "x" * 2000}
    what, one = change("update", document, document), topic()
    whole = Built().builder.build(one, what)
    assert isinstance(whole, bytes)
    assert "fullDocument" in Built(len(whole)).event(one, what)
    event = Built(len(whole) - 1).event(one, what)
    assert event["truncated"] is True
    assert event["membership"] == "stayed"
    assert not {"fullDocument", "updateDescription"} & set(event)


def test_an_event_that_is_too_large_without_its_document_loses_the_topic() -> None:
    """An `_id` of that size: the frame would end every connection that reads it, at each replay."""
    huge = "x" * 5000
    outcome = Built(4000).builder.build(topic(), change("delete", MATCH, None, key={"_id": huge}))
    assert isinstance(outcome, Loss)
    assert outcome == "event_unavailable"


def test_images_that_are_gone_lose_the_topic() -> None:
    """An exact view cannot be continued without them."""
    outcome = Built().builder.build(topic("client"), change("update", None, MATCH))
    assert isinstance(outcome, Loss)
    assert outcome == "images_lost"


def undecodable() -> ChangeBody:
    raise UndecodableError("invalid UTF-8")


@pytest.mark.parametrize(
    "what",
    [
        Change(AT, "insert", ORDERS, undecodable),
        change("insert", None, MATCH, key={"region": 1}),
        Change(AT, "insert", ORDERS, lambda: ChangeBody(None, MATCH)),
        change("insert", None, MATCH | {"v": "\ud800"}),
    ],
    ids=["body", "key without _id", "no key", "not JSON"],
)
def test_a_change_that_cannot_be_read_loses_the_topic(what: Change) -> None:
    """`event_unavailable`, without a report: it is the data's fault, and is counted as a loss."""
    built = Built()
    outcome = built.builder.build(topic(), what)
    assert isinstance(outcome, Loss)
    assert outcome == "event_unavailable"
    assert not built.failures


def test_only_the_topics_that_see_it_are_lost() -> None:
    """One that hides the broken field, or does not want the operation, goes on."""
    built, broken = Built(), change("insert", None, MATCH | {"v": "\ud800"})
    assert isinstance(built.builder.build(topic(), broken), Loss)
    assert built.event(topic(fields={"v": 0}), broken)["fullDocument"] == {"_id": 1, "s": 1}
    assert (
        built.builder.build(topic(operations=["delete"]), Change(AT, "insert", ORDERS, undecodable)) is None
    )
    assert built.event(topic(), change("insert", None, MATCH))["fullDocument"] == MATCH


def test_an_unexpected_exception_is_reported_and_costs_one_topic() -> None:
    """A fault in the service must not stop the tail, nor the other topics of the change."""
    error = RuntimeError("a fault")

    def body() -> ChangeBody:
        raise error

    built, one = Built(), topic()
    outcome = built.builder.build(one, Change(AT, "insert", ORDERS, body))
    assert isinstance(outcome, Loss)
    assert outcome == "event_unavailable"
    assert built.failures == [(one, error)]
    other = topic(operations=["delete"])
    assert built.builder.build(other, Change(AT, "insert", ORDERS, body)) is None
    assert len(built.failures) == 1


# -- nothing hidden gets out ------------------------------------------------------------------------------

SECRET = "SECRET"
HIDDEN: list[tuple[dict[str, Any], dict[str, Any]]] = [
    # (policy, client): in each of them `cost` and `a.cost` are hidden
    ({"cost": 0, "a.cost": 0}, {}),
    ({"b": 1, "a.x": 1, "a.0": 1}, {}),
    ({"cost": 0}, {"a.cost": 0}),
    ({"a.cost": 0}, {"a": 1, "s": 1}),
    ({"cost": 0, "a": 0}, {"a": 1, "cost": 1}),
]
OPEN = st.sampled_from([1, 2, "open", None])
secrets: st.SearchStrategy[Any] = st.recursive(
    st.just(SECRET),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=2)
        | st.dictionaries(st.sampled_from(["x", "0", "cost", "c.d"]), inner, min_size=1, max_size=2)
    ),
    max_leaves=3,
)
below_a = st.fixed_dictionaries({}, optional={"x": OPEN, "0": OPEN, "cost": secrets})
documents = st.fixed_dictionaries(
    {"_id": st.just(1), "s": st.sampled_from([1, 2])},
    optional={
        "a": st.one_of(OPEN, below_a, st.lists(below_a, max_size=2), st.lists(st.lists(below_a), max_size=2)),
        "b": OPEN,
        "cost": secrets,
    },
)


def delta(draw: st.DrawFn, before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """A description of the change as MongoDB might give it: whole values, or dotted paths into what exists."""
    updated: dict[str, Any] = {}
    removed: list[str] = []

    def walk(path: str, old: Any, new: Any) -> None:
        if isinstance(old, dict) and isinstance(new, dict) and draw(st.booleans()):
            for name in old:
                if name not in new:
                    removed.append(f"{path}.{name}")
            for name, value in new.items():
                if name not in old:
                    updated[f"{path}.{name}"] = value
                elif old[name] != value:
                    walk(f"{path}.{name}", old[name], value)
        elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new) and draw(st.booleans()):
            for index, (one, other) in enumerate(zip(old, new, strict=True)):
                if one != other:
                    walk(f"{path}.{index}", one, other)
        else:
            updated[path] = new

    for name in before:
        if name not in after:
            removed.append(name)
    for name, value in after.items():
        if name not in before:
            updated[name] = value
        elif before[name] != value:
            walk(name, before[name], value)
    return {"updatedFields": updated, "removedFields": removed, "truncatedArrays": []}


@st.composite
def changes(draw: st.DrawFn) -> Change:
    before, after = draw(documents), draw(documents)
    operation = draw(st.sampled_from(["insert", "update", "update", "update", "replace", "delete"]))
    known_before = None if operation == "insert" else draw(st.sampled_from([before, before, None]))
    looked_up = draw(st.sampled_from([after, draw(documents), None])) if operation == "update" else after
    return change(
        operation,
        known_before,
        None if operation == "delete" else looked_up,
        update=delta(draw, before, after) if operation == "update" else None,
        key={"_id": 1, "cost": SECRET},
    )


@given(
    changes(),
    st.sampled_from(HIDDEN),
    st.sampled_from(["nobody", "client", "policy"]),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=250)
def test_no_value_of_a_hidden_field_is_in_any_frame(
    what: Change,
    projections: tuple[dict[str, Any], dict[str, Any]],
    filtered_by: str,
    images: bool,
    short: bool,
) -> None:
    """Whatever the operation, the images, the shape of the delta and the bound on size."""
    hidden, fields = projections
    one = topic(filtered_by, images=images, hidden=hidden, fields=fields)
    built = Built(400 if short else 1 << 20)
    frame = built.builder.build(one, what)
    assert not built.failures
    if isinstance(frame, bytes):
        assert SECRET.encode() not in frame
        checked(frame, one)
    else:
        assert frame in (None, "images_lost")


@given(st.data())
@settings(max_examples=100)
def test_an_exact_frame_shows_the_document_that_the_update_made(data: st.DataObject) -> None:
    """With a pre-image, `fullDocument` is the projection of the true document after the update."""
    before, after = data.draw(documents), data.draw(documents)
    update = data.draw(st.composite(lambda draw: delta(draw, before, after))())
    try:
        made = after_image(before, update)
    except AmbiguousDeltaError:
        return
    assert made == after
    one = topic(hidden={"cost": 0})
    what = change("update", before, {"_id": 1, "s": 9}, update=update)
    seen, now = ({name: value for name, value in each.items() if name != "cost"} for each in (before, after))
    if same(seen, {name: now[name] for name in made if name != "cost"}):
        assert Built().builder.build(one, what) is None  # only what is hidden changed
    else:
        assert Built().event(one, what)["fullDocument"] == now


def test_what_topics_have_in_common_is_written_once() -> None:
    """Of 50 topics that see an update, each has its own id and token; the rest is encoded once for each projection."""
    encoded: list[object] = []

    def counted(tree: object) -> bytes:
        encoded.append(tree)
        return encode_json(tree)

    builder = FrameBuilder(SEALER, SOURCE, counted, 1 << 20, lambda _, error: None)
    plain = [narrow({"s": 1, "v": {"$gt": n - 50}}, {}) for n in range(25)]
    small = [narrow({"s": 1, "v": {"$gt": n - 50}}, {"v": 1}) for n in range(25)]
    what = change("update", MATCH, MATCH)
    frames = [builder.build(one, what) for one in (*plain, *small)]
    assert len(encoded) == 2
    assert frames == [Built().builder.build(one, what) for one in (*plain, *small)]
    assert len(set(frames)) == 50


def narrow(filter: dict[str, Any], fields: dict[str, Any]) -> Topic:
    """A topic of a client with this filter and these fields."""
    grant = Grant("acme", "app", "orders", {}, {}, True)
    return effective_topic(grant, TopicRequest("orders", filter=filter, fields=fields), images=True)


def test_a_document_that_cannot_be_written_is_tried_once() -> None:
    """However many topics see it, each of them is lost."""
    tried: list[object] = []

    def refused(tree: object) -> bytes:
        tried.append(tree)
        if isinstance(tree, dict) and "fullDocument" in tree:
            raise UndecodableError
        return encode_json(tree)

    builder = FrameBuilder(SEALER, SOURCE, refused, 1 << 20, lambda _, error: None)
    what = change("insert", None, MATCH)
    for n in range(10):
        assert builder.build(narrow({"v": {"$gt": -n}}, {}), what) == Loss("event_unavailable")
    assert len(tried) == 1


def test_a_change_with_more_text_than_the_filter_may_search_loses_that_topic_alone() -> None:
    """Nobody knows whether it matches: it is neither left out in silence nor searched for long."""
    built = Built()
    request = TopicRequest("orders", filter={"text": {"$regex": "a[ab]{30}c"}})
    asks = effective_topic(Grant("acme", "app", "orders", {}, {}, True), request, images=True)
    other = topic(fields={"text": 0})
    what = change("insert", after={"_id": 1, "text": "x" * (1 << 20)})
    assert built.builder.build(asks, what) == Loss("event_unavailable")
    assert [type(error) for _, error in built.failures] == [TooMuchText]
    assert isinstance(built.builder.build(other, what), bytes)


def test_the_events_that_topics_of_many_kinds_are_shown_are_not_all_kept() -> None:
    """They stay until the next change: of a large document they would be as much memory as there are kinds."""
    built = Built(max_event_bytes=20_000)
    what = change("insert", after={"_id": 1, "text": "x" * 10_000})
    for n in range(100):
        event = built.event(topic(fields={f"f{n}": 0}), what)
        assert len(event["fullDocument"]["text"]) == 10_000
    assert sum(len(text) for text in built.builder._texts.values() if isinstance(text, bytes)) <= 180_000
