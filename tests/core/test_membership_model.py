"""The membership decision against a model: what a client that only applies events holds in the end, and what it learns.

A history is a list of writes to a few documents. Each is one event; its lookup shows the document as some later write
left it, or null, and its pre-image is there or not, all at random: MongoDB promises no more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from feedsvc.core.changes import Change, ChangeBody
from feedsvc.core.membership import ChangeView, Decision, decide
from feedsvc.core.messages import TopicRequest
from feedsvc.core.policy import Grant
from feedsvc.core.tail import Loss
from feedsvc.core.topics import Topic, effective_topic
from tests.core.change_cases import AT, ORDERS

Row = dict[str, Any]
State = Mapping[int, Row]

POLICY_FILTERS: dict[str, Row] = {"policy": {"t": "a"}, "both": {"t": "a"}}
CLIENT_FILTERS: dict[str, Row] = {"client": {"s": 1}, "both": {"s": 1}}
FILTERED_BY = ("nobody", "client", "policy", "both")


class Write(NamedTuple):
    """What somebody wants done. An insert of what exists is a replace, and what does not exist is not changed.

    `lag`: how many writes later the lookup of its event finds the document. `kept`: whether its pre-image is there.
    """

    operation: str
    key: int
    fields: Row
    lag: int
    kept: bool


class Event(NamedTuple):
    change: Change
    states: tuple[State, State]
    """All documents before and after it."""
    key: int


OPERATIONS = ("insert", "update", "update", "replace", "delete")
EXAMPLES = 60


def write_of(number: int) -> Write:
    """One number for all choices: much cheaper to draw than each."""
    number, operation = divmod(number, len(OPERATIONS))
    number, key = divmod(number, 3)
    number, lag = divmod(number, 4)
    number, value = divmod(number, 4)
    number, status = divmod(number, 2)
    kept, tenant = divmod(number, 2)
    return Write(
        OPERATIONS[operation], key, {"t": "ab"[tenant], "s": status + 1, "v": value}, lag, bool(kept)
    )


def histories(*, kept: bool = False) -> st.SearchStrategy[list[Write]]:
    """`kept`: every pre-image is there."""
    half = len(OPERATIONS) * 3 * 4 * 4 * 2 * 2
    numbers = st.integers(half if kept else 0, 2 * half - 1)
    return st.lists(numbers, max_size=14).map(lambda numbers: [write_of(number) for number in numbers])


def played(writes: Sequence[Write]) -> list[Event]:
    """The events of a history."""
    done: list[tuple[Write, str, Row]] = []
    states: list[State] = [{}]
    for write in writes:
        state = dict(states[-1])
        before = state.pop(write.key, None)
        if (before is None) != (write.operation == "insert"):
            if before is None:
                continue
            operation = "replace"
        else:
            operation = write.operation
        updated: Row = {}
        if operation == "update":
            assert before is not None
            # One field and a new one: most of an update's after-image is what was there before.
            name = "tsv"[write.fields["v"] % 3]
            updated = {name: write.fields[name], f"n{write.fields['v']}": write.fields["s"]}
            state[write.key] = before | updated
        elif operation != "delete":
            state[write.key] = {"_id": write.key, **write.fields}
        done.append((write, operation, updated))
        states.append(state)
    events = []
    for number, (write, operation, updated) in enumerate(done):
        seen = states[min(number + 1 + write.lag, len(done))] if operation == "update" else states[number + 1]
        body = ChangeBody(
            {"_id": write.key},
            seen.get(write.key),
            states[number].get(write.key) if write.kept else None,
            {"updatedFields": updated, "removedFields": []} if operation == "update" else None,
        )
        change = Change(AT, operation, ORDERS, lambda body=body: body)  # type: ignore[misc]
        events.append(Event(change, (states[number], states[number + 1]), write.key))
    return events


def topic(filtered_by: str, *, exact: bool) -> Topic:
    grant = Grant("acme", "app", "orders", POLICY_FILTERS.get(filtered_by, {}), {}, True)
    request = TopicRequest("orders", filter=CLIENT_FILTERS.get(filtered_by, {}))
    return effective_topic(grant, request, images=exact)


TOPICS = {(name, exact): topic(name, exact=exact) for name in FILTERED_BY for exact in (True, False)}


def wanted(filtered_by: str, row: Row | None) -> bool:
    """Written anew: whether a topic's clients may see and want a document."""
    if row is None:
        return False
    return (("client" not in filtered_by and filtered_by != "both") or row["s"] == 1) and (
        filtered_by not in POLICY_FILTERS or row["t"] == "a"
    )


