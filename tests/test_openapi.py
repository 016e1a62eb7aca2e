"""The generated documents are up to date, complete and internally consistent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from feedsvc import openapi
from feedsvc.core import errors
from feedsvc.core.messages import CLIENT_FRAMES, SERVER_FRAMES, STREAM_FRAMES, Frame

ROOT = Path(__file__).parent.parent


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "$ref":
                yield inner
            else:
                yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """What a reader of the file gets, not what the generator made."""
    loaded: dict[str, Any] = yaml.safe_load(openapi.openapi_yaml())
    return loaded


def test_the_files_in_the_repository_are_up_to_date() -> None:
    assert openapi.outdated(ROOT) == [], f"run `{openapi.COMMAND}`"


@pytest.mark.parametrize("frame", [*CLIENT_FRAMES, *SERVER_FRAMES], ids=lambda frame: frame.__name__)
def test_every_frame_has_a_schema_and_belongs_to_a_direction(
    document: dict[str, Any], frame: type[Frame]
) -> None:
    schemas = document["components"]["schemas"]
    assert schemas[frame.__name__]["properties"]["type"] == {"enum": [frame.__struct_config__.tag]}
    direction = schemas["ClientFrame" if frame in CLIENT_FRAMES else "ServerFrame"]
    assert {"$ref": f"#/components/schemas/{frame.__name__}"} in direction["oneOf"]
    assert frame.__struct_config__.tag in direction["discriminator"]["mapping"]


@pytest.mark.parametrize("frame", [*SERVER_FRAMES, *STREAM_FRAMES], ids=lambda frame: frame.__name__)
def test_every_event_of_a_stream_has_a_schema(document: dict[str, Any], frame: type[Frame]) -> None:
    schemas = document["components"]["schemas"]
    tag = frame.__struct_config__.tag
    assert schemas[frame.__name__]["properties"]["type"] == {"enum": [tag]}
    assert schemas["StreamFrame"]["discriminator"]["mapping"][tag] == f"#/components/schemas/{frame.__name__}"


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    targets = {
        f"#/components/{kind}/{name}" for kind, members in document["components"].items() for name in members
    }
    assert set(references(document)) <= targets


def test_every_code_of_the_registry_is_listed(document: dict[str, Any]) -> None:
    assert [row["code"] for row in document["x-errors"]] == list(errors.REGISTRY)
    assert document["components"]["schemas"]["ErrorCode"]["enum"] == list(errors.REGISTRY)
    for code, entry in errors.REGISTRY.items():
        assert f"| `{code}` | {entry.meaning} |" in openapi.errors_markdown()


def test_every_close_code_has_the_action_of_its_range(document: dict[str, Any]) -> None:
    closing = {entry.close_code for entry in errors.REGISTRY.values()} - {None}
    assert {row["closeCode"] for row in document["x-close-codes"]} == closing
    assert document["components"]["schemas"]["CloseCode"]["enum"] == sorted(code for code in closing if code)
    assert "Do not reconnect" in openapi.action_of(4009)
    assert "retryAfterMs" in openapi.action_of(4301)


def test_a_problem_has_exactly_the_fields_of_its_schema(document: dict[str, Any]) -> None:
    schema = document["components"]["schemas"]["Problem"]
    assert set(errors.problem("forbidden", "x")) == set(schema["properties"]) == set(schema["required"])


def test_check_names_what_differs_and_what_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "docs").mkdir()
    assert openapi.main(["--root", str(tmp_path)]) == 0
    assert openapi.main(["--check", "--root", str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""
    (tmp_path / "openapi.yaml").write_text("openapi: 3.0.0\n")
    assert openapi.main(["--check", "--root", str(tmp_path)]) == 1
    message = capsys.readouterr().err
    assert "openapi.yaml" in message and openapi.COMMAND in message and "errors.md" not in message
