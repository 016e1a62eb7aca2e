"""From a stream's request and its token to a subscribe for each topic."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import UNSET

from feedsvc.core.errors import Refusal
from feedsvc.core.messages import ExtendedTimestamp, StreamRequest, TopicRequest
from feedsvc.core.policy import Policy
from feedsvc.core.positions import PositionKind, record_position
from feedsvc.core.stream_plan import StreamPlan
from feedsvc.core.stream_token import StreamPositions, StreamSealer, request_key
from feedsvc.core.tokens import TokenSealer
from feedsvc.core.topics import Topic, effective_topic

KEYS = (b"k" * 32,)
SEALER = StreamSealer(KEYS)
POLICY = Policy.parse({"tenant": {"claim": "tenant", "database": "app_{tenant}"}, "collections": {"*": {}}})
A = TopicRequest("a", filter={"x": {"$in": [1, 2]}})
B = TopicRequest("b")
C = TopicRequest("c")


def topic_of(request: TopicRequest) -> Topic:
    grant = POLICY.grant("acme", None, frozenset(), {"tenant": "acme"}, None, request.collection)
    return effective_topic(grant, request, images=False)


def resume_token(request: TopicRequest) -> str:
    position = record_position(PositionKind.EVENT, 5 << 32, "82ab")
    return TokenSealer(KEYS).seal("acme", topic_of(request).binding, b"s" * 8, position)


def stream_token(*requests: TopicRequest, ended: bool = False) -> str:
    positions = StreamPositions(SEALER, "acme", [request_key(request) for request in requests])
    for index, request in enumerate(requests):
        positions.begins(index, resume_token(request))
    return positions.token(ended=ended)


def plan(*topics: TopicRequest, **fields: object) -> StreamPlan:
    asked = msgspec.structs.replace(StreamRequest(list(topics)), **fields)
    return StreamPlan(SEALER, "acme", asked)


def test_without_a_token_all_topics_start_now() -> None:
    """Their ids are their places in the request; nothing is known yet."""
    made = plan(A, B, snapshot="onResync")
    assert [(request.id, request.topic, request.resume_token) for request in made.requests] == [
        ("0", A, None),
        ("1", B, None),
    ]
    assert {request.snapshot for request in made.requests} == {"onResync"}
    assert made.positions.start_token() is None
    assert made.ended is False


def test_known_topics_resume_wherever_they_stand_and_a_new_one_starts_now() -> None:
    """One that was left out is forgotten: the stream's next id does not carry it on."""
    made = plan(C, B, resume_after=stream_token(A, B))
    assert [request.resume_token for request in made.requests] == [None, resume_token(B)]
    assert made.by_binding(made.requests[0], topic_of(C)) is None
    start = made.positions.start_token()
    assert start is not None
    assert SEALER.open("acme", start).resume_tokens == {request_key(B): resume_token(B)}


def test_a_topic_that_is_spelled_in_another_way_is_known_by_its_binding() -> None:
    """And its place is in the next id from the beginning."""
    again = TopicRequest("a", filter={"$and": [{"x": {"$in": [2, 1, 2]}}]})
    made = plan(B, again, resume_after=stream_token(A, B))
    assert [request.resume_token for request in made.requests] == [resume_token(B), None]
    assert made.by_binding(made.requests[1], topic_of(again)) == resume_token(A)
    start = made.positions.start_token()
    assert start is not None
    assert SEALER.open("acme", start).resume_tokens[request_key(again)] == resume_token(A)


def test_a_time_is_for_the_topics_that_no_token_knows() -> None:
    """An EventSource repeats its URL: what it has had by then must not start over."""
    at = ExtendedTimestamp.of(9 << 32)
    made = plan(A, B, resume_after=stream_token(A), start_at_operation_time=at)
    assert [request.start_at_operation_time for request in made.requests] == [UNSET, at]
    assert [request.resume_token for request in made.requests] == [resume_token(A), None]


def test_who_was_told_to_stop_is_known() -> None:
    """The stream's end is in its last id."""
    assert plan(A, resume_after=stream_token(A, ended=True)).ended is True


@pytest.mark.parametrize("text", ["", "junk", resume_token(A)], ids=["empty", "junk", "a topic's"])
def test_a_token_that_does_not_open_refuses_the_stream(text: str) -> None:
    """Nothing is guessed from it."""
    with pytest.raises(Refusal) as caught:
        plan(A, resume_after=text)
    assert caught.value.code == "token_invalid"


def test_nesting_without_end_is_refused() -> None:
    """Before anything recurses into it."""
    deep: object = 1
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(Refusal) as caught:
        plan(TopicRequest("a", filter={"a": deep}))
    assert caught.value.code == "bad_request"
