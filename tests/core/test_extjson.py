"""Extended JSON v2: strict reading, relaxed writing that loses no integer, canonical writing that loses no type."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import bson
import orjson
import pytest
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef
from hypothesis import given
from hypothesis import strategies as st

from feedsvc.core.extjson import (
    MAX_DEPTH,
    SAFE_INTEGER,
    ExtendedJsonError,
    canonical,
    decode,
    holds_non_finite,
    json_default,
    to_json,
)
from tests.core.bson_strategies import EDGES, VALUES

OID = "64b000000000000000000002"


@pytest.mark.parametrize(
    "value, wrapper",
    [
        (ObjectId(OID), {"$oid": OID}),
        (7, {"$numberInt": "7"}),
        (Int64(-7), {"$numberLong": "-7"}),
        (Int64(2**53 + 1), {"$numberLong": "9007199254740993"}),
        (1.0, {"$numberDouble": "1.0"}),
        (-0.0, {"$numberDouble": "-0.0"}),
        (float("inf"), {"$numberDouble": "Infinity"}),
        (Decimal128("0.10"), {"$numberDecimal": "0.10"}),
        (Decimal128("NaN"), {"$numberDecimal": "NaN"}),
        (b"x", {"$binary": {"base64": "eA==", "subType": "00"}}),
        (Binary(b"x", 128), {"$binary": {"base64": "eA==", "subType": "80"}}),
        (Binary(UUID(int=1).bytes, 4), {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAQ==", "subType": "04"}}),
        (DatetimeMS(0), {"$date": {"$numberLong": "0"}}),
        (DatetimeMS(-(2**63)), {"$date": {"$numberLong": str(-(2**63))}}),
        (Timestamp(2**32 - 1, 3), {"$timestamp": {"t": 2**32 - 1, "i": 3}}),
        (Regex("^x", "im"), {"$regularExpression": {"pattern": "^x", "options": "im"}}),
        (MinKey(), {"$minKey": 1}),
        (MaxKey(), {"$maxKey": 1}),
        (Code("f"), {"$code": "f"}),
        (Code("f", {"a": Int64(1)}), {"$code": "f", "$scope": {"a": {"$numberLong": "1"}}}),
        ("x", "x"),
        (None, None),
        (True, True),
        ([1], [{"$numberInt": "1"}]),
    ],
)
def test_canonical_round_trip(value: Any, wrapper: Any) -> None:
    """Each type has one canonical form and is read back as itself, type and all."""
    assert canonical({"a": value}) == {"a": wrapper}
    back = decode({"a": wrapper})
    assert isinstance(back, dict)
    assert bson.encode(back) == bson.encode({"a": value})


@pytest.mark.parametrize(
    "value, written",
    [
        (7, 7),
        (Int64(7), 7),
        (Int64(SAFE_INTEGER), SAFE_INTEGER),
        (Int64(SAFE_INTEGER + 1), {"$numberLong": "9007199254740992"}),
        (Int64(-SAFE_INTEGER - 1), {"$numberLong": "-9007199254740992"}),
        (1.5, 1.5),
        (DatetimeMS(1705276800000), {"$date": "2024-01-15T00:00:00Z"}),
        (DatetimeMS(1705276800007), {"$date": "2024-01-15T00:00:00.007Z"}),
        (DatetimeMS(-1), {"$date": {"$numberLong": "-1"}}),
        (DatetimeMS(253402300799999), {"$date": "9999-12-31T23:59:59.999Z"}),
        (DatetimeMS(253402300800000), {"$date": {"$numberLong": "253402300800000"}}),
        (DBRef("c", ObjectId(OID), "d"), {"$ref": "c", "$id": {"$oid": OID}, "$db": "d"}),
        (UUID(int=1), {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAQ==", "subType": "04"}}),
    ],
)
def test_relaxed_form(value: Any, written: Any) -> None:
    """Relaxed form, tightened for integers that JSON parsers round; the encoder hook writes the same."""
    assert to_json(value) == written
    options = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
    if not isinstance(value, UUID):  # orjson writes them itself; `bson` never decodes to them here
        assert json.loads(orjson.dumps([value], default=json_default, option=options)) == [written]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [{"a": -float("inf")}]])
def test_doubles_that_json_has_not(value: Any) -> None:
    """NaN and infinities are wrapped, and can be found before an encoder makes null of them."""
    assert holds_non_finite(value)
    assert "$numberDouble" in json.dumps(to_json(value), allow_nan=False)
    assert not holds_non_finite([{"a": 1.5, "b": None}])


@pytest.mark.parametrize(
    "text, value",
    [
        ("2147483647", 2147483647),
        ("2147483648", Int64(2147483648)),
        ("9223372036854775807", Int64(2**63 - 1)),
        ("9223372036854775808", 2.0**63),
        ("1.0", 1.0),
        ('{"$date": "2024-01-15T00:00:00Z"}', DatetimeMS(1705276800000)),
        ('{"$date": "2024-01-15T01:00:00.5+01:00"}', DatetimeMS(1705276800500)),
        ('{"$date": "0001-01-01T00:00:00Z"}', DatetimeMS(-62135596800000)),
        ('{"$uuid": "00000000-0000-0000-0000-000000000001"}', Binary(UUID(int=1).bytes, 4)),
        (json.dumps({"$gt": {"$oid": OID}}), {"$gt": ObjectId(OID)}),
        ('{"$regex": "x", "$options": "i"}', {"$regex": "x", "$options": "i"}),
        ('{"$type": "int"}', {"$type": "int"}),
    ],
)
def test_relaxed_reading(text: str, value: Any) -> None:
    """Bare numbers take the smallest type, relaxed dates are exact, query operators pass through."""
    assert bson.encode({"a": decode(json.loads(text))}) == bson.encode({"a": value})


@pytest.mark.parametrize(
    "value, path",
    [
        ({"$oid": 5}, "$oid"),
        ({"$oid": "x" * 24}, "$oid"),
        ({"$oid": OID, "x": 1}, ""),
        ({"x": 1, "$oid": OID}, ""),
        ({"$numberInt": "2147483648"}, "$numberInt"),
        ({"$numberInt": 1}, "$numberInt"),
        ({"$numberInt": "1.0"}, "$numberInt"),
        ({"$numberLong": "9223372036854775808"}, "$numberLong"),
        ({"$numberLong": "9" * 5000}, "$numberLong"),
        ({"$numberLong": "٣"}, "$numberLong"),
        ({"$numberDouble": "1e999"}, "$numberDouble"),
        ({"$numberDouble": "0x1"}, "$numberDouble"),
        ({"$numberDecimal": "1.2.3"}, "$numberDecimal"),
        ({"$numberDecimal": "1E9999"}, "$numberDecimal"),
        ({"$numberDecimal": "1" * 40}, "$numberDecimal"),
        ({"$binary": "eA=="}, "$binary"),
        ({"$binary": {"base64": "eA", "subType": "00"}}, "$binary.base64"),
        ({"$binary": {"base64": "eA==", "subType": "100"}}, "$binary.subType"),
        ({"$uuid": "0" * 32}, "$uuid"),
        ({"$date": "2024-01-15"}, "$date"),
        ({"$date": "2024-02-30T00:00:00Z"}, "$date"),
        ({"$date": "2024-01-15T00:00:00.0001Z"}, "$date"),
        ({"$date": "2024-01-15T00:00:00+99:00"}, "$date"),
        ({"$date": 5}, "$date"),
        ({"$date": {"$numberInt": "5"}}, "$date"),
        ({"$timestamp": {"t": -1, "i": 0}}, "$timestamp.t"),
        ({"$timestamp": {"t": 1, "i": True}}, "$timestamp.i"),
        ({"$timestamp": {"t": 1}}, "$timestamp"),
        ({"$regularExpression": {"pattern": "x", "options": "z"}}, "$regularExpression.options"),
        ({"$regularExpression": {"pattern": "x\0", "options": ""}}, "$regularExpression.pattern"),
        ({"$minKey": True}, "$minKey"),
        ({"$maxKey": 2}, "$maxKey"),
        ({"$scope": {}}, ""),
        ({"$code": "f", "$scope": 1}, "$scope"),
        ({"$undefined": True}, "$undefined"),
        ({"$symbol": "x"}, "$symbol"),
        ({"a": [{"b": {"$oid": 5}}]}, "a.0.b.$oid"),
        ({"a": "\ud800"}, "a"),
        ({"\ud800": 1}, ""),
        ({"a\0": 1}, ""),
        ({"a": float("nan")}, "a"),
        ({"a": object()}, "a"),
        ({1: 2}, ""),
    ],
)
def test_malformed_is_refused(value: Any, path: str) -> None:
    """A wrapper that is not exactly one is an error with its path, never a guess."""
    with pytest.raises(ExtendedJsonError) as caught:
        decode(value)
    assert caught.value.path == path and caught.value.rule


def test_depth_is_bounded_both_ways() -> None:
    """Deep nesting is an ExtendedJsonError, never a RecursionError."""

    def nested(levels: int) -> Any:
        value: Any = 1
        for _ in range(levels):
            value = [value]
        return value

    assert to_json(decode(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    for function in (decode, to_json, canonical):
        with pytest.raises(ExtendedJsonError):
            function(nested(50_000))


def test_huge_integer_is_refused() -> None:
    """An integer beyond the doubles has no BSON value."""
    with pytest.raises(ExtendedJsonError):
        decode({"a": 10**400})


def test_other_types_are_type_errors() -> None:
    """Writing what is not BSON is the caller's mistake, and says so."""
    with pytest.raises(TypeError):
        to_json({"a": {1, 2}})


@given(st.one_of(VALUES, EDGES))
def test_any_document_survives(value: Any) -> None:
    """Canonical form read back gives the same BSON bytes; relaxed form is plain JSON with no number rounded."""
    document = {"a": value}
    back = decode(json.loads(json.dumps(canonical(document))))
    assert isinstance(back, dict)
    assert bson.encode(back) == bson.encode(document)
    text = json.dumps(to_json(document), allow_nan=False)
    relaxed = decode(json.loads(text))
    assert json.dumps(to_json(relaxed)) == text


_WRAPPER_KEYS = st.sampled_from(
    [
        "$oid",
        "$date",
        "$numberLong",
        "$binary",
        "$timestamp",
        "$code",
        "$scope",
        "$minKey",
        "t",
        "i",
        "base64",
        "a",
    ]
)


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(_WRAPPER_KEYS, inner, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_garbage_in_documented_error_out(value: Any) -> None:
    """Any JSON value is read as BSON that can be encoded, or refused with ExtendedJsonError."""
    try:
        decoded = decode(value)
    except ExtendedJsonError:
        return
    bson.encode({"a": decoded})
