"""The membership decision, case by case (protocol.md sections 4 and 7)."""

from __future__ import annotations

from typing import Any

import pytest

from feedsvc.core.changes import Change, ChangeBody, UndecodableError
from feedsvc.core.membership import ChangeView, Decision, decide
from feedsvc.core.tail import Loss
from tests.core.change_cases import AT, MATCH, ORDERS, OTHER, change, topic

IMAGES: dict[str, dict[str, Any] | None] = {"match": MATCH, "other": OTHER, "none": None}
FILTERS = ("nobody", "client", "policy")

# What is expected: (membership, is there a document, is there an update), "lost", or None for nothing at all.
Expected = tuple[str | None, bool, bool] | str | None
ENTERED: Expected = ("entered", True, False)
LEFT: Expected = ("left", False, False)


def stayed(operation: str) -> Expected:
    return ("stayed", True, operation == "update")


def expected_exact(operation: str, before: str, after: str) -> Expected:
    """With images and a filter of whomever: membership is decided on both images, or the topic is lost."""
    if operation == "insert":
        return ENTERED if after == "match" else None
    if before == "none":
        return "lost"
    was, now = before == "match", after == "match"
    if now:
        return stayed(operation) if was else ENTERED
    return LEFT if was else None


def expected_everything(operation: str, before: str, after: str, images: bool) -> Expected:
    """Without any filter no image is needed: what exists is in, what is deleted is out."""
    if operation == "insert":
        return ENTERED
    if operation == "delete":
        return LEFT
    if after == "none":
        known = images and before != "none"
        return ("stayed", known, True) if images else LEFT
    return stayed(operation)


def expected_partial(operation: str, after: str, filtered_by: str) -> Expected:
    """Without images only what the lookup found is known."""
    policy = filtered_by == "policy"
    if operation == "insert":
        return ENTERED if after == "match" else None
    if operation == "delete" or after != "match":
        return None if policy else LEFT
    return (None, True, operation == "update" and not policy)


CASES = [
    (operation, before, after, images, filtered_by)
    for operation in ("insert", "update", "replace", "delete")
    for before in (("none",) if operation == "insert" else IMAGES)
    for after in (
        ("none",) if operation == "delete" else IMAGES if operation == "update" else ("match", "other")
    )
    for images in (True, False)
    for filtered_by in FILTERS
    # Without images there is no pre-image.
    if images or before == "none"
]


@pytest.mark.parametrize("operation, before, after, images, filtered_by", CASES)
def test_every_case(operation: str, before: str, after: str, images: bool, filtered_by: str) -> None:
    """Operation x before x after x images x whose filter, against the rules written as separate functions."""
    document = IMAGES[after]
    if operation == "update" and images and before != "none" and after == "none":
        # The lookup found nothing, but image and delta say what the update made: here a document that does not match.
        effective_after = "other"
    else:
        effective_after = after
    if filtered_by == "nobody":
        expected = expected_everything(operation, before, after, images)
    elif images:
        expected = expected_exact(operation, before, effective_after)
    else:
        expected = expected_partial(operation, after, filtered_by)
    outcome = decide(
        topic(filtered_by, images=images), ChangeView(change(operation, IMAGES[before], document))
    )
    found: Expected
    if isinstance(outcome, Loss):
        assert outcome == "images_lost"
        found = "lost"
    elif outcome is None:
        found = None
    else:
        found = (
            outcome.membership,
            outcome.document is not None,
            outcome.update is not None and operation == "update",
        )
    assert found == expected


@pytest.mark.parametrize("images", [True, False])
@pytest.mark.parametrize("filtered_by", FILTERS)
@pytest.mark.parametrize("operation", ["insert", "update", "replace", "delete"])
def test_other_operations_are_not_seen(operation: str, filtered_by: str, images: bool) -> None:
    """The client's list names MongoDB's operation, whatever the membership; what it leaves out is not even decoded."""

    def body() -> ChangeBody:
        raise UndecodableError

    others = [name for name in ("insert", "update", "replace", "delete") if name != operation]
    one = topic(filtered_by, images=images, operations=others)
    assert decide(one, ChangeView(Change(AT, operation, ORDERS, body))) is None


def test_an_exact_update_is_decided_at_its_own_event() -> None:
    """The lookup may show a later state: the pre-image and the delta decide, and are what is sent."""
    later = {"_id": 1, "s": 2, "v": 99}
    update = {"updatedFields": {"s": 1}, "removedFields": [], "truncatedArrays": []}
    outcome = decide(topic("client"), ChangeView(change("update", OTHER, later, update=update)))
    assert outcome == Decision("entered", {"_id": 1, "s": 1, "v": 5})


def test_an_ambiguous_delta_loses_an_exact_topic() -> None:
    """What the update made cannot be told, so neither can the membership."""
    before = {"_id": 1, "a": 5, "s": 1}
    update = {"updatedFields": {"a.b": 1}, "removedFields": [], "truncatedArrays": []}
    view = ChangeView(change("update", before, MATCH, update=update))
    outcome = decide(topic("client"), view)
    assert isinstance(outcome, Loss)
    assert outcome == "images_lost"
    assert decide(topic(), view) == Decision("stayed", MATCH, update)


def test_a_change_is_decoded_and_computed_once_for_all_topics() -> None:
    """However many topics look at it."""
    calls: list[int] = []
    inner = change("update", OTHER, MATCH)

    def body() -> ChangeBody:
        calls.append(1)
        return inner.body()

    view = ChangeView(Change(AT, "update", ORDERS, body))
    for filtered_by in FILTERS:
        decide(topic(filtered_by), view)
    assert len(calls) == 1
    assert view.after_update() is view.after_update()


def test_a_body_that_cannot_be_decoded_is_told() -> None:
    """`decide` raises it; the frame builder turns it into a loss of that topic."""

    def body() -> ChangeBody:
        raise UndecodableError

    with pytest.raises(UndecodableError):
        decide(topic(), ChangeView(Change(AT, "insert", ORDERS, body)))