def view_of(filtered_by: str, state: State) -> State:
    return {key: row for key, row in state.items() if wanted(filtered_by, row)}


def apply(held: dict[int, Row], key: int, decision: Decision) -> None:
    """All that a client does."""
    if decision.membership == "left":
        held.pop(key, None)
    elif decision.document is not None:
        held[key] = dict(decision.document)


@settings(max_examples=EXAMPLES)
@given(histories(kept=True))
@pytest.mark.parametrize("filtered_by", FILTERED_BY)
def test_with_images_a_client_holds_what_matches_after_every_event(
    filtered_by: str, writes: list[Write]
) -> None:
    """And `left`, `entered` and `stayed` are sent exactly when a document does so, whatever the lookups show."""
    held: dict[int, Row] = {}
    for change, (before, after), key in played(writes):
        outcome = decide(TOPICS[filtered_by, True], ChangeView(change))
        assert not isinstance(outcome, Loss)
        was, now = (wanted(filtered_by, state.get(key)) for state in (before, after))
        expected = {(True, True): "stayed", (True, False): "left", (False, True): "entered"}.get((was, now))
        assert (outcome.membership if outcome else None) == expected
        if outcome is not None:
            apply(held, key, outcome)
        assert held == view_of(filtered_by, after)


@settings(max_examples=EXAMPLES)
@given(histories())
@pytest.mark.parametrize("filtered_by", ["nobody", "client"])
def test_without_images_a_client_holds_in_the_end_what_matches(filtered_by: str, writes: list[Write]) -> None:
    """Lookups may run ahead, or find nothing any more: the events behind them make it right."""
    held: dict[int, Row] = {}
    events = played(writes)
    for change, _, key in events:
        outcome = decide(TOPICS[filtered_by, False], ChangeView(change))
        assert not isinstance(outcome, Loss)
        if outcome is not None:
            apply(held, key, outcome)
    assert held == view_of(filtered_by, events[-1].states[1] if events else {})


SWITCHED_BACK = [
    Write("insert", 1, {"t": "a", "s": 1, "v": 0}, 0, False),
    Write("update", 1, {"t": "a", "s": 2, "v": 1}, 1, False),
    Write("update", 1, {"t": "a", "s": 1, "v": 1}, 0, True),
    Write("delete", 1, {"t": "a", "s": 1, "v": 1}, 0, False),
]


@settings(max_examples=EXAMPLES)
@given(histories(), st.integers(0, 2**14 - 1), st.integers(0, 3))
@example(SWITCHED_BACK, 0b1100, 2)
@pytest.mark.parametrize("filtered_by", ["nobody", "client"])
def test_a_client_that_changes_modes_ends_with_what_matches(
    filtered_by: str, writes: list[Write], modes: int, ahead: int
) -> None:
    """Its token serves both modes, so it goes on in the other one at any event, whether the pre-images are there or not
    yet, or no longer: either the decision is right, or it is a loss, after which the client fetches."""
    held: dict[int, Row] = {}
    events = played(writes)
    losses = 0
    for number, (change, _, key) in enumerate(events):
        exact = bool(modes >> number & 1)
        outcome = decide(TOPICS[filtered_by, exact], ChangeView(change))
        if isinstance(outcome, Loss):
            assert outcome == "images_lost"
            assert exact
            assert filtered_by == "client"
            assert change.body().before is None
            losses += 1
            fetched = events[min(number + ahead, len(events) - 1)].states[1]
            held = dict(view_of(filtered_by, fetched))
        elif outcome is not None:
            apply(held, key, outcome)
    event(f"losses: {min(losses, 2)}")
    assert held == view_of(filtered_by, events[-1].states[1] if events else {})


