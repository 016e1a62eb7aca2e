"""Stream tokens: what they carry, who can open them, and how long they get."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedsvc.core.limits import LIMITS
from feedsvc.core.messages import STREAM_TOPICS, TopicRequest
from feedsvc.core.positions import Position, PositionKind, boundary, cluster_time_of, record_position
from feedsvc.core.stream_token import (
    MAX_STREAM_TOKEN_CHARS,
    StreamPositions,
    StreamSealer,
    request_key,
)
from feedsvc.core.tokens import Seal, TokenInvalidError, TokenSealer

KEYS = (b"k" * 32, b"o" * 32)
SOURCE = b"s" * 8
SEALER = StreamSealer(KEYS)
TOPICS = TokenSealer(KEYS)


def key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def binding(number: int) -> bytes:
    return number.to_bytes(16, "big")


def resume_token(number: int, data: str = "82" + "ab" * 40) -> str:
    position = record_position(PositionKind.EVENT, cluster_time_of(number, 1), data)
    return TOPICS.seal("acme", binding(number), SOURCE, position)


def opened_position(text: str) -> Position:
    return TOPICS.open("acme", text).position


def test_each_topic_gets_the_token_that_it_was_told_last() -> None:
    """And one that was told nothing is not in it."""
    positions = StreamPositions(SEALER, "acme", [key(0), key(1), key(2)])
    positions.moved(0, resume_token(1))
    positions.moved(2, resume_token(2))
    positions.moved(0, resume_token(3))
    opened = SEALER.open("acme", positions.token())
    assert opened.resume_tokens == {key(0): resume_token(3), key(2): resume_token(2)}
    assert opened.ended is False


def test_what_a_topic_began_with_stays_until_something_newer_is_told() -> None:
    """The token of the beginning is not moved by what is told, which the client may not have read."""
    positions = StreamPositions(SEALER, "acme", [key(0), key(1)])
    assert positions.start_token() is None
    positions.begins(0, resume_token(1))
    positions.begins(1, resume_token(2))
    positions.moved(1, resume_token(3))
    start = positions.start_token()
    assert start is not None
    assert SEALER.open("acme", start).resume_tokens == {key(0): resume_token(1), key(1): resume_token(2)}
    now = SEALER.open("acme", positions.token()).resume_tokens
    assert now == {key(0): resume_token(1), key(1): resume_token(3)}


def test_the_end_is_told_to_whoever_comes_back() -> None:
    """Also where no topic has a position."""
    positions = StreamPositions(SEALER, "acme", [key(0)])
    opened = SEALER.open("acme", positions.token(ended=True))
    assert (dict(opened.resume_tokens), opened.ended) == ({}, True)


def test_the_same_positions_give_the_same_token_on_every_instance() -> None:
    """Sealing is deterministic; another tenant's differs."""
    tokens = []
    for sealer, tenant in ((SEALER, "acme"), (StreamSealer(KEYS), "acme"), (SEALER, "globex")):
        positions = StreamPositions(sealer, tenant, [key(0)])
        positions.moved(0, resume_token(1))
        tokens.append(positions.token())
    assert tokens[0] == tokens[1] != tokens[2]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "a\nb",
        "\u2028" * 10,
        "A" * (MAX_STREAM_TOKEN_CHARS + 1),
        resume_token(1),
        Seal(KEYS, b"another purpose").seal(b"\1\0", b"acme"),
    ],
    ids=["empty", "short", "newline", "separators", "long", "a topic's", "another purpose"],
)
def test_what_was_not_sealed_as_a_stream_token_does_not_open(text: str) -> None:
    """Hand-made, too long, or sealed with the same keys for another purpose."""
    with pytest.raises(TokenInvalidError):
        SEALER.open("acme", text)


