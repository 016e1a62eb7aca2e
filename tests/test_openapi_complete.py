"""openapi.yaml describes every route, field and error there is, nothing else, and its examples are what it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from starlette.routing import Route

from feedsvc import openapi, openapi_examples, openapi_fields
from feedsvc.adapters.web.sse_request import QUERY_OF_GET, QUERY_OF_POST
from feedsvc.core import errors
from feedsvc.core.messages import (
    CLIENT_FRAMES,
    SERVER_FRAMES,
    STREAM_FRAMES,
    decode_client_frame,
    decode_stream_request,
    decode_topic_request,
)
from tests.support.sse import Parser
from tests.web.asking import application

DOCUMENT = openapi.document()
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
PROTOCOL = (Path(__file__).parent.parent / "docs/protocol.md").read_text(encoding="utf-8")
METHODS = ("get", "post", "put", "patch", "delete", "options", "head", "trace")
OPERATIONS: dict[str, Any] = {
    f"{method.upper()} {path}": operation
    for path, item in DOCUMENT["paths"].items()
    for method, operation in item.items()
    if method in METHODS
}


def faults(schema: dict[str, Any], value: Any) -> list[str]:
    whole = {**schema, "components": DOCUMENT["components"]}
    return [error.message for error in jsonschema_rs.Draft202012Validator(whole).iter_errors(value)]


def reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def examples(holder: dict[str, Any]) -> Iterator[Any]:
    """Of a parameter or a media type: `example` and `examples`, those too that are kept under `components`."""
    if "example" in holder:
        yield holder["example"]
    for example in holder.get("examples", {}).values():
        name = example.get("$ref", "").rpartition("/")[2]
        yield (DOCUMENT["components"]["examples"][name] if name else example)["value"]


def bodies() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Operation, kind and media type of every body there is, requests' and responses'."""
    for name, operation in OPERATIONS.items():
        for body in (operation.get("requestBody", {}), *operation["responses"].values()):
            for kind, media_type in body.get("content", {}).items():
                yield name, kind, media_type


async def test_operations_are_the_routes_of_the_application_and_their_methods() -> None:
    """A route that takes GET answers HEAD too and says so in `Allow`; the document says it once for all."""
    async with application() as asked:
        served = {
            f"{method} {route.path}"
            for route in asked.app.routes
            if isinstance(route, Route)
            for method in route.methods or ()
            if method != "HEAD"
        }
    assert served == set(OPERATIONS)


def test_every_operation_has_words_a_group_and_says_who_may() -> None:
    groups = [tag["name"] for tag in DOCUMENT["tags"]]
    names = [operation["operationId"] for operation in OPERATIONS.values()]
    assert len(set(names)) == len(names)
    for name, operation in OPERATIONS.items():
        assert operation["summary"].endswith("."), name
        assert operation["tags"][0] in groups, name
        assert isinstance(operation["security"], list), name
        for parameter in operation.get("parameters", ()):
            assert parameter["description"], (name, parameter["name"])
        for status, response in operation["responses"].items():
            assert response["description"], (name, status)
            assert all(header["description"] for header in response.get("headers", {}).values()), (
                name,
                status,
            )


@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_schema_and_every_field_has_words(schema: str) -> None:
    assert SCHEMAS[schema].get("description"), "add it to feedsvc/openapi_fields.py"
    properties = SCHEMAS[schema].get("properties", {})
    assert set(openapi_fields.FIELDS.get(schema, ())) <= set(properties), "words for what is not there"
    unsaid = {name for name, field in properties.items() if not field.get("description")}
    frame = "enum" in properties.get("type", ())  # whose type is its name
    assert unsaid - ({"type"} if frame else set()) == set(), "add them to feedsvc/openapi_fields.py"


@pytest.mark.parametrize(
    "frame", [*CLIENT_FRAMES, *SERVER_FRAMES, *STREAM_FRAMES], ids=lambda frame: frame.__name__
)
def test_every_frame_has_an_example_that_its_schema_and_the_code_take(frame: type[msgspec.Struct]) -> None:
    (example,) = SCHEMAS[frame.__name__]["examples"]
    assert faults(reference(frame.__name__), example) == []
    if frame in CLIENT_FRAMES:
        assert isinstance(decode_client_frame(msgspec.json.encode(example)), frame)
    else:  # and the code knows every field of it
        assert msgspec.to_builtins(msgspec.convert(example, frame)) == example


@pytest.mark.parametrize("schema", openapi_examples.SCHEMAS)
def test_every_example_of_a_schema_is_one(schema: str) -> None:
    for example in SCHEMAS[schema]["examples"]:
        assert faults(reference(schema), example) == []


def test_every_example_of_a_body_is_one() -> None:
    """And every body of JSON has one."""
    for name, kind, media_type in bodies():
        found = list(examples(media_type))
        assert found or not kind.endswith("json"), (name, kind)
        for example in found:
            assert faults(media_type["schema"], example) == [], (name, kind)


def test_every_example_of_a_parameter_is_one() -> None:
    for name, operation in OPERATIONS.items():
        for parameter in operation.get("parameters", ()):
            holder = parameter.get("content", {}).get("application/json", parameter)
            for example in examples(holder):
                assert faults(holder["schema"], example) == [], (name, parameter["name"])


