"""What is hidden makes no difference: to no byte of a frame, nor to whether there is one."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from feedsvc.adapters.mongo.extjson import encode_json
from feedsvc.core.changes import Change
from feedsvc.core.frames import FrameBuilder
from feedsvc.core.images import AmbiguousDeltaError, after_image
from feedsvc.core.projection import Projection
from feedsvc.core.tail import Loss
from feedsvc.core.tokens import TokenSealer
from feedsvc.core.topics import Topic
from feedsvc.core.visible import same
from tests.core.change_cases import change, topic
from tests.core.hidden_cases import (
    POLICIES,
    descriptions,
    documents,
    marked,
    scalars,
    variants,
    with_secret,
)

FILTERED = ("nobody", "client", "policy")


def frame_of(one: Topic, what: Change) -> bytes | Loss | None:
    failures: list[Exception] = []
    builder = FrameBuilder(
        TokenSealer([b"k" * 32]), b"s" * 8, encode_json, 1 << 20, lambda _, error: failures.append(error)
    )
    frame = builder.build(one, what)
    assert not failures
    return frame


def update_of(updated: dict[str, Any], removed: list[str] | None = None, **more: Any) -> dict[str, Any]:
    return {"updatedFields": updated, "removedFields": removed or [], "truncatedArrays": [], **more}


MANY = 500 if os.environ.get("VERIFY_SCALE") == "short" else 5_000
wide = settings(
    max_examples=MANY,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
OPERATIONS = st.sampled_from(["update", "update", "update", "replace", "replace", "insert", "delete"])


@settings(max_examples=100)
@given(OPERATIONS, st.sampled_from(FILTERED), st.data())
def test_with_images_two_changes_that_look_alike_give_the_same_bytes(
    operation: str, filtered_by: str, data: st.DataObject
) -> None:
    """Whatever the operators were, and however MongoDB described what they did."""
    check_with_images(operation, filtered_by, data)


@pytest.mark.verify
@wide
@given(OPERATIONS, st.sampled_from(FILTERED), st.data())
def test_with_images_many_pairs_of_changes(operation: str, filtered_by: str, data: st.DataObject) -> None:
    """5,000 pairs (500 with VERIFY_SCALE=short)."""
    check_with_images(operation, filtered_by, data)


def check_with_images(operation: str, filtered_by: str, data: st.DataObject) -> None:
    fields = data.draw(st.sampled_from(POLICIES))
    policy = Projection.parse(fields)
    stage = policy.stages[0]
    client = data.draw(st.sampled_from([{}, {"a": 1}, {"lines.x": 1}, {"a.b": 0}]))
    one = topic(filtered_by, hidden=fields, fields=client)
    before = data.draw(documents)
    after = data.draw(st.one_of(documents, st.just(before), variants(before, stage.tree, stage.include)))
    after = {"_id": 1, **after}
    frames: list[bytes | Loss | None] = []
    seen: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for _ in range(2):
        was = {"_id": 1, **data.draw(variants(before, stage.tree, stage.include))}
        now = {"_id": 1, **data.draw(variants(after, stage.tree, stage.include))}
        update = data.draw(descriptions(was, now)) if operation == "update" else None
        if update is not None:
            try:
                now = after_image(was, update)
            except AmbiguousDeltaError:
                assume(False)
        seen.append((policy.apply(was), policy.apply(now)))
        lookup = data.draw(st.sampled_from([now, was, None])) if operation == "update" else now
        what = change(
            operation,
            None if operation == "insert" else was,
            None if operation == "delete" else lookup,
            update=update,
            key={"_id": 1, "cost": data.draw(scalars)},
        )
        frames.append(frame_of(one, what))
    # A parent written whole has its fields in another order than one written by paths: that can be seen.
    assume(same(seen[0], seen[1]))
    assert frames[0] == frames[1]
    told = frames[0] is not None
    if operation in ("update", "replace") and filtered_by == "nobody":
        assert told is not same(*seen[0])


@settings(max_examples=100)
@given(OPERATIONS, st.sampled_from(FILTERED), st.data())
def test_without_images_hidden_values_make_no_difference(
    operation: str, filtered_by: str, data: st.DataObject
) -> None:
    """The same writes with other hidden values, and the same writes to other hidden fields besides."""
    check_without_images(operation, filtered_by, data)


@pytest.mark.verify
@wide
@given(OPERATIONS, st.sampled_from(FILTERED), st.data())
def test_without_images_many_pairs_of_changes(operation: str, filtered_by: str, data: st.DataObject) -> None:
    """5,000 pairs (500 with VERIFY_SCALE=short)."""
    check_without_images(operation, filtered_by, data)


def check_without_images(operation: str, filtered_by: str, data: st.DataObject) -> None:
    fields = data.draw(st.sampled_from(POLICIES))
    stage = Projection.parse(fields).stages[0]
    one = topic(filtered_by, images=False, hidden=fields)
    before = data.draw(documents.flatmap(lambda each: marked(each, stage.tree, stage.include)))
    after = data.draw(documents.flatmap(lambda each: marked(each, stage.tree, stage.include)))
    update = data.draw(descriptions(before, after)) if operation == "update" else None
    lookup = data.draw(st.sampled_from([after, before, None])) if operation == "update" else after
    frames = []
    for secret in (1, "another"):
        what = change(
            operation,
            None,
            None if operation == "delete" else with_secret(lookup, secret),
            update=with_secret(update, secret),
            key={"_id": 1, "cost": secret},
        )
        frames.append(frame_of(one, what))
    assert frames[0] == frames[1]
    if isinstance(frames[0], bytes):
        assert b"another" not in frames[0]
    if update is not None and "cost" in fields and isinstance(frames[0], bytes):
        more = {**update, "updatedFields": {"cost": 1, **update["updatedFields"]}}
        lookup_now = with_secret(lookup, 1)
        assert frame_of(one, change("update", None, lookup_now, update=with_secret(more, 1))) == frames[0]


# -- what is told, case by case ---------------------------------------------------------------------------------

BEFORE: dict[str, Any] = {
    "_id": 1,
    "s": 1,
    "cost": 5,
    "a": {"x": 1, "cost": 2},
    "lines": [{"x": 1, "cost": 3}],
}
HIDDEN = {"cost": 0, "a.cost": 0, "lines.cost": 0}
HIDDEN_WRITES: list[dict[str, Any]] = [
    update_of({"cost": 6}),
    update_of({"a.cost": 6, "cost": 1}),
    update_of({"lines.0.cost": 6}),
    update_of({}, ["cost", "a.cost"]),
    update_of({"a.cost": {"deep": [1]}}),
]


@pytest.mark.parametrize("update", HIDDEN_WRITES)
def test_an_update_of_hidden_fields_alone_is_not_told(update: dict[str, Any]) -> None:
    """With images by the documents, without by the paths; a policy filter without images cannot tell, so it tells."""
    after = after_image(BEFORE, update)
    for filtered_by in FILTERED:
        assert (
            frame_of(topic(filtered_by, hidden=HIDDEN), change("update", BEFORE, after, update=update))
            is None
        )
    for filtered_by in ("nobody", "client"):
        partial = topic(filtered_by, images=False, hidden=HIDDEN)
        assert frame_of(partial, change("update", None, after, update=update)) is None
    policy = topic("policy", images=False, hidden=HIDDEN)
    assert isinstance(frame_of(policy, change("update", None, after, update=update)), bytes)


def test_the_fields_of_the_client_suppress_nothing() -> None:
    """What it left out it may ask for: an update of it is an event of the topic."""
    update = update_of({"cost": 6})
    after = after_image(BEFORE, update)
    for images in (True, False):
        one = topic(images=images, fields=HIDDEN)
        assert isinstance(
            frame_of(one, change("update", BEFORE if images else None, after, update=update)), bytes
        )
        one = topic(images=images, hidden={"a.cost": 0}, fields={"s": 1})
        assert isinstance(
            frame_of(one, change("update", BEFORE if images else None, after, update=update)), bytes
        )


def test_a_hidden_field_that_the_policy_filters_by_moves_documents() -> None:
    """Entering and leaving are told although nothing visible changed."""
    one = topic("policy", hidden={"s": 0})
    for was, now, membership in ((2, 1, b"entered"), (1, 2, b"left")):
        update = update_of({"s": now})
        frame = frame_of(one, change("update", {**BEFORE, "s": was}, {**BEFORE, "s": now}, update=update))
        assert isinstance(frame, bytes)
        assert b'"membership":"%b"' % membership in frame
        assert (b"fullDocument" in frame) is (membership == b"entered")


def test_a_lost_pre_image_leaves_the_paths_to_decide() -> None:
    """A topic without filters needs no image, and hides as well without it."""
    one = topic(hidden=HIDDEN)
    after = after_image(BEFORE, HIDDEN_WRITES[0])
    assert frame_of(one, change("update", None, after, update=HIDDEN_WRITES[0])) is None
    told = frame_of(one, change("update", None, BEFORE, update=update_of({"cost": 1, "s": 1})))
    assert isinstance(told, bytes)
    assert b'"updateDescription":{"updatedFields":{"s":1},' in told


@pytest.mark.parametrize(
    "update, lookup",
    [
        # Gone when it was looked up: `cost.x` may be one name.
        (update_of({"cost.x": 1}), None),
        (update_of({"cost.x": 1}), {"_id": 1, "cost.x": 1, "cost": {}}),
        (update_of({"lines.0.cost": 1}), {"_id": 1, "lines": "changed since"}),
        (update_of({"cost": 1, "s": 1}), BEFORE),
        (update_of({"a": {"cost": 1}}), BEFORE),
    ],
)
def test_in_doubt_an_update_is_told(update: dict[str, Any], lookup: dict[str, Any] | None) -> None:
    """Without images: to lose a visible change is worse."""
    frame = frame_of(topic(images=False, hidden=HIDDEN), change("update", None, lookup, update=update))
    assert isinstance(frame, bytes)


def test_where_paths_are_stated_nothing_is_in_doubt() -> None:
    """`disambiguatedPaths` takes the place of an image."""
    one = topic(images=False, hidden=HIDDEN)
    plain = update_of({"cost.x": 1}, disambiguatedPaths={})
    dotted = update_of({"cost.x": 1}, disambiguatedPaths={"cost.x": ["cost.x"]})
    assert frame_of(one, change("update", None, None, update=plain)) is None
    assert isinstance(frame_of(one, change("update", None, None, update=dotted)), bytes)


def test_a_description_counts_no_hidden_elements() -> None:
    """An inclusion drops the scalars of an array: with images indexes are those of the visible array, without them
    there is no description."""
    before = {"_id": 1, "lines": [7, 7, {"x": 1, "cost": 1}, {"x": 5}, {"x": 6}]}
    update = update_of({"lines.2.x": 2})
    after = after_image(before, update)
    frame = frame_of(topic(hidden={"lines.x": 1}), change("update", before, after, update=update))
    assert isinstance(frame, bytes)
    assert b'"updatedFields":{"lines.0.x":2}' in frame
    for shorter in (update, update_of({}, truncatedArrays=[{"field": "lines", "newSize": 3}])):
        one = topic(images=False, hidden={"lines.x": 1})
        frame = frame_of(one, change("update", None, after, update=shorter))
        assert isinstance(frame, bytes)
        assert b"updateDescription" not in frame


def test_a_parent_whose_hidden_part_changed_is_not_in_the_description() -> None:
    """`$set` of a whole parent is described by MongoDB only where it changed something."""
    update = update_of({"a": {"x": 1, "cost": 9}, "s": 1.0})
    after = after_image(BEFORE, update)
    frame = frame_of(topic(hidden=HIDDEN), change("update", BEFORE, after, update=update))
    assert isinstance(frame, bytes)
    assert b'"updateDescription":{"updatedFields":{"s":1.0},"removedFields":[],"truncatedArrays":[]}' in frame


def test_topics_of_different_policies_share_a_builder() -> None:
    """Of one change each sees what its own policy leaves."""
    update = update_of({"cost": 6, "a.x": 2})
    what = change("update", BEFORE, after_image(BEFORE, update), update=update)
    policies: list[dict[str, Any]] = [{"cost": 0}, {"a": 0}, {"cost": 0}, {}, {"cost": 0, "a": 0}]
    topics = [topic(hidden=hidden) for hidden in policies]
    builder = FrameBuilder(TokenSealer([b"k" * 32]), b"s" * 8, encode_json, 1 << 20, lambda *_: None)
    assert [builder.build(one, what) for one in topics] == [frame_of(one, what) for one in topics]
    assert builder.build(topics[-1], what) is None