def test_it_opens_for_its_tenant_with_each_configured_key_and_not_changed_by_a_bit() -> None:
    """Rotation: the first key seals, all open."""
    positions = StreamPositions(StreamSealer((KEYS[1],)), "acme", [key(0)])
    positions.moved(0, resume_token(1))
    text = positions.token()
    assert SEALER.open("acme", text).resume_tokens
    changed = text[:20] + ("A" if text[20] != "A" else "B") + text[21:]
    for sealer, tenant, given_text in (
        (SEALER, "globex", text),
        (StreamSealer((KEYS[0],)), "acme", text),
        (SEALER, "acme", changed),
        (SEALER, "acme", text[:-1]),
    ):
        with pytest.raises(TokenInvalidError):
            sealer.open(tenant, given_text)


@given(st.lists(st.integers(1, 720), min_size=STREAM_TOPICS, max_size=STREAM_TOPICS))
@settings(deadline=None)
def test_eight_topics_fit_whatever_their_positions_are(sizes: list[int]) -> None:
    """At most 4,096 characters; beyond that the longest take the digest form, which names the same places."""
    positions = StreamPositions(SEALER, "acme", [key(number) for number in range(STREAM_TOPICS)])
    data = [("82" + "c" * (2 * size))[: 2 * size] for size in sizes]
    for number, text in enumerate(data):
        positions.moved(number, resume_token(number, text))
    stream_token = positions.token()
    assert len(stream_token) <= MAX_STREAM_TOKEN_CHARS
    found = SEALER.open("acme", stream_token).resume_tokens
    shortened = 0
    for number, text in enumerate(data):
        told = opened_position(found[key(number)])
        assert told.same_as(opened_position(resume_token(number, text)))
        shortened += told.data is None and opened_position(resume_token(number, text)).data is not None
    whole_bytes = sum(10 + len(resume_token(number, text)) * 3 // 4 for number, text in enumerate(data))
    assert bool(shortened) == (whole_bytes > MAX_STREAM_TOKEN_CHARS * 3 // 4 - 18)


def test_a_boundary_that_does_not_fit_becomes_its_time() -> None:
    """A boundary has no digest: it is opened by time, at or after it."""
    positions = StreamPositions(SEALER, "acme", [key(number) for number in range(STREAM_TOPICS)])
    for number in range(STREAM_TOPICS):
        at = boundary(cluster_time_of(9, number), "82" + "d" * 1_200)
        positions.moved(number, TOPICS.seal("acme", binding(number), SOURCE, at))
    found = SEALER.open("acme", positions.token()).resume_tokens
    times = [opened_position(found[key(number)]).cluster_time for number in range(STREAM_TOPICS)]
    assert times == [cluster_time_of(9, number) for number in range(STREAM_TOPICS)]


def test_a_request_is_known_again_however_its_json_is_written() -> None:
    """Spaces and the order of keys are not part of what was asked; everything else is."""
    text = '{"collection":"orders","filter":{"b":1,"a":{"$gt":2}},"fields":{"x":1}}'
    loose = json.dumps(dict(reversed(json.loads(text).items())), indent=2)
    same = [request_key(msgspec.json.decode(each, type=TopicRequest)) for each in (text, loose)]
    assert same[0] == same[1]
    others = (
        TopicRequest("orders"),
        TopicRequest("orders", filter={"a": 1}),
        TopicRequest("orders", filter={"a": 1.5}),
        TopicRequest("orders", operations=["insert"]),
        TopicRequest("orders", fields={"a": 1}),
        TopicRequest("orders", database="app"),
        TopicRequest("orders", filter={"a": 2**80}),
    )
    assert len({request_key(each) for each in others}) == len(others)


def test_the_binding_of_a_token_is_told_and_that_of_another_key_is_not() -> None:
    """A topic that is spelled in another way is found by it."""
    assert SEALER.binding("acme", resume_token(5)) == binding(5)
    assert StreamSealer((b"x" * 32,)).binding("acme", resume_token(5)) is None


def test_the_bounds_are_those_of_the_table() -> None:
    """Literals here, so that nothing but the table is looked at by operators."""
    assert LIMITS["sse_resume_token_chars"].default == MAX_STREAM_TOKEN_CHARS
    assert LIMITS["sse_topics"].default == STREAM_TOPICS
