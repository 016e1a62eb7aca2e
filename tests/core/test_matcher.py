"""The matcher: whatever it leaves out would not have been seen, and what is equal costs nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import pytest

from feedsvc.adapters.mongo.extjson import encode_json
from feedsvc.core.changes import Change
from feedsvc.core.frames import FrameBuilder
from feedsvc.core.matcher import Matcher
from feedsvc.core.membership import ChangeView
from feedsvc.core.positions import boundary
from feedsvc.core.tail import EveryTopic, LoggedTopic, Router, Tail
from feedsvc.core.tokens import TokenSealer
from feedsvc.core.topics import Topic
from tests.core.match_cases import Draw


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
    """The same, 800,000 times a topic and a change."""
    scale = 2_000 if os.environ.get("VERIFY_SCALE") == "short" else 20_000
    print(sum(compare(seed) for seed in range(scale)), "frames and losses of", scale * 8 * 5)
