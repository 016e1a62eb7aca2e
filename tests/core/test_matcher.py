"""The matcher: whatever it leaves out would not have been seen, and what is equal costs nothing."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from bson import Decimal128, Int64, MinKey, ObjectId

from feedsvc.adapters.mongo.extjson import encode_json
from feedsvc.core.changes import Change, ChangeBody, UndecodableError
from feedsvc.core.filters.parse import parse_filter
from feedsvc.core.frames import FrameBuilder
from feedsvc.core.matcher import Matcher
from feedsvc.core.membership import ChangeView
from feedsvc.core.policy import Grant
from feedsvc.core.positions import PositionKind, boundary, record_position
from feedsvc.core.projection import IDENTITY
from feedsvc.core.tail import EveryTopic, LoggedTopic, Router, Tail
from feedsvc.core.tokens import TokenSealer
from feedsvc.core.topics import Topic
from tests.core.change_cases import ORDERS, change

OPERATIONS = ("insert", "update", "replace", "delete")


def topic(
    wanted: dict[str, Any],
    *,
    policy: dict[str, Any] | None = None,
    hidden: dict[str, Any] | None = None,
    operations: Sequence[Any] = OPERATIONS,
    images: bool = True,
) -> Topic:
    """A topic of one tenant, whose client wants these documents."""
    grant = Grant("acme", "app", "orders", policy or {}, hidden or {}, True)
    return Topic(grant, parse_filter(wanted), IDENTITY, frozenset(operations), images)


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

SCALARS = (
    None,
    True,
    0,
    1,
    1.0,
    Int64(1),
    Decimal128("1"),
    2,
    "a",
    "b",
    float("nan"),
    MinKey(),
    ObjectId("0" * 24),
)
NAMES = ("a", "b", "c", "0", "1")
PROJECTIONS: tuple[dict[str, Any], ...] = (
    {"b": 0},
    {"a": 0, "c": 0},
    {"a.b": 0},
    {"a": 1},
    {"a.b": 1, "c": 1},
    {"a.0": 1, "0": 1},
)


class Draw:
    """Random values, filters, topics and changes, small enough to meet each other often."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def chance(self, of: int) -> bool:
        """Once in so many times."""
        return self._random.randrange(of) == 0

    def pick(self, options: Sequence[Any]) -> Any:
        return self._random.choice(options)

    def several(self, most: int, make: Callable[[], Any]) -> list[Any]:
        return [make() for _ in range(self._random.randint(0, most))]

    def value(self, depth: int = 2) -> Any:
        if depth and self.chance(4):
            return self.several(3, lambda: self.value(depth - 1))
        return self.document(depth - 1) if depth and self.chance(4) else self.pick(SCALARS)

    def document(self, depth: int = 2) -> dict[str, Any]:
        return {self.pick(NAMES): self.value(depth) for _ in range(self._random.randint(0, 4))}

    def path(self) -> str:
        return ".".join([self.pick(NAMES), *self.several(2, lambda: self.pick(NAMES))])

    def equality(self) -> dict[str, Any]:
        if self.chance(3):
            return {self.path(): {"$in": self.several(4, lambda: self.value(1))}}
        return {self.path(): self.value(1)}

    def filter(self, depth: int = 2) -> dict[str, Any]:
        kind = self._random.randrange(6) if depth else 0
        if kind < 2:
            return self.equality() | (self.equality() if self.chance(2) else {})
        if kind == 2:
            return {self.path(): {self.pick(("$gt", "$lte", "$ne")): self.value(1)}}
        below = [self.filter(depth - 1), *self.several(2, lambda: self.filter(depth - 1))]
        return {self.pick(("$and", "$or", "$or", "$nor")): below}

    def topic(self) -> Topic:
        return topic(
            {} if self.chance(8) else self.filter(),
            policy=self.filter(1) if self.chance(2) else {},
            hidden=self.pick(PROJECTIONS) if self.chance(2) else {},
            operations=OPERATIONS if self.chance(2) else self._random.sample(OPERATIONS, 2),
            images=self.chance(2),
        )

    def change(self, number: int) -> Change:
        """Images may be missing, a delta may be ambiguous, a body may be broken."""
        operation = self.pick(OPERATIONS)
        position = record_position(PositionKind.EVENT, number, str(number))
        if self.chance(20):
            return Change(position, operation, ORDERS, broken)
        before, after = (None if self.chance(10) else self.document() for _ in range(2))
        updated = {self.path() if self.chance(3) else self.pick(NAMES): self.value(1)}
        return change(
            operation,
            None if operation == "insert" else before,
            None if operation == "delete" else after,
            update={"updatedFields": updated, "removedFields": [], "truncatedArrays": []},
            position=position,
        )


def broken() -> ChangeBody:
    raise UndecodableError


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
