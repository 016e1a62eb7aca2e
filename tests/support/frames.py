"""Every frame that a test receives is held against the schemas of `openapi.yaml`.

Whatever reads frames in a test, from a socket, a stream or a connection in memory, reads them with `received`: a frame
that the document does not describe fails the test that got it. Clients must ignore fields that they do not know; the
service must not send any, so the schemas are closed here.
"""

from __future__ import annotations

import functools
from typing import Any

import jsonschema_rs
import msgspec

from feedsvc.core.messages import SERVER_FRAMES, STREAM_FRAMES
from feedsvc.openapi import document
from feedsvc.testing import MemoryConnection

Frame = dict[str, Any]

_KINDS = {str(kind.__struct_config__.tag): kind.__name__ for kind in (*SERVER_FRAMES, *STREAM_FRAMES)}


def received(text: str | bytes, *, event: str | None = None) -> Frame:
    """The frame of a text message, or of the data of a server-sent event whose name is `event`.

    AssertionError where it is none, or not as its schema says.
    """
    frame: Frame = msgspec.json.decode(text)
    assert frame["type"] in _KINDS, f"no frame of this service: {frame}"
    assert event is None or event == frame["type"], f"{event} carries {frame}"
    _check(_KINDS[frame["type"]], frame)
    return frame


def received_status(text: str | bytes, *, event: str) -> dict[str, Any]:
    """What an event of `/v1/status` carries: a status, or the frame that ends the stream. Raises as `received`."""
    if event != "status":
        return received(text, event=event)
    status: dict[str, Any] = msgspec.json.decode(text)
    _check("Status", status)
    return status


def _check(name: str, value: Any) -> None:
    try:
        _schema_of(name).validate(value)
    except jsonschema_rs.ValidationError as error:
        raise AssertionError(f"not as openapi.yaml says: {error}\n{value}") from None


@functools.cache
def _schema_of(name: str) -> jsonschema_rs.Draft202012Validator:
    """Compiled once for a process; with the look-ups a check takes 7 us on average."""
    return jsonschema_rs.Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": {"schemas": _closed_schemas()}}
    )


@functools.cache
def _closed_schemas() -> dict[str, Any]:
    schemas: dict[str, Any] = document()["components"]["schemas"]
    return {
        name: {"additionalProperties": False, **schema} if "properties" in schema else schema
        for name, schema in schemas.items()
    }


class CheckedConnection(MemoryConnection):
    """A connection in memory whose frames are read with `received`."""

    def messages(self) -> list[Frame]:
        return [received(frame) for frame in self.frames]
