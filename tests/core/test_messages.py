"""Frames: their schemas, their names on the wire, and what a decoder does with garbage."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedsvc.core import messages
from feedsvc.core.errors import Refusal
from feedsvc.core.messages import (
    CLIENT_FRAMES,
    SERVER_FRAMES,
    ExtendedTimestamp,
    TopicRequest,
    decode_client_frame,
    encode,
    frame_id,
)

AT = ExtendedTimestamp.of((7 << 32) | 3)
AT_JSON = {"$timestamp": {"t": 7, "i": 3}}

# Each frame with every field set, beside its JSON.
SAMPLES: list[tuple[messages.Frame, dict[str, Any]]] = [
    (messages.Auth("j"), {"type": "auth", "jwt": "j"}),
    (
        messages.Subscribe(
            "a1",
            TopicRequest("orders", "app", {"s": {"$gt": 1}}, ["insert", "update"], {"s": 1}),
            resume_after="T",
            snapshot="onResync",
        ),
        {
            "type": "subscribe",
            "id": "a1",
            "topic": {
                "collection": "orders",
                "database": "app",
                "filter": {"s": {"$gt": 1}},
                "operations": ["insert", "update"],
                "fields": {"s": 1},
            },
            "resumeAfter": "T",
            "snapshot": "onResync",
        },
    ),
    (messages.Unsubscribe("t"), {"type": "unsubscribe", "topic": "t"}),
    (messages.Ping(), {"type": "ping"}),
    (
        messages.Welcome("c1", 20_000, 5, {"frameBytes": 1}, "feedsvc 1"),
        {
            "type": "welcome",
            "connection": "c1",
            "heartbeatMs": 20_000,
            "authExpiresAt": 5,
            "limits": {"frameBytes": 1},
            "server": "feedsvc 1",
        },
    ),
    (messages.Authenticated(5), {"type": "authenticated", "authExpiresAt": 5}),
    (
        messages.Subscribed("a1", "t", True, AT, messages.Fidelity("exact", True), None, "T"),
        {
            "type": "subscribed",
            "id": "a1",
            "topic": "t",
            "resumed": True,
            "clusterTime": AT_JSON,
            "fidelity": {"membership": "exact", "deletes": True},
            "oplogWindowSeconds": None,
            "token": "T",
        },
    ),
    (
        messages.Event(
            "t",
            messages.ChangeEvent(
                id="T",
                operation_type="update",
                cluster_time=AT,
                wall_time={"$date": "2027-01-15T08:00:00Z"},
                ns=messages.EventNamespace("orders"),
                document_key={"_id": 1},
                full_document={"_id": 1},
                update_description={"updatedFields": {}},
                membership="stayed",
                truncated=True,
            ),
        ),
        {
            "type": "event",
            "topic": "t",
            "event": {
                "_id": "T",
                "operationType": "update",
                "clusterTime": AT_JSON,
                "wallTime": {"$date": "2027-01-15T08:00:00Z"},
                "ns": {"coll": "orders"},
                "documentKey": {"_id": 1},
                "fullDocument": {"_id": 1},
                "updateDescription": {"updatedFields": {}},
                "membership": "stayed",
                "truncated": True,
            },
        },
    ),
    (messages.Checkpoint({"t": "T"}), {"type": "checkpoint", "tokens": {"t": "T"}}),
    (
        messages.Snapshot("t", 0, [{"_id": 1}]),
        {"type": "snapshot", "topic": "t", "page": 0, "documents": [{"_id": 1}]},
    ),
    (
        messages.SnapshotEnd("t", "T", AT),
        {"type": "snapshotEnd", "topic": "t", "token": "T", "clusterTime": AT_JSON},
    ),
    (messages.Live("t"), {"type": "live", "topic": "t"}),
    (
        messages.Resync("t", "token_expired", AT, 500, "T"),
        {
            "type": "resync",
            "topic": "t",
            "reason": "token_expired",
            "clusterTime": AT_JSON,
            "retryAfterMs": 500,
            "token": "T",
        },
    ),
    (
        messages.Unsubscribed("t", "forbidden", False),
        {"type": "unsubscribed", "topic": "t", "code": "forbidden", "resubscribe": False},
    ),
    (messages.Heartbeat(["t"], 7), {"type": "heartbeat", "stalled": ["t"], "lagMs": 7}),
    (messages.Pong(), {"type": "pong"}),
    (messages.Goaway(5), {"type": "goaway", "reconnectAfterMs": 5}),
    (
        messages.Error("bad_request", "m", False, "a1", "t", 5),
        {
            "type": "error",
            "code": "bad_request",
            "message": "m",
            "retryable": False,
            "id": "a1",
            "topic": "t",
            "retryAfterMs": 5,
        },
    ),
]
NAMES = [sample["type"] for _, sample in SAMPLES]
SCHEMAS, COMPONENTS = msgspec.json.schema_components((*CLIENT_FRAMES, *SERVER_FRAMES))


def conforms(value: Any, schema: Mapping[str, Any]) -> bool:
    """A validator for the part of JSON Schema that our schemas use; an unknown keyword fails the test."""
    unknown = set(schema) - {
        *(
            "$ref",
            "anyOf",
            "enum",
            "const",
            "type",
            "properties",
            "required",
            "items",
            "maxItems",
            "additionalProperties",
        ),
        *("minimum", "maximum", "minLength", "maxLength", "title", "description", "default", "discriminator"),
    }
    assert not unknown, unknown
    if "$ref" in schema:
        return conforms(value, COMPONENTS[schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return any(conforms(value, option) for option in schema["anyOf"])
    if "enum" in schema:
        return bool(value in schema["enum"])
    if "const" in schema:
        return bool(value == schema["const"])
    kinds = {
        "object": dict,
        "array": list,
        "string": str,
        "boolean": bool,
        "null": type(None),
        "integer": int,
    }
    if "type" in schema and type(value) is not kinds[schema["type"]]:
        return False
    if isinstance(value, dict):
        known, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
        required = set(schema.get("required", ()))
        return required <= set(value) and all(
            conforms(item, known[name])
            if name in known
            else rest is not False and (rest is True or conforms(item, rest))
            for name, item in value.items()
        )
    if isinstance(value, list):
        return len(value) <= schema.get("maxItems", len(value)) and all(
            conforms(item, schema.get("items", {})) for item in value
        )
    if isinstance(value, str):
        return bool(schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)))
    if isinstance(value, int):
        return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))
    return True


def schema_of(name: str) -> Mapping[str, Any]:
    index = [kind.__struct_config__.tag for kind in (*CLIENT_FRAMES, *SERVER_FRAMES)].index(name)
    return SCHEMAS[index]


def test_every_frame_has_a_sample() -> None:
    """The table covers the protocol, and a type exists once."""
    assert [type(frame) for frame, _ in SAMPLES] == [*CLIENT_FRAMES, *SERVER_FRAMES]
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("frame, expected", SAMPLES, ids=NAMES)
def test_the_names_on_the_wire(frame: messages.Frame, expected: dict[str, Any]) -> None:
    """A frame is what the protocol's page shows, fits its own schema, and comes back as it was."""
    encoded = encode(frame)
    assert json.loads(encoded) == expected
    assert conforms(expected, schema_of(expected["type"]))
    assert msgspec.json.decode(encoded, type=type(frame)) == frame
    if type(frame) in CLIENT_FRAMES:
        assert decode_client_frame(encoded) == frame


