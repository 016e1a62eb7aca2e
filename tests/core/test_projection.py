"""Projections: MongoDB's `find` semantics for documents, and no leak through update descriptions."""

from __future__ import annotations

import copy
import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import bson
import pytest
from bson import Decimal128, Int64, ObjectId
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.dbref import DBRef
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pymongo import MongoClient
from pymongo.collection import Collection

from feedsvc.core.images import AmbiguousDeltaError, after_image, place_of
from feedsvc.core.projection import IDENTITY, Projection, ProjectionError
from tests.core.bson_strategies import DOCUMENTS, PATHS, VALUES
from tests.support.engine import Engine


@pytest.mark.parametrize(
    "fields, document, visible",
    [
        ({}, {"_id": 1, "a": 1}, {"_id": 1, "a": 1}),
        ({"a": 1}, {"_id": 1, "a": 1, "b": 2}, {"_id": 1, "a": 1}),
        ({"a": True, "_id": 1}, {"_id": 1, "b": 2, "a": 1}, {"_id": 1, "a": 1}),
        ({"_id": 1}, {"_id": 1, "a": 1}, {"_id": 1}),
        ({"b": 1, "a": 1}, {"_id": 1, "a": 1, "b": 2}, {"_id": 1, "a": 1, "b": 2}),
        ({"a": 0}, {"_id": 1, "a": 1, "b": 2}, {"_id": 1, "b": 2}),
        ({"a": False, "_id": 1}, {"_id": 1, "a": 1, "b": 2}, {"_id": 1, "b": 2}),
        ({"a.b": 1}, {"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}),
        ({"a.b": 1}, {"a": 5}, {}),
        ({"a.b": 1}, {"a": {"c": 1}}, {"a": {}}),
        ({"a.b": 1}, {"a": [1, {"b": 1, "c": 2}, [{"b": 3}, 4]]}, {"a": [{"b": 1}, [{"b": 3}]]}),
        ({"a.b": 0}, {"a": [1, {"b": 1, "c": 2}, [{"b": 3}, 4]]}, {"a": [1, {"c": 2}, [{}, 4]]}),
        ({"a.b": 0}, {"a": 5}, {"a": 5}),
        ({"a.0": 1}, {"a": [{"0": 1, "b": 2}]}, {"a": [{"0": 1}]}),
        ({"a.0": 0}, {"a": [7, 8]}, {"a": [7, 8]}),
        ({"a.b": 1}, {"a.b": 1}, {}),
        ({"r.x": 0}, {"r": DBRef("c", 1, x=5)}, {"r": {"$ref": "c", "$id": 1}}),
        ({"r.x": 1}, {"r": DBRef("c", 1, x=5)}, {"r": {"x": 5}}),
        ({"r.x": 1}, {"r": [DBRef("c", 1, y=5), 7]}, {"r": [{}]}),
        ({"r.x.y": 0}, {"r": [[DBRef("c", 1, x={"y": 1})]]}, {"r": [[{"$ref": "c", "$id": 1, "x": {}}]]}),
    ],
)
def test_apply(fields: dict[str, Any], document: dict[str, Any], visible: dict[str, Any]) -> None:
    """Inclusion and exclusion mean what they mean in `find`; `_id` stays and the document is not changed."""
    untouched = copy.deepcopy(document)
    result = Projection.parse(fields).apply(document)
    assert result == visible and list(result) == list(visible)
    assert document == untouched


@pytest.mark.parametrize(
    "fields, path",
    [
        ({"_id": 0}, "_id"),
        ({"_id": 0, "a": 1}, "_id"),
        ({"a": 1, "b": 0}, ""),
        ({"a": 1, "a.b": 1}, "a.b"),
        ({"a.b": 1, "a": 1}, "a"),
        ({"a.b.c": 0, "a.b": 0}, "a.b"),
        ({"_id.x": 1}, "_id.x"),
        ({"a.$": 1}, "a.$"),
        ({"$a": 1}, "$a"),
        ({"a": {"$slice": 1}}, "a"),
        ({"a": {"b": 1}}, "a"),
        ({"a": "$b"}, "a"),
        ({"a": 2}, "a"),
        ({"a": float("nan")}, "a"),
        ({"a": Decimal128("1")}, "a"),
        ({"a": None}, "a"),
        ({"": 1}, ""),
        ({"a..b": 1}, "a..b"),
        ({"a\0": 1}, "a\0"),
        ({1: 1}, ""),
        (["a"], ""),
    ],
)
def test_refused(fields: Any, path: str) -> None:
    """What is not a plain inclusion or exclusion is refused with path and rule."""
    with pytest.raises(ProjectionError) as caught:
        Projection.parse(fields)
    assert caught.value.path == path and caught.value.rule


def test_canonical_form() -> None:
    """The order of the fields does not matter, the order of the stages does."""
    policy, client = Projection.parse({"a.x": 0, "b": 0}), Projection.parse({"b": 1, "a": 1})
    assert policy.canonical() == Projection.parse({"b": False, "_id": 1, "a.x": 0.0}).canonical()
    assert policy.then(client).canonical() == [["exclude", "a.x", "b"], ["include", "a", "b"]]
    assert client.then(policy).canonical() != policy.then(client).canonical()
    assert policy.then(policy).canonical() == policy.canonical()
    assert policy.then(IDENTITY) == policy == IDENTITY.then(policy)
    assert IDENTITY.canonical() == [] == Projection.parse({}).canonical()
    assert Projection.parse({"_id": 1}).canonical() == [["include"]]


def description(updated: dict[str, Any], removed: list[str] | None = None, **more: Any) -> dict[str, Any]:
    return {"updatedFields": updated, "removedFields": removed or [], "truncatedArrays": [], **more}


KNOWN: dict[str, Any] = {"disambiguatedPaths": {}}


@pytest.mark.parametrize(
    "fields, update, visible",
    [
        ({"a": 0}, description({"a": 1, "a.b": 2, "c": 3}), description({"c": 3})),
        ({"a": 0}, description({}, ["a", "a.b", "c"]), description({}, ["c"])),
        ({"a.b": 0}, description({"a": {"b": 1, "c": 2}}), description({"a": {"c": 2}})),
        ({"a.b": 0}, description({"a.b.c": 1, "a.d": 1}, **KNOWN), description({"a.d": 1})),
        ({"a.b": 0}, description({"a.0": {"b": 1, "c": 2}}, **KNOWN), description({"a.0": {"c": 2}})),
        ({"a.b": 0}, description({"a.0.b": 1, "a.0.c": 2}, **KNOWN), description({"a.0.c": 2})),
        ({"a": 1}, description({"a": 1, "b": 2}), description({"a": 1})),
        ({"a": 1}, description({"a.b": 1}, **KNOWN), description({"a.b": 1})),
        # One name with a dot is not `b` in `a`.
        ({"a": 1}, description({"a.b": 1}, disambiguatedPaths={"a.b": ["a.b"]}), description({})),
        ({"a.b": 1}, description({"a": {"b": 1, "c": 2}}), description({"a": {"b": 1}})),
        # A parent without a visible part is gone for the reader.
        ({"a.b": 1}, description({"a": 5}), description({}, ["a"])),
        ({"a.b": 1}, description({"a.0": 5}, **KNOWN), None),
        ({"a.b": 1}, description({"a.0.b": 1, "a.0.c": 1}, **KNOWN), description({"a.0.b": 1})),
        # Without any help, readings that disagree leave the whole description out.
        ({"a": 1}, description({"a.b": 1}), None),
        ({"a.b": 0}, description({"a.0.c": 1}), description({"a.0.c": 1})),
        ({"a.b": 0}, description({"a.0": {"b": 1}}), None),
        ({"a.b": 0}, description({"a.0.b": 1}), description({})),
        ({"z": 0}, description({"a.0.b": 1}), description({"a.0.b": 1})),
        ({"z": 0}, description({"a" + ".0" * 9: 1}), None),
    ],
)
def test_apply_update(fields: dict[str, Any], update: dict[str, Any], visible: dict[str, Any] | None) -> None:
    """Every part of a description passes the projection; what would have to be guessed is left out."""
    untouched = copy.deepcopy(update)
    assert Projection.parse(fields).apply_update(update) == visible
    assert update == untouched


def test_an_image_decides_what_a_path_means() -> None:
    """An image of the stored document takes the place of disambiguatedPaths."""
    update = description({"a.0.b": 1})
    hidden = Projection.parse({"a.b": 0})
    assert hidden.apply_update(update, {"a": [{"b": 0}]}) == description({})
    assert hidden.apply_update(update, {"a": {"0": {"b": 0}}}) == update
    assert hidden.apply_update(update, {"x": 1}) is None
    assert hidden.apply_update(update, {"a": [{"b": 0}], "a.0": {"b": 1}}) is None


def test_identity_shows_what_it_cannot_place() -> None:
    """Where nothing is hidden no path has to be understood."""
    update = description({"a.0.b": 1}, ["a.b.c"])
    assert IDENTITY.apply_update(update) == update == IDENTITY.apply_update(update, {"x": 1})


@pytest.mark.parametrize(
    "fields, update, image, hidden",
    [
        ({"a": 0}, description({"a": 1}), None, True),
        ({"a": 0}, description({"a": 1, "b": 1}), None, False),
        ({"a": 0}, description({}, ["a"], truncatedArrays=[{"field": "a", "newSize": 1}]), None, True),
        ({"a": 0}, description({}, ["b"]), None, False),
        ({"a": 0}, description({}, truncatedArrays=[{"field": "b", "newSize": 1}]), None, False),
        ({"a": 1}, description({"b": 1, "c": 2}), None, True),
        ({"a.b": 0}, description({"a": {"b": 1}}), None, False),
        # `a.b` in two ways, with no help, an image, an image that does not tell, and stated
        ({"a": 0}, description({"a.b": 1}), None, False),
        ({"a": 0}, description({"a.b": 1}), {"a": {}}, True),
        ({"a": 0}, description({"a.b": 1}), {"a": {}, "a.b": 1}, False),
        ({"a": 0}, description({"a.b": 1}), {"c": 1}, False),
        ({"a": 0}, description({"a.b": 1}, **KNOWN), None, True),
        ({"c": 1}, description({"a.b": 1}), None, True),
        ({"c": 1}, description({"a" + ".b" * 20: 1}), None, False),
        ({"c": 1}, description({}), None, True),
    ],
)
def test_an_update_is_hidden_if_no_reading_shows_any_of_it(
    fields: dict[str, Any], update: dict[str, Any], image: dict[str, Any] | None, hidden: bool
) -> None:
    """Where that cannot be told, or would take too long, it is not hidden."""
    assert Projection.parse(fields).hides_update(update, image) is hidden


@pytest.mark.parametrize(
    "fields, update, told",
    [
        ({"a.b": 1}, description({"a.0.b": 1}, **KNOWN), False),
        ({"a.b": 1}, description({"a.0": {"b": 1}}, **KNOWN), False),
        ({"a.b": 1}, description({}, truncatedArrays=[{"field": "a", "newSize": 1}], **KNOWN), False),
        ({"a.b": 1}, description({"a": [{"b": 1}]}, **KNOWN), True),
        ({"a.b": 1}, description({"a.b.0": 1}, **KNOWN), True),
        ({"a.b": 1}, description({}, truncatedArrays=[{"field": "a.b", "newSize": 1}], **KNOWN), True),
        ({"a": 1}, description({"a.0.b": 1}, **KNOWN), True),
        ({"a.b": 0}, description({"a.0.c": 1}, **KNOWN), True),
        ({"a.b": 0}, description({}, truncatedArrays=[{"field": "a", "newSize": 1}], **KNOWN), True),
    ],
)
def test_an_index_that_counts_what_the_policy_dropped_is_not_told(
    fields: dict[str, Any], update: dict[str, Any], told: bool
) -> None:
    """The client's own projection drops as much, and keeps the paths of the stored document."""
    policy = Projection.parse(fields)
    assert (policy.apply_update(update, None, policy) is not None) is told
    assert policy.apply_update(update) is not None
    both = policy.then(Projection.parse({"a": 1}))
    assert (both.apply_update(update, None, policy) is not None) is told
    assert both.behind(policy) == Projection.parse({"a": 1}) or fields == {"a": 1}


def test_many_paths_that_must_be_guessed_cost_little() -> None:
    """The readings of all paths together are bounded: else one update could hold up every topic for seconds."""
    hidden = Projection.parse({"a.secret": 0})
    few = description({f"a.b.{i}x": 1 for i in range(100)})
    assert hidden.apply_update(few) == few
    deep = description({"a" + ".b" * 6 + f".{i}x": 1 for i in range(10)})
    assert hidden.apply_update(deep) is None
    assert hidden.apply_update({**deep, **KNOWN}) == deep


def test_truncated_arrays_and_unknown_parts() -> None:
    """Truncations are projected by path, and no other member of a description gets through."""
    update = {
        "truncatedArrays": [{"field": "a", "newSize": 1, "x": 2}, {"field": "b", "newSize": 2}],
        "disambiguatedPaths": {},
        "other": "secret",
    }
    assert Projection.parse({"b": 0}).apply_update(update) == {
        "truncatedArrays": [{"field": "a", "newSize": 1}]
    }
    assert IDENTITY.apply_update(description({"a": 1}, **KNOWN)) == description({"a": 1})


@st.composite
def projections(draw: st.DrawFn) -> dict[str, Any]:
    fields = {
        path: draw(st.shared(st.integers(0, 1), key="mode"))
        for path in draw(st.sets(PATHS, min_size=1, max_size=3))
    }
    try:
        Projection.parse(fields)
    except ProjectionError:
        assume(False)
    return fields


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each scalar with the field names above it; arrays add no name, as in a projection."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves(item, (*path, name))
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item, path)
    else:
        yield path, value


def _numbered(value: Any, counter: Iterator[int]) -> Any:
    """The same shape with a different number at each leaf."""
    if isinstance(value, dict):
        return {name: _numbered(item, counter) for name, item in value.items()}
    if isinstance(value, list):
        return [_numbered(item, counter) for item in value]
    return next(counter)


def _hidden(fields: dict[str, Any], path: tuple[str, ...]) -> bool:
    listed = any(path[: len(parts)] == parts for parts in (tuple(name.split(".")) for name in fields))
    return listed is (0 in fields.values())


def _topmost(updated: dict[str, Any]) -> dict[str, Any]:
    """Of a path and one above it MongoDB names one."""
    below = {path for path in updated for above in updated if path.startswith(f"{above}.")}
    return {path: value for path, value in updated.items() if path not in below}


@given(DOCUMENTS, projections(), projections())
def test_no_hidden_leaf_is_shown(
    document: dict[str, Any], policy: dict[str, Any], client: dict[str, Any]
) -> None:
    """No leaf that either stage hides is in the output, and none that both show is lost from documents."""
    numbered = _numbered(document, iter(range(1000, 9999)))
    shown = {
        leaf for _, leaf in _leaves(Projection.parse(policy).then(Projection.parse(client)).apply(numbered))
    }
    for path, leaf in _leaves(numbered):
        hidden = _hidden(policy, path) or _hidden(client, path)
        assert (leaf in shown) is not hidden, (path, leaf)


# Half of the random deltas are ambiguous, and tried in vain; 60 that are not are run all the same.
@settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(
    DOCUMENTS,
    st.dictionaries(PATHS, VALUES, min_size=1, max_size=3).map(_topmost),
    st.lists(PATHS, max_size=2),
    projections(),
    projections(),
    st.booleans(),
    st.booleans(),
)
def test_no_hidden_leaf_in_updates(
    document: dict[str, Any],
    updated: dict[str, Any],
    removed: list[str],
    policy: dict[str, Any],
    client: dict[str, Any],
    with_image: bool,
    with_names: bool,
) -> None:
    """Whatever help there is, a value of a description is shown only where the after-image shows it."""
    numbers = iter(range(1000, 9999))
    before = _numbered(document, iter(range(10_000, 99_999)))
    update = description(_numbered(updated, numbers), removed)
    try:
        after = after_image(before, update)
        places = {path: place_of(path, before) for path in updated}
    except AmbiguousDeltaError:
        assume(False)
        return
    if with_names:
        update["disambiguatedPaths"] = {path: list(place) for path, place in places.items() if "." in path}
        update["removedFields"] = []
    projection = Projection.parse(policy).then(Projection.parse(client))
    result = projection.apply_update(update, before if with_image else None)
    if result is None:
        assert not with_names or 1 in policy.values() or 1 in client.values()
        return
    allowed = {leaf for _, leaf in _leaves(projection.apply(after))}
    written = {leaf for _, leaf in _leaves(update["updatedFields"])}
    shown = {leaf for _, leaf in _leaves(result["updatedFields"])}
    assert shown <= written
    assert shown == (written & allowed), (before, update, result)
    for path in result["removedFields"]:
        if path in removed:
            names = tuple(part for part in place_of(path, before) if isinstance(part, str))
            assert not (0 in policy.values() and _hidden(policy, names))


_OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)


