"""The compiled filter gives the answer of a server's `find`, for random documents and filters of the whole language.

Regular expressions have vectors instead. The embedded engine is not MongoDB: where it is known to be wrong
(`engine_faults`, each class with MongoDB's source) a document on which the two differ is excused and counted. A
real server (`FEEDSVC_TEST_MONGODB_URI`) is excused nothing.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from bson.codec_options import CodecOptions, DatetimeConversion
from pymongo import MongoClient
from pymongo.collection import Collection

from feedsvc.core.filters.compile import compile_filter
from feedsvc.core.filters.parse import parse_filter
from tests.core.engine_faults import FAULTS, Fault, faults_met, for_engine
from tests.core.random_filters import random_document, random_filter
from tests.support.engine import URI_VARIABLE

_OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
_DOCUMENTS = 12
_FILTERS = 40
_REAL_SERVER = URI_VARIABLE in os.environ


@pytest.fixture
def collection(mongodb_uri: str, fresh_database: str) -> Iterator[Collection[dict[str, Any]]]:
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        yield client[fresh_database].get_collection("documents", codec_options=_OPTIONS)
        client.drop_database(fresh_database)


def compare(collection: Collection[dict[str, Any]], seeds: range) -> Counter[str]:
    """Each seed makes a set of documents and filters for it. Counts pairs, documents found, and excuses by class."""
    figures: Counter[str] = Counter()
    for seed in seeds:
        rng = Random(seed)
        collection.delete_many({})
        collection.insert_many([{"_id": i, **random_document(rng)} for i in range(_DOCUMENTS)])
        stored = list(collection.find())
        for _ in range(_FILTERS):
            query = random_filter(rng, stored)
            matches = compile_filter(parse_filter(query))
            ours = {document["_id"] for document in stored if matches(document)}
            asked = query if _REAL_SERVER else for_engine(query)
            theirs = {document["_id"] for document in collection.find(asked, {"_id": 1})}
            figures.update(pairs=1, found=len(theirs), empty=not theirs, whole=len(theirs) == _DOCUMENTS)
            for document in stored:
                if document["_id"] in ours ^ theirs:
                    met = set() if _REAL_SERVER else faults_met(query, document)
                    assert met, (seed, query, document, "ours" if document["_id"] in ours else "theirs")
                    figures.update(met)
    return figures


def test_agrees_with_find(collection: Collection[dict[str, Any]]) -> None:
    """1,000 random filters select exactly the documents that `find` selects."""
    figures = compare(collection, range(25))
    assert figures["pairs"] == 1000
    # Not all of them are trivial.
    assert figures["empty"] < 600 and figures["whole"] < 200 and figures["found"] > 1000


@pytest.mark.verify
def test_agrees_with_find_at_length(collection: Collection[dict[str, Any]]) -> None:
    """20,000 of them; 2,000 with VERIFY_SCALE=short."""
    start = time.monotonic()
    figures = compare(collection, range(1000, 1050 if os.environ.get("VERIFY_SCALE") == "short" else 1500))
    print(
        f"\n{figures['pairs']:,} filters on {_DOCUMENTS} documents each in {time.monotonic() - start:.0f} s: "
        f"{figures['found']:,} documents found, nothing by {figures['empty']:,} filters, all by {figures['whole']:,}"
    )
    for fault in FAULTS:
        print(f"{figures[fault.name]:6} documents excused: {fault.name} ({fault.source})")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_class_of_excuses_has_its_example(fault: Fault, collection: Collection[dict[str, Any]]) -> None:
    """The predicate says what MongoDB says, the engine does not (else the class must go), and only this class
    excuses it."""
    query, document, expected = fault.example
    assert compile_filter(parse_filter(query))(document) is expected
    collection.insert_one({"_id": 1, **document})
    assert (collection.count_documents(query) == 1) is (expected if _REAL_SERVER else not expected)
    assert faults_met(query, document) == {fault.name}


def test_the_classes_of_excuses_are_few() -> None:
    """At most 20, each with a name and a source of its own."""
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) <= 20
    assert all(".cpp" in fault.source or ".h" in fault.source for fault in FAULTS)