# What a client learns of documents that are not its own


def shown(filtered_by: str, events: Sequence[Event], *, exact: bool) -> list[tuple[int, Any]]:
    """All that a topic makes of a history: the key of each event that it sees, and what is sent with it."""
    told: list[tuple[int, Any]] = []
    for change, _, key in events:
        outcome = decide(TOPICS[filtered_by, exact], ChangeView(change))
        assert not isinstance(outcome, Loss)
        if outcome is not None:
            update = outcome.update if change.operation == "update" else None
            told.append((key, (change.operation, outcome.membership, outcome.document, update)))
    return told


@settings(max_examples=EXAMPLES)
@given(histories(kept=True))
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("filtered_by", ["policy", "both"])
def test_what_is_shown_is_of_documents_inside_the_policy_filter(
    filtered_by: str, exact: bool, writes: list[Write]
) -> None:
    """A document inside, or `left` of one that was; a delta between two states that both are. Without images nothing
    tells of an end: the event shows a state of the document, at that event or later, and it is inside."""
    events = played(writes)
    for number, (change, (before, after), key) in enumerate(events):
        outcome = decide(TOPICS[filtered_by, exact], ChangeView(change))
        if outcome is None:
            continue
        assert not isinstance(outcome, Loss)
        was, now = (wanted(filtered_by, state.get(key)) for state in (before, after))
        if outcome.membership == "left":
            assert exact
            assert was
            assert outcome.document is None
        else:
            states = [after] if exact else [each.states[1] for each in events[number:]]
            assert outcome.document in [state.get(key) for state in states]
            assert wanted(filtered_by, dict(outcome.document or {}))
        if outcome.update is not None:
            assert exact
            assert was
            assert now


@settings(max_examples=EXAMPLES)
@given(histories(kept=True))
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("filtered_by", ["policy", "both"])
def test_documents_that_never_were_inside_make_no_difference(
    filtered_by: str, exact: bool, writes: list[Write]
) -> None:
    """Not their existence, their ids, their deltas or their end: the same history without them shows the same."""
    events = played(writes)
    inside = {
        key for each in events for state in each.states for key, row in state.items() if row["t"] == "a"
    }
    own = [each for each in events if each.key in inside]
    event(f"others: {len(own) < len(events)}")
    assert shown(filtered_by, events, exact=exact) == shown(filtered_by, own, exact=exact)


@settings(max_examples=EXAMPLES)
@given(histories(kept=True))
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("filtered_by", ["policy", "both"])
def test_what_a_document_was_outside_makes_no_difference(
    filtered_by: str, exact: bool, writes: list[Write]
) -> None:
    """Its content while it was another tenant's is not in what its next owner is shown, nor in what the last one is."""

    def changed(row: Row | None) -> Row | None:
        return row if row is None or row["t"] == "a" else {"_id": row["_id"], "t": "b", "s": 2, "v": "other"}

    events, others = played(writes), []
    for change, states, key in events:
        body = change.body()
        before, after = changed(states[0].get(key)), changed(states[1].get(key))
        update = body.update_description
        if change.operation == "update" and (before, after) != (states[0].get(key), states[1].get(key)):
            assert before is not None
            assert after is not None
            update = {
                "updatedFields": {
                    name: value for name, value in after.items() if before.get(name, ()) != value
                },
                "removedFields": [name for name in before if name not in after],
            }
        looked_up = changed(dict(body.full_document)) if body.full_document is not None else None
        replaced = ChangeBody(body.document_key, looked_up, before, update)
        other = Change(AT, change.operation, ORDERS, lambda body=replaced: body)  # type: ignore[misc]
        others.append(Event(other, states, key))
    assert shown(filtered_by, events, exact=exact) == shown(filtered_by, others, exact=exact)
