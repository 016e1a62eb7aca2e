"""The view of the model tests notices what it is there to notice: a test on it can fail."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.support.view import View, apply_delta, key_of

Frame = dict[str, Any]
TOKENS = itertools.count()
EXACT = {"membership": "exact", "deletes": True}


def subscribed(token: str | None = "t", *, resumed: bool = False) -> Frame:
    frame: Frame = {"type": "subscribed", "resumed": resumed, "fidelity": EXACT}
    return frame if token is None else {**frame, "token": token}


def event(key: int, membership: str, document: Frame | None = None, **fields: Any) -> Frame:
    body: Frame = {
        "_id": f"e{next(TOKENS)}",
        "operationType": "update",
        "documentKey": {"_id": key},
        "membership": membership,
        **fields,
    }
    return {"type": "event", "event": body if document is None else {**body, "fullDocument": document}}


def page(number: int, *documents: Frame) -> Frame:
    return {"type": "snapshot", "page": number, "documents": list(documents)}


END: Frame = {"type": "snapshotEnd", "token": "end"}
LIVE: Frame = {"type": "live"}
RESYNC: Frame = {"type": "resync", "reason": "overflow"}
ONE, TWO = {"_id": 1, "n": 1}, {"_id": 2, "n": 2}


def view_of(*frames: Frame, resume_token: str | None = None) -> View:
    view = View()
    view.asked(resume_token)
    for frame in frames:
        if view.apply(frame):
            view.fetched({key_of(1): ONE}, frame["token"])
    return view


def test_pages_and_events_make_the_state_and_its_token() -> None:
    """Pages are upserts, what no page held is gone at the end, events follow."""
    view = view_of(subscribed(), LIVE, event(2, "entered", TWO), event(1, "left"))
    assert view.documents == {key_of(2): TWO}
    for frame in (RESYNC, page(0, ONE)):
        view.apply(frame)
    assert view.documents == {key_of(1): ONE, key_of(2): TWO} and view.token != "end"
    for frame in (page(0), page(1, ONE), END, LIVE):
        view.apply(frame)
    assert view.documents == {key_of(1): ONE} and view.token == "end"


def test_a_missing_event_leaves_another_state() -> None:
    """The comparison at the end of a scenario would fail."""
    whole = view_of(subscribed(), LIVE, event(2, "entered", TWO), event(1, "left"))
    assert view_of(subscribed(), LIVE, event(2, "entered", TWO)).documents != whole.documents
    assert view_of(subscribed(), LIVE, event(1, "left")).documents != whole.documents


def test_a_crash_takes_state_and_token_back_together() -> None:
    view = view_of(subscribed(), LIVE)
    view.save()
    view.apply(event(1, "left"))
    view.crash()
    assert view.documents == {key_of(1): ONE} and view.token == "t"


def test_a_cut_snapshot_leaves_the_old_token() -> None:
    view = view_of(subscribed("old"), LIVE, RESYNC, page(0, TWO))
    assert view.token == "old" and key_of(2) in view.documents


@pytest.mark.parametrize(
    "frames",
    [
        [subscribed(), event(2, "entered", TWO)],
        [subscribed(None), LIVE],
        [subscribed(None), event(2, "entered", TWO)],
        [subscribed(None), page(0), page(2)],
        [subscribed(None), page(0), {"type": "checkpoint", "tokens": {"topic": "t"}}],
        [subscribed("of another", resumed=True)],
        [subscribed(), LIVE, page(0)],
        [subscribed(), LIVE, {"type": "error", "code": "internal"}],
        [subscribed(), LIVE, event(2, "entered", TWO), event(2, "entered", TWO)],
        [subscribed(), LIVE, event(2, "entered", TWO), event(2, "left"), event(2, "left")],
        [subscribed(), LIVE, event(2, "entered", TWO), event(2, "left"), event(2, "stayed", TWO)],
        [subscribed(), LIVE, event(2, "left", TWO)],
        [
            subscribed(),
            LIVE,
            event(2, "entered", TWO),
            event(2, "stayed", {"_id": 2, "n": 4}, updateDescription={"updatedFields": {"n": 3}}),
        ],
    ],
)
def test_what_the_protocol_does_not_allow_is_noticed(frames: list[Frame]) -> None:
    """Frames out of sequence, a membership that contradicts what is held, a delta that is not the change."""
    with pytest.raises(AssertionError):
        view_of(*frames, resume_token="t")


def test_a_delta_names_places_in_arrays_and_documents() -> None:
    update = {
        "updatedFields": {"a.b": 2, "c.3": 9, "d.0.e": 1, "new": {"x": 1}},
        "removedFields": ["gone", "a.x"],
        "truncatedArrays": [{"field": "c", "newSize": 2}],
    }
    before = {"a": {"b": 1, "x": 1}, "c": [1, 2, 3], "d": [{"e": 0}], "gone": 1}
    assert apply_delta(before, update) == {
        "a": {"b": 2},
        "c": [1, 2, None, 9],
        "d": [{"e": 1}],
        "new": {"x": 1},
    }
    assert before["c"] == [1, 2, 3]
