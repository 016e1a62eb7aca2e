"""The query for a snapshot finds every document of its topic, and is as narrow as the rules allow."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from bson import Decimal128, Int64, ObjectId, Regex
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef
from pymongo import MongoClient
from pymongo.collection import Collection

from feedsvc.core.changes import DATA_OPERATIONS
from feedsvc.core.filters.compile import compile_filter
from feedsvc.core.filters.parse import parse_filter
from feedsvc.core.filters.query import find_query
from feedsvc.core.policy import Grant
from feedsvc.core.projection import IDENTITY, ProjectionError
from feedsvc.core.topics import Topic
from tests.core.bson_strategies import NAMES
from tests.support.engine import Engine

_OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)


def topic(
    client: dict[str, Any], policy: dict[str, Any] | None = None, fields: dict[str, int] | None = None
) -> Topic:
    grant = Grant("acme", "app", "orders", policy or {}, fields or {}, True)
    return Topic(grant, parse_filter(client), IDENTITY, frozenset(DATA_OPERATIONS), True)


# What is written


@pytest.mark.parametrize(
    "written",
    [
        {},
        {"a": 1},
        {"a": {"b": Decimal128("1")}, "c": None},
        {"a": {"$gt": 1, "$lt": 5, "$ne": float("nan")}},
        {"a": {"$in": [1, "x", None]}, "b": {"$nin": []}},
        {"a": {"$exists": True}, "b": {"$exists": False}},
        {"a": {"$not": {"$gte": DatetimeMS(5)}}},
        {"$or": [{"a": 1}, {"b": ObjectId("0" * 24)}]},
        {"$nor": [{"a": 1}, {"b": 2}]},
        {"$nor": [{"a": 1, "b": 2}]},
        {"a": {"$type": [1, 16]}, "b": {"$size": 2}, "c": {"$mod": [4, 1]}},
        {"a": {"$elemMatch": {"b": 1, "c": {"$ne": 2}}}},
        {"a": {"$elemMatch": {"$gt": 1, "$not": {"$type": "double"}}}},
        {"a": {"$eq": Regex("x", "i")}},
        {"a": {"$not": {"$eq": Regex("x", "i")}}},
    ],
)
def test_what_both_read_alike_is_written_as_it_was(written: dict[str, Any]) -> None:
    assert find_query(topic(written)) == written
    assert find_query(topic({}, policy=written)) == written


def test_both_filters_are_asked_for_without_another_level() -> None:
    """Where one name stands in both the tests stand together; where one operator does, in an `$and`."""
    asked = find_query(topic({"a": {"$gt": 1}, "b": 1, "c": 3}, policy={"a": {"$lt": 9}, "b": 2}))
    assert asked == {"a": {"$lt": 9, "$gt": 1}, "b": 2, "$and": [{"b": 1}], "c": 3}


@pytest.mark.parametrize(
    "written, asked",
    [
        ({"a": {"$regex": "^x"}, "b": 1}, {"b": 1}),
        ({"$or": [{"a": {"$regex": "^x"}}, {"b": 1}], "c": 1}, {"c": 1}),
        ({"$or": [{"a": {"$regex": "^x"}, "c": 2}, {"b": 1}]}, {"$or": [{"c": 2}, {"b": 1}]}),
        ({"a": {"$not": {"$regex": "^x"}}, "b": 1}, {"b": 1}),
        ({"$nor": [{"a": {"$regex": "^x"}}, {"b": 1}]}, {"$nor": [{"b": 1}]}),
        ({"$nor": [{"a": {"$regex": "^x"}, "b": 1}], "c": 1}, {"c": 1}),
        ({"a": {"$elemMatch": {"b": {"$regex": "x"}, "c": 1}}}, {"a": {"$elemMatch": {"c": 1}}}),
        ({"a": {"$not": {"$elemMatch": {"b": {"$regex": "x"}, "c": 1}}}}, {}),
        ({"a": {"$elemMatch": {"$regex": "x", "$gt": "a"}}}, {}),
        ({"a": {"$elemMatch": {"$or": [{"b": 1}, {"c": 1}]}}, "b": 1}, {"b": 1}),
        ({"a": {"$type": "string"}}, {}),
        ({"a": {"$not": {"$type": "string"}}}, {"a": {"$not": {"$type": [2]}}}),
    ],
)
def test_what_the_server_may_read_otherwise_is_left_out(
    written: dict[str, Any], asked: dict[str, Any]
) -> None:
    """With all that would make the query match less without it."""
    assert find_query(topic(written)) == asked


@pytest.mark.parametrize(
    "fields, asked_for",
    [
        ({"s": 0}, {"a", "a.b", "a.0.b", "_id"}),
        ({"a.c": 0}, {"a.b", "a.0.b", "_id", "s"}),
        ({"a.b": 0}, {"_id", "s"}),
        ({"a": 1}, {"a", "a.b", "a.0.b", "_id"}),
        ({"a.b": 1}, {"a.b", "_id"}),
        ({"a.c": 1, "s": 1}, {"_id", "s"}),
        ({"a.0": 1}, {"_id"}),
    ],
)
def test_a_path_is_asked_for_where_the_policy_shows_it_as_it_is(
    fields: dict[str, int], asked_for: set[str]
) -> None:
    """A hidden field is missing to the client; an element may have moved where an inclusion drops others."""
    paths = ("_id", "a", "a.b", "a.0.b", "s")
    query = find_query(topic(dict.fromkeys(paths, 1), fields=fields))
    assert query == {path: 1 for path in paths if path in asked_for}


def test_the_policy_filter_is_asked_for_whole() -> None:
    """It sees documents whole, hidden fields, too."""
    assert find_query(topic({"tenant": 1}, {"tenant": "t"}, {"tenant": 0})) == {"tenant": "t"}


# What it finds

_VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, Int64(3), 0.5, float("nan"), Decimal128("0.5"), Decimal128("2"), "", "a", "1b",
    ObjectId("0" * 24), DatetimeMS(-1), b"x", {}, {"a": 1}, {"b": None}, [], [1], ["a", {"b": 1}],
)  # fmt: skip
_TYPES = ("string", "number", "array", "null", "bool", "object")
_COMPARISONS = ("$eq", "$ne", "$gt", "$gte", "$lt", "$lte")


class Draw(Random):
    """Random filters, projections and documents over few names and values, so that they often meet."""

    def path(self) -> str:
        return ".".join(self.choices(NAMES, k=self.choice((1, 1, 2, 2, 3))))

    def value(self, depth: int = 2) -> Any:
        kind = self.randrange(4) if depth else 0
        if kind == 1:
            return [self.value(depth - 1) for _ in range(self.randrange(3))]
        return self.document(depth - 1) if kind == 2 else self.choice(_VALUES)

    def document(self, depth: int = 3) -> dict[str, Any]:
        return {name: self.value(depth) for name in self.sample(NAMES, self.randrange(len(NAMES)))}

    def operand(self, path: str) -> Any:
        """None where no index is in the path: see `bson_strategies`, on what the engine says of these."""
        indexed = any(part.isdigit() for part in path.split("."))
        return self.choice([value for value in _VALUES if not indexed or value is not None])

    def condition(self, path: str, depth: int) -> Any:
        kind = self.randrange(12)
        if kind < 4:
            return {self.choice(_COMPARISONS): self.operand(path)}
        if kind == 4:
            return {self.choice(("$in", "$nin")): [self.operand(path) for _ in range(self.randrange(3))]}
        if kind == 5:
            return {"$exists": self.random() < 0.5}
        if kind == 6:
            return {"$type": self.choice(_TYPES)}
        if kind == 7:
            return self.choice(
                ({"$size": self.randrange(3)}, {"$mod": [self.choice((2, -3)), self.randrange(2)]})
            )
        if kind == 8:
            return {"$regex": self.choice(("a", "^1", "b"))}
        if kind == 9:
            return {"$all": [self.operand(path) for _ in range(self.randrange(1, 3))]}
        if kind == 10:
            inner = self.query(depth - 1) if depth > 0 and self.random() < 0.5 else {"$gt": 0, "$lt": 2}
            return {"$elemMatch": inner}
        return {"$not": self.condition(path, depth - 1)} if depth > 0 else {"$gte": 0}

    def query(self, depth: int = 2) -> dict[str, Any]:
        if depth > 0 and self.random() < 0.4:
            clauses = [self.query(depth - 1) for _ in range(self.randrange(1, 4))]
            return {self.choice(("$and", "$or", "$nor")): clauses}
        paths = [self.path() for _ in range(self.randrange(1, 3))]
        return {path: self.condition(path, depth) for path in paths}

    def topic(self) -> Topic:
        while True:
            shown = self.randrange(2)
            fields = {self.path(): shown for _ in range(self.choice((0, 1, 1, 2)))}
            try:
                return topic(self.query(), self.choice(({}, self.query())), fields)
            except ProjectionError:  # colliding paths
                continue


def test_it_matches_whatever_the_topic_matches() -> None:
    """Random topics and documents; often enough it is not everything, and not only what the topic matches."""
    matched = narrow = wide = 0
    for seed in range(1_000):
        draw = Draw(seed)
        drawn = draw.topic()
        query = find_query(drawn)
        found = compile_filter(parse_filter(query))
        for document in (draw.document() for _ in range(5)):
            wanted, given = drawn.matches(document), found(document)
            assert given or not wanted, (seed, query, document)
            matched, narrow, wide = matched + wanted, narrow + (not given), wide + (given and not wanted)
    assert min(matched, narrow, wide) > 300, (matched, narrow, wide)


def test_it_matches_nothing_else_where_nothing_is_left_out() -> None:
    seen = 0
    for seed in range(500):
        draw = Draw(seed)
        written = draw.query()
        if _is_left_out(written):
            continue
        whole = topic(written)
        found = compile_filter(parse_filter(find_query(whole)))
        for document in (draw.document() for _ in range(5)):
            assert found(document) == whole.matches(document), (seed, find_query(whole), document)
            seen += whole.matches(document)
    assert seen > 300


def _is_left_out(query: Any) -> bool:
    """Whether any part of a query cannot be asked for as it is."""
    if isinstance(query, list):
        return any(map(_is_left_out, query))
    if not isinstance(query, dict):
        return False
    element = query.get("$elemMatch", {})
    logical = bool(element) and element.keys() <= {"$and", "$or", "$nor"}
    return (
        logical or not query.keys().isdisjoint({"$regex", "$type"}) or any(map(_is_left_out, query.values()))
    )


@pytest.fixture(scope="module")
def collection() -> Iterator[Collection[dict[str, Any]]]:
    engine = Engine(sync_on_commit=False).start()
    with MongoClient[dict[str, Any]](engine.uri) as client:
        yield client["filters"].get_collection("documents", codec_options=_OPTIONS)
    engine.stop()


def test_the_engine_finds_whatever_the_topic_matches(collection: Collection[dict[str, Any]]) -> None:
    draw = Draw(0)
    for _ in range(10):
        collection.delete_many({})
        collection.insert_many([{**draw.document(), "_id": number} for number in range(20)])
        stored = list(collection.find())
        for each in (draw.topic() for _ in range(30)):
            query = find_query(each)
            wanted = [document for document in stored if each.matches(document)]
            found = [document["_id"] for document in collection.find(query)]
            assert not [document for document in wanted if document["_id"] not in found], query


def test_values_reach_the_engine_as_they_are(collection: Collection[dict[str, Any]]) -> None:
    """Negative, not-a-number, decimal, 64 bits, regular expressions and references find what equals them."""
    values = [
        -1,
        Int64(2**53 + 1),
        float("nan"),
        Decimal128("0.5"),
        Regex("x", "i"),
        DatetimeMS(-1),
        {"b": -0.0},
    ]
    collection.delete_many({})
    collection.insert_many([{"_id": i, "a": value} for i, value in enumerate(values)])
    collection.insert_one({"_id": "reference", "a": DBRef("c", 1)})
    for i, value in enumerate(values):
        assert [
            document["_id"] for document in collection.find(find_query(topic({"a": {"$eq": value}})))
        ] == [i]
    reference = find_query(topic({"a.b": {"$exists": False}, "_id": "reference"}))
    assert [document["_id"] for document in collection.find(reference)] == ["reference"]
