"""The fast writer gives what the exact one gives, and refuses what JSON cannot carry."""

from __future__ import annotations

import json
import math
from typing import Any

import bson
import pytest
from bson import Binary, Decimal128, Int64, ObjectId, Timestamp
from bson.datetime_ms import DatetimeMS
from hypothesis import given
from hypothesis import strategies as st

from feedsvc.adapters.mongo.decode import BODY_CODEC
from feedsvc.adapters.mongo.extjson import encode_json
from feedsvc.core.changes import UndecodableError
from feedsvc.core.extjson import to_json

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(st.characters(codec="utf-8")),
    st.binary(max_size=8),
    st.integers(-(2**62), 2**62).map(DatetimeMS),
    st.sampled_from([ObjectId("0" * 24), Timestamp(1, 2), Decimal128("NaN"), Binary(b"0" * 16, 4), Int64(5)]),
)
keys = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4)
documents = st.dictionaries(
    keys,
    st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3)
    ),
)


@given(documents)
def test_it_agrees_with_the_exact_writer(document: dict[str, Any]) -> None:
    """On what BSON decoding gives, for every kind of value."""
    tree = bson.decode(bson.encode(document), BODY_CODEC)
    assert json.loads(encode_json(tree)) == json.loads(json.dumps(to_json(tree)))


@pytest.mark.parametrize("value, text", [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")])
def test_doubles_that_are_not_finite_are_not_null(value: float, text: str) -> None:
    assert json.loads(encode_json({"a": [{"b": value}, None]})) == {
        "a": [{"b": {"$numberDouble": text}}, None]
    }


def test_null_and_the_word_null_stay() -> None:
    assert encode_json({"a": None, "b": "null"}) == b'{"a":null,"b":"null"}'


def test_integers_that_a_parser_would_round_are_wrapped() -> None:
    assert (
        encode_json([Int64(2**53 - 1), Int64(2**53)])
        == b'[9007199254740991,{"$numberLong":"9007199254740992"}]'
    )


def test_a_lone_surrogate_is_undecodable() -> None:
    with pytest.raises(UndecodableError):
        encode_json({"a": "\ud800"})


def test_endless_nesting_is_undecodable() -> None:
    tree: dict[str, Any] = {}
    for _ in range(2_000):
        tree = {"a": tree}
    with pytest.raises(UndecodableError):
        encode_json(tree)