@pytest.mark.parametrize("frame, expected", SAMPLES, ids=NAMES)
def test_the_schema_refuses_what_the_struct_refuses(frame: messages.Frame, expected: dict[str, Any]) -> None:
    """Without a required field, or with one of another type, neither accepts the frame."""
    optional = 0
    for name in expected:
        missing = {key: value for key, value in expected.items() if key != name}
        wrong = expected | {name: [expected[name]]}
        for changed in (missing, wrong):
            try:
                msgspec.convert(changed, type(frame))
                accepted = True
            except msgspec.ValidationError:
                accepted = False
            if name != "type":
                assert conforms(changed, schema_of(expected["type"])) == accepted, (name, changed)
            optional += accepted
    assert optional < 2 * len(expected)


def test_absent_fields_are_left_out() -> None:
    """Where a field may be absent it is, never null; only the oplog window is null."""
    lost = messages.Subscribed("a", "t", False, AT, messages.Fidelity("partial", False), None)
    assert set(json.loads(encode(lost))) == {
        *("type", "id", "topic", "resumed", "clusterTime", "fidelity", "oplogWindowSeconds"),
    }
    assert json.loads(encode(messages.Error("internal", "m", True))) == {
        "type": "error",
        "code": "internal",
        "message": "m",
        "retryable": True,
    }


def test_the_defaults_of_subscribe() -> None:
    """Everything but id and collection is optional."""
    frame = decode_client_frame('{"type":"subscribe","id":"a","topic":{"collection":"c"}}')
    assert isinstance(frame, messages.Subscribe)
    assert frame.topic == TopicRequest("c")
    assert (frame.snapshot, frame.resume_token) == ("never", None)


def test_unknown_fields_are_ignored() -> None:
    """A newer client may say more."""
    assert decode_client_frame('{"type":"ping","new":{"a":[1]}}') == messages.Ping()
    frame = decode_client_frame('{"type":"subscribe","id":"a","topic":{"collection":"c","new":1},"new":2}')
    assert isinstance(frame, messages.Subscribe)


@pytest.mark.parametrize("field", ["resumeAfter", "startAfter"])
def test_both_token_fields_are_read(field: str) -> None:
    """`startAfter` is a resume token as well."""
    frame = decode_client_frame(
        json.dumps({"type": "subscribe", "id": "a", "topic": {"collection": "c"}, field: "T"})
    )
    assert isinstance(frame, messages.Subscribe)
    assert frame.resume_token == "T"


