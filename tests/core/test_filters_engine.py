"""The compiled filter gives the answer of a real engine's `find`, for random documents and filters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bson.codec_options import CodecOptions, DatetimeConversion
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pymongo import MongoClient
from pymongo.collection import Collection

from feedsvc.core.filters.compile import compile_filter
from feedsvc.core.filters.parse import parse_filter
from tests.core.bson_strategies import EDGES, VALUES, documents, filters
from tests.support.engine import Engine

_OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)


@pytest.fixture(scope="module")
def collection() -> Iterator[Collection[dict[str, Any]]]:
    engine = Engine().start()
    with MongoClient[dict[str, Any]](engine.uri) as client:
        yield client["filters"].get_collection("documents", codec_options=_OPTIONS)
    engine.stop()


_OPERANDS = st.one_of(VALUES, VALUES, EDGES, st.lists(EDGES, max_size=2))


# No shrinking: it costs minutes against an engine, and the failing query names the documents anyway.
@settings(
    max_examples=30,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    documents=st.lists(documents(_OPERANDS, 4), min_size=5, max_size=20),
    queries=st.lists(filters(_OPERANDS), min_size=10, max_size=10),
)
def test_agrees_with_find(
    collection: Collection[dict[str, Any]], documents: list[dict[str, Any]], queries: list[dict[str, Any]]
) -> None:
    """300 random filters select exactly the documents that `find` selects."""
    collection.delete_many({})
    collection.insert_many([{"_id": i, **document} for i, document in enumerate(documents)])
    stored = list(collection.find())
    for query in queries:
        matches = compile_filter(parse_filter(query))
        ours = {document["_id"] for document in stored if matches(document)}
        theirs = {document["_id"] for document in collection.find(query)}
        assert ours == theirs, (query, [d for d in stored if d["_id"] in ours ^ theirs])
