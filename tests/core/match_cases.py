"""Random topics and changes for the tests of the matcher, small enough to meet each other often."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from bson import Decimal128, Int64, MinKey, ObjectId

from feedsvc.core.changes import Change, ChangeBody, UndecodableError
from feedsvc.core.filters.parse import parse_filter
from feedsvc.core.policy import Grant
from feedsvc.core.positions import PositionKind, record_position
from feedsvc.core.projection import IDENTITY
from feedsvc.core.topics import Topic
from tests.core.change_cases import ORDERS, change

OPERATIONS = ("insert", "update", "replace", "delete")
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

    def equality(self, depth: int = 0) -> dict[str, Any]:
        if self.chance(3):
            return {self.path(): {self.pick(("$in", "$in", "$all")): self.several(4, lambda: self.value(1))}}
        if depth and self.chance(8):
            inside = {"$eq": self.value(1)} if self.chance(2) else self.filter(0)
            return {self.path(): {"$elemMatch": inside}}
        return {self.path(): self.value(1)}

    def filter(self, depth: int = 2) -> dict[str, Any]:
        kind = self._random.randrange(6) if depth else 0
        if kind < 2:
            return self.equality(depth) | (self.equality(depth) if self.chance(2) else {})
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