@pytest.fixture(scope="module")
def collection() -> Iterator[Collection[dict[str, Any]]]:
    engine = Engine().start()
    with MongoClient[dict[str, Any]](engine.uri) as client:
        yield client["projections"].get_collection("documents", codec_options=_OPTIONS)
    engine.stop()


NAMES = ("a", "b", "c", "0", "1")


def random_value(chance: random.Random, depth: int) -> Any:
    """Scalars, documents and arrays of all of these, arrays in arrays among them.

    No references: to MongoDB a DBRef is a document like any other (manual, database references), and the engine takes
    it for a scalar. `test_apply` holds them.
    """
    kind = chance.random()
    if depth == 0 or kind < 0.25:
        return chance.choice(
            [
                0,
                1,
                Int64(2**53 + 1),
                1.5,
                Decimal128("1"),
                "",
                "x",
                None,
                True,
                b"x",
                ObjectId(b"twelve bytes"),
            ]
        )
    if kind < 0.55:
        return [random_value(chance, depth - 1) for _ in range(chance.randrange(4))]
    return random_document(chance, depth - 1)


def random_document(chance: random.Random, depth: int) -> dict[str, Any]:
    names = chance.sample(NAMES, chance.randrange(1, len(NAMES)))
    return {name: random_value(chance, depth) for name in names}