@given(st.integers(0, 2**64 - 1))
def test_a_timestamp_is_two_unsigned_halves(cluster_time: int) -> None:
    """Both halves keep their 32 bits."""
    assert ExtendedTimestamp.of(cluster_time).cluster_time == cluster_time


SUBSCRIBE = {"type": "subscribe", "id": "a", "topic": {"collection": "c"}}


@pytest.mark.parametrize(
    "change, named",
    [
        ({"type": "subscripe"}, "subscripe"),
        ({"id": ""}, "id"),
        ({"id": "x" * 65}, "id"),
        ({"id": 5}, "id"),
        ({"topic": {}}, "collection"),
        ({"topic": {"collection": "c", "filter": []}}, "filter"),
        ({"topic": {"collection": "c", "operations": ["drop"]}}, "operations"),
        ({"topic": {"collection": "c", "operations": None}}, "operations"),
        ({"topic": {"collection": "c", "database": None}}, "database"),
        ({"snapshot": "sometimes"}, "snapshot"),
        ({"resumeAfter": None}, "resumeAfter"),
        ({"startAtOperationTime": {"$timestamp": {"t": -1, "i": 0}}}, "startAtOperationTime"),
        ({"startAtOperationTime": {"$timestamp": {"t": 1, "i": 2**32}}}, "startAtOperationTime"),
        ({"startAtOperationTime": {"$timestamp": {"t": 1, "i": 1}, "x": 1}}, "startAtOperationTime"),
        ({"resumeAfter": "a", "startAfter": "b"}, "resumeAfter"),
        ({"resumeAfter": "a", "startAtOperationTime": AT_JSON}, "startAtOperationTime"),
    ],
)
def test_a_refusal_names_the_field(change: dict[str, Any], named: str) -> None:
    """`bad_request` with field and rule, in a bounded message."""
    with pytest.raises(Refusal) as caught:
        decode_client_frame(json.dumps(SUBSCRIBE | change))
    assert caught.value.code == "bad_request"
    assert named in caught.value.message
    assert len(caught.value.message) < 300


def only_refusals(text: str | bytes) -> None:
    """Decoding gives a frame or `Refusal('bad_request')`, and `frame_id` gives a usable id or None."""
    refused: Refusal | None = None
    try:
        decode_client_frame(text)
    except Refusal as refusal:
        refused = refusal
    if refused is not None:
        assert refused.code == "bad_request"
        assert len(refused.message.encode()) < 1000
    id = frame_id(text)
    assert id is None or 1 <= len(id) <= 64


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.binary(max_size=200) | st.text(st.characters(), max_size=100))
@settings(max_examples=150)
def test_garbage_is_refused(junk: bytes | str) -> None:
    """Any bytes and any text: nothing but a refusal comes out."""
    only_refusals(junk)


@given(
    st.dictionaries(
        st.sampled_from(
            ["type", "id", "topic", "jwt", "resumeAfter", "startAfter", "snapshot", "startAtOperationTime"]
        ),
        st.sampled_from(["auth", "subscribe", "unsubscribe", "ping", {"collection": "c"}, "never", AT_JSON])
        | json_values,
    ),
    st.data(),
)
@settings(max_examples=150)
def test_almost_frames_are_refused_or_read(frame: dict[str, Any], data: st.DataObject) -> None:
    """The right names with any values, whole or cut."""
    text = json.dumps(frame)
    only_refusals(text)
    only_refusals(text.encode("utf-8", "surrogatepass")[: data.draw(st.integers(0, len(text)))])


@pytest.mark.parametrize(
    "opening", ["[", '{"a":', '{"type":"subscribe","id":"a","topic":{"collection":"c","filter":{"a":']
)
@pytest.mark.parametrize("closed", [True, False])
def test_deep_nesting_is_refused(opening: str, closed: bool) -> None:
    """It raises no RecursionError, and leaves the decoder usable."""
    depth = 60_000 // len(opening) if "type" not in opening else 1
    middle = "1" if "type" not in opening else '{"b":' * 10_000 + "1" + "}" * 10_000 * closed
    closing = ("".join({"[": "]", "{": "}"}.get(c, "") for c in opening[::-1])) * depth
    text = opening * depth + middle + closing * closed
    only_refusals(text)
    only_refusals(text.encode())
    assert decode_client_frame('{"type":"ping"}') == messages.Ping()


def test_big_numbers_are_no_accident() -> None:
    """Python's bound on the digits of an integer must not surface as another error."""
    only_refusals(
        '{"type":"subscribe","id":"a","topic":{"collection":"c","filter":{"a":' + "9" * 10_000 + "}}}"
    )
    only_refusals('{"type":"ping","id":' + "9" * 10_000 + "}")
    only_refusals('{"type":"ping","id":1e999999}')


def test_protocol_and_code_name_the_same_frames() -> None:
    """docs/protocol.md lists each server frame, and no other."""
    text = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
    section = text.partition("## 4.")[2].partition("## 5.")[0]
    rows = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert set(rows) == {kind.__struct_config__.tag for kind in SERVER_FRAMES}
