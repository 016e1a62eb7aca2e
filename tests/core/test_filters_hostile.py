"""What clients must not send as a filter: a documented error each, soon, and without a word of what they sent."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from feedsvc.core.errors import REGISTRY, Refusal
from feedsvc.core.messages import Subscribe, TopicRequest, decode_client_frame
from feedsvc.core.policy import Grant
from feedsvc.core.topics import effective_topic
from tests.core.hostile_filters import HOSTILE_TEXTS, Hostile, HostileText, hostile_filters

GRANT = Grant("acme", "app_acme", "orders", {}, {}, False)
HOSTILE = hostile_filters()
_SLOWEST_S = 0.010


def refusal(request: TopicRequest) -> Refusal:
    with pytest.raises(Refusal) as caught:
        effective_topic(GRANT, request, images=True)
    return caught.value


def told(path: str) -> str:
    return f"topic.filter: {path}" if path else "topic.filter"


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: hostile.name)
def test_refused_with_a_documented_error(hostile: Hostile) -> None:
    """The error is of the registry, says where, and stays short."""
    error = refusal(TopicRequest("orders", filter=hostile.filter))
    assert error.code == hostile.code
    assert error.code in REGISTRY
    assert error.message[:200].startswith(told(hostile.path)[:200])
    assert len(error.message) < 400


@pytest.mark.parametrize("hostile", HOSTILE_TEXTS, ids=lambda hostile: hostile.name)
def test_refused_however_it_is_written(hostile: HostileText) -> None:
    """What is evaluated is what was validated: escapes and duplicate keys are gone before the filter is looked at."""
    text = f'{{"type":"subscribe","id":"1","topic":{{"collection":"orders","filter":{hostile.text}}}}}'
    frame = decode_client_frame(text)
    assert isinstance(frame, Subscribe)
    error = refusal(frame.topic)
    assert error.code == hostile.code
    assert error.message.startswith(told(hostile.path))


def test_the_last_of_duplicate_keys_is_all_that_there_is() -> None:
    """The first one is neither checked nor evaluated."""
    text = '{"type":"subscribe","id":"1","topic":{"collection":"orders","filter":{"a":{"$where":"1"},"a":2}}}'
    frame = decode_client_frame(text)
    assert isinstance(frame, Subscribe)
    topic = effective_topic(GRANT, frame.topic, images=True)
    assert (
        topic.canonical
        == effective_topic(GRANT, TopicRequest("orders", filter={"a": 2}), images=True).canonical
    )


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: hostile.name)
def test_refused_soon(hostile: Hostile) -> None:
    """10 ms of the processor at most, whatever was sent."""
    request = TopicRequest("orders", filter=hostile.filter)
    taken = []
    for _ in range(3):
        start = time.process_time()
        refusal(request)
        taken.append(time.process_time() - start)
    assert min(taken) < _SLOWEST_S


def test_an_accepted_filter_is_read_soon_too() -> None:
    """The dearest filters within the bounds: many clauses, many values, many patterns, many readings of paths."""
    dear: list[dict[str, Any]] = [
        {"$or": [{"a": i} for i in range(250)]},
        {"a": {"$in": [{"b": i} for i in range(200)]}},
        {"a" * 30: {"$all": list(range(200))}},
        {"$or": [{"a": {"$regex": f"[^a]{{60}}{i}"}} for i in range(16)]},
        {"a": {"$regex": r"[\x{800}-\x{fffe}\x{10010}-\x{10ffee}]{312}"}},
        {"$and": [{f"{name}.0.0.0.0.0.0.0.0": 1} for name in "abcd"]},
    ]
    for query in dear:
        assert len(msgspec.json.encode(query)) <= 4096
        taken = []
        for _ in range(3):
            start = time.process_time()
            effective_topic(GRANT, TopicRequest("orders", filter=query), images=True)
            taken.append(time.process_time() - start)
        assert min(taken) < 5 * _SLOWEST_S