def test_the_service_takes_the_examples_of_requests() -> None:
    given = {
        name: operation["requestBody"]["content"]["application/json"]["example"]
        for name, operation in OPERATIONS.items()
        if "requestBody" in operation
    }
    assert set(given) == {"POST /v1/sse", "POST /v1/topics/explain"}
    decode_stream_request(msgspec.json.encode(given["POST /v1/sse"]))
    decode_topic_request(msgspec.json.encode(given["POST /v1/topics/explain"]))
    (topics,) = (p["example"] for p in OPERATIONS["GET /v1/sse"]["parameters"] if p["name"] == "topic")
    for topic in topics:
        decode_topic_request(topic.encode())


@pytest.mark.parametrize(("method", "known"), [("GET", QUERY_OF_GET), ("POST", QUERY_OF_POST)])
def test_the_parameters_of_a_stream_are_those_that_it_takes(method: str, known: frozenset[str]) -> None:
    """`ticket` is written as what it is, a way to say who asks."""
    operation = OPERATIONS[f"{method} /v1/sse"]
    described = {p["name"] for p in operation["parameters"] if p["in"] == "query"}
    assert {"ticket": []} in operation["security"] and described == known - {"ticket"}


def test_the_example_of_a_stream_is_one() -> None:
    media_type = OPERATIONS["GET /v1/sse"]["responses"]["200"]["content"]["text/event-stream"]
    found = Parser().feed(media_type["x-stream-example"] + "\n")
    assert [kind for kind, _, _ in found] == ["subscribed", "event"]
    for kind, data, last_id in found:
        assert faults(media_type["schema"], {"event": kind, "data": data, "id": last_id}) == []
        assert faults(reference("StreamFrame"), msgspec.json.decode(data)) == []


@pytest.mark.parametrize("code", errors.REGISTRY)
def test_every_error_has_an_example_and_says_where_it_comes(code: str) -> None:
    """As a problem document of a response, in an `error` frame, or with a close."""
    entry = errors.REGISTRY[code]
    example = DOCUMENT["components"]["examples"][code]["value"]
    assert faults(reference("Problem"), example) == []
    assert (example["code"], example["status"]) == (code, entry.status)
    (row,) = (row for row in DOCUMENT["x-errors"] if row["code"] == code)
    assert row["in"], "nothing says this error"
    assert ("close" in row["in"]) == (entry.close_code is not None)
    everywhere = {"responses": DOCUMENT["components"]["responses"]}
    statuses = {
        status if status in DOCUMENT["components"]["responses"] else int(status)
        for operation in (*OPERATIONS.values(), everywhere)
        for status, response in operation["responses"].items()
        if code in response.get("content", {}).get("application/problem+json", {"examples": ()})["examples"]
    }
    assert ("response" in row["in"]) == bool(statuses)
    assert {status for status in statuses if isinstance(status, int)} <= {entry.status}


def test_no_frame_is_described_that_does_not_exist() -> None:
    directions = {
        "ClientFrame": CLIENT_FRAMES,
        "ServerFrame": SERVER_FRAMES,
        "StreamFrame": (*SERVER_FRAMES, *STREAM_FRAMES),
    }
    for direction, frames in directions.items():
        assert SCHEMAS[direction]["oneOf"] == [reference(frame.__name__) for frame in frames]
        tags = {str(frame.__struct_config__.tag): frame.__name__ for frame in frames}
        mapping = SCHEMAS[direction]["discriminator"]["mapping"]
        assert mapping == {tag: reference(name)["$ref"] for tag, name in tags.items()}


def test_no_schema_is_left_over() -> None:
    """Each is part of a body, of a frame of the WebSocket, or of another schema; but the numbers of close codes."""

    def named(value: object) -> Iterator[str]:
        if isinstance(value, dict):
            if "$ref" in value:
                yield value["$ref"].rpartition("/")[2]
            for inner in value.values():
                yield from named(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from named(inner)

    used = {"ClientFrame", "ServerFrame", "CloseCode", *named(DOCUMENT["paths"])}
    while (more := used | set(named([SCHEMAS[name] for name in used if name in SCHEMAS]))) != used:
        used = more
    assert set(SCHEMAS) - used == set()


def test_the_frames_are_those_of_the_protocol() -> None:
    """Those of section 4 by its table, those of section 3 by their first words."""
    to_server, to_client = (
        PROTOCOL.partition("## 4. ")[0].partition("## 3. ")[2],
        PROTOCOL.partition("## 4. ")[2],
    )
    table = re.findall(r"^\| `(\w+)` \|", to_client.partition("```")[0], re.MULTILINE)
    assert table == list(SCHEMAS["ServerFrame"]["discriminator"]["mapping"])
    headed = re.findall(r"^`(\w+)`(?:$| `\{)", to_server, re.MULTILINE)
    assert headed == list(SCHEMAS["ClientFrame"]["discriminator"]["mapping"])


def test_the_routes_of_the_protocol_are_described() -> None:
    named = set(
        re.findall(r"(/(?:v1|healthz|metrics|openapi\.yaml|admin)[\w/]*)", PROTOCOL.partition("## 11. ")[0])
    )
    assert len(named) > 8
    assert named - set(DOCUMENT["paths"]) <= {"/openapi", "/v1"}


def test_the_errors_of_frames_are_those_of_the_protocol() -> None:
    listed = re.search(r"Error codes on frames: `([^`]*)`", PROTOCOL)
    assert listed is not None
    assert {row["code"] for row in DOCUMENT["x-errors"] if "frame" in row["in"]} == set(listed[1].split())
