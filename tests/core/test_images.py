"""After-images: exact where the pre-image decides, an error where it does not."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import bson
import pytest
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.dbref import DBRef
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pymongo import MongoClient
from pymongo.change_stream import ChangeStream
from pymongo.collection import Collection
from pymongo.errors import OperationFailure

from feedsvc.core import extjson
from feedsvc.core.images import AmbiguousDeltaError, after_image
from tests.core.bson_strategies import DOCUMENTS, NAMES, PATHS, SCALARS, VALUES
from tests.support.engine import Engine


def delta(
    updated: dict[str, Any] | None = None,
    removed: list[str] | None = None,
    truncated: dict[str, int] | None = None,
    known: dict[str, list[Any]] | None = None,
) -> dict[str, Any]:
    description: dict[str, Any] = {
        "updatedFields": updated or {},
        "removedFields": removed or [],
        "truncatedArrays": [{"field": path, "newSize": size} for path, size in (truncated or {}).items()],
    }
    return description if known is None else {**description, "disambiguatedPaths": known}


@pytest.mark.parametrize(
    "before, description, after",
    [
        ({"_id": 1, "a": 1}, delta({"a": 2}), {"_id": 1, "a": 2}),
        ({"a": 1, "b": 2}, delta({"z": 3, "y": 4}), {"a": 1, "b": 2, "z": 3, "y": 4}),
        ({"a": 1, "b": 2}, delta(removed=["a"]), {"b": 2}),
        ({"a": {"b": 1, "c": 2}}, delta({"a.b": 3}, ["a.c"]), {"a": {"b": 3}}),
        ({"a": [1, 2, 3]}, delta({"a.1": 9}), {"a": [1, 9, 3]}),
        ({"a": {"1": 2}}, delta({"a.1": 9}), {"a": {"1": 9}}),
        ({"a": [1]}, delta({"a.3": 9}), {"a": [1, None, None, 9]}),
        ({"a": [1, 2, 3]}, delta(truncated={"a": 1}), {"a": [1]}),
        ({"a": [{"b": [1, 2]}]}, delta({"a.0.b.0": 5}, truncated={"a.0.b": 1}), {"a": [{"b": [5]}]}),
        ({"a": [1]}, delta(truncated={"a": 2}), {"a": [1, None]}),
        ({"a.b": 1}, delta({"a.b": 2}), {"a.b": 2}),
        ({"a.b": {"c": 1}}, delta({"a.b.c": 2}), {"a.b": {"c": 2}}),
        ({"a": {"b": 1}}, delta({"a.b": 2}, known={"a.b": ["a.b"]}), {"a": {"b": 1}, "a.b": 2}),
        ({"a": {"b": 1}, "a.b": 1}, delta({"a.b": 2}, known={}), {"a": {"b": 2}, "a.b": 1}),
        ({"a": {"0": 1}}, delta({"a.0": 2}, known={"a.0": ["a", "0"]}), {"a": {"0": 2}}),
        ({"r": DBRef("c", 1)}, delta({"r.$id": 2}), {"r": {"$ref": "c", "$id": 2}}),
    ],
)
def test_delta_is_applied(before: dict[str, Any], description: dict[str, Any], after: dict[str, Any]) -> None:
    """Each part of an update description means what the server means; fields keep their place."""
    untouched = copy.deepcopy(before)
    result = after_image(before, description)
    assert result == after and list(result) == list(after)
    assert before == untouched


@pytest.mark.parametrize(
    "before, description",
    [
        ({"a": {"b": 1}, "a.b": 1}, delta({"a.b": 2})),
        ({"a": 1}, delta({"x.y": 2})),
        ({"a": 1}, delta({"a.b": 2})),
        ({"a": [1]}, delta({"a.b": 2})),
        ({"a": [1]}, delta({"a.00": 2})),
        ({"a": 1}, delta(removed=["b"])),
        ({"a": [1]}, delta(removed=["a.0"])),
        ({"a": {"0": 1}}, delta({"a.0": 2}, known={})),
        ({"a": 1}, delta(truncated={"a": 1})),
        ({"a": []}, delta({"a.999999999": 2})),
    ],
)
def test_undecided_delta_is_an_error(before: dict[str, Any], description: dict[str, Any]) -> None:
    """A delta that does not fit, or fits in two ways, is never guessed."""
    with pytest.raises(AmbiguousDeltaError):
        after_image(before, description)


def test_unchanged_parts_are_shared_and_changed_ones_are_not() -> None:
    """Copying is limited to the written paths, and a value written twice below is copied once."""
    before: dict[str, Any] = {"a": {"b": {"c": 1, "d": 2}}, "e": {"f": 1}}
    after = after_image(before, delta({"a.b.c": 5, "a.b.d": 6}))
    assert after == {"a": {"b": {"c": 5, "d": 6}}, "e": {"f": 1}}
    assert after["e"] is before["e"] and after["a"] is not before["a"]
    assert before["a"]["b"] == {"c": 1, "d": 2}


_OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
Updated = tuple[Collection[dict[str, Any]], ChangeStream[dict[str, Any]]]


@pytest.fixture(scope="module")
def watched() -> Iterator[Updated]:
    """A collection that keeps pre-images, and a change stream on it."""
    engine = Engine().start()
    with MongoClient[dict[str, Any]](engine.uri) as client:
        database = client["images"]
        database.create_collection("documents", changeStreamPreAndPostImages={"enabled": True})
        collection = database.get_collection("documents", codec_options=_OPTIONS)
        updates = [{"$match": {"operationType": "update"}}]
        options = {"full_document_before_change": "whenAvailable", "show_expanded_events": True}
        with collection.watch(updates, max_await_time_ms=2000, **options) as stream:  # type: ignore[arg-type]
            yield collection, stream
    engine.stop()


def _updates() -> st.SearchStrategy[dict[str, Any]]:
    # `_id` and paths that collide are the engine's to refuse.
    sets = st.dictionaries(PATHS, VALUES, min_size=1, max_size=3)
    names = st.dictionaries(PATHS, st.just(1), min_size=1, max_size=2)
    pushes = st.dictionaries(
        PATHS, st.one_of(SCALARS, st.fixed_dictionaries({"$each": st.lists(SCALARS, max_size=3)})), min_size=1
    )
    return st.one_of(
        st.fixed_dictionaries({"$set": sets}),
        st.fixed_dictionaries({"$unset": names}),
        st.fixed_dictionaries({"$set": sets, "$unset": names}),
        st.fixed_dictionaries({"$inc": names}),
        st.fixed_dictionaries({"$push": pushes}),
        st.fixed_dictionaries({"$pop": names}),
        # The target is one name: the engine reports a parent that it makes for a rename twice.
        st.fixed_dictionaries(
            {"$rename": st.dictionaries(PATHS, st.sampled_from(NAMES), min_size=1, max_size=1)}
        ),
    )


@settings(
    max_examples=40,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(document=DOCUMENTS, updates=st.lists(_updates(), min_size=8, max_size=8))
def test_agrees_with_the_stored_document(
    watched: Updated, document: dict[str, Any], updates: list[dict[str, Any]]
) -> None:
    """After any update the image is the stored document, with and without disambiguatedPaths."""
    collection, stream = watched
    collection.delete_many({})
    collection.insert_one({"_id": 1, **document})
    for update in updates:
        try:
            if not collection.update_one({"_id": 1}, update).modified_count:
                continue
        except OperationFailure:
            continue
        event = stream.next()
        before, description = event["fullDocumentBeforeChange"], event["updateDescription"]
        stored = collection.find_one({"_id": 1})
        assert stored is not None
        guessed = {key: part for key, part in description.items() if key != "disambiguatedPaths"}
        for known_or_not in (description, guessed):
            image = after_image(before, known_or_not)
            assert _typed(image) == _typed(stored), (before, update, event)
            if len(description["updatedFields"]) <= 1:
                assert bson.encode(image) == bson.encode(stored), (before, update, event)


def _typed(document: dict[str, Any]) -> str:
    """Values with their types. Fields sorted: the engine reports several new fields by name, and stores them as they
    came; MongoDB reports them in the order in which it appends them."""
    return json.dumps(extjson.canonical(document), sort_keys=True)