def random_projection(chance: random.Random) -> dict[str, Any]:
    while True:
        shown = chance.choice([0, 1, True, 1.0])
        paths = {
            ".".join(chance.choices(NAMES, k=chance.choice([1, 2, 2, 3, 3, 4])))
            for _ in range(chance.randrange(1, 5))
        }
        fields = dict.fromkeys(chance.sample(sorted(paths), len(paths)), shown)
        if chance.random() < 0.2:
            fields["_id"] = 1
        try:
            Projection.parse(fields)
        except ProjectionError:
            continue  # paths that collide
        return fields


def compare(collection: Collection[dict[str, Any]], seeds: range) -> Counter[str]:
    """One projection on four documents for each seed, byte for byte as `find` gives them; what the pairs were like."""
    figures: Counter[str] = Counter()
    for first in range(seeds.start, seeds.stop, 50):
        cases = []
        for seed in range(first, min(first + 50, seeds.stop)):
            chance = random.Random(seed)
            documents = [{"_id": f"{seed}/{i}", **random_document(chance, 4)} for i in range(4)]
            cases.append((seed, random_projection(chance), documents))
        collection.delete_many({})
        collection.insert_many([document for _, _, documents in cases for document in documents])
        for seed, fields, documents in cases:
            keys = {"_id": {"$in": [document["_id"] for document in documents]}}
            stored = {document["_id"]: document for document in collection.find(keys)}
            projection = Projection.parse(fields)
            for theirs in collection.find(keys, fields):
                document = stored[theirs["_id"]]
                ours = projection.apply(document)
                assert bson.encode(ours) == bson.encode(theirs), (seed, fields, document, ours, theirs)
                figures["pairs"] += 1
                figures["changed"] += ours != document
                figures["nothing"] += len(ours) == 1
                figures["arrays"] += bson.encode(ours) != bson.encode(document) and "[[" in repr(ours)
    return figures


def test_agrees_with_find(collection: Collection[dict[str, Any]]) -> None:
    """300 random projections on 1,200 documents show, byte for byte and in the same order, what `find` shows."""
    figures = compare(collection, range(300))
    assert figures["pairs"] == 1200
    assert figures["changed"] > 600 and figures["nothing"] < 600 and figures["arrays"] > 50


@pytest.mark.verify
def test_agrees_with_find_on_many(collection: Collection[dict[str, Any]]) -> None:
    """20,000 projections (2,000 with VERIFY_SCALE=short)."""
    wanted = 2_000 if os.environ.get("VERIFY_SCALE") == "short" else 20_000
    figures = compare(collection, range(1_000, 1_000 + wanted))
    print(f"projections: {wanted}, {dict(figures)}")
    assert figures["pairs"] == wanted * 4
