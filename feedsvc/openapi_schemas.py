"""The schemas of `openapi.yaml`: every frame and every answer, made of the messages, with words and examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from feedsvc import openapi_examples, openapi_fields
from feedsvc.core.errors import REGISTRY, ErrorEntry
from feedsvc.core.explain import Explained, Refused
from feedsvc.core.messages import (
    CLIENT_FRAMES,
    SERVER_FRAMES,
    STREAM_FRAMES,
    ExtendedTimestamp,
    Frame,
    StreamRequest,
)
from feedsvc.core.status import Status
from feedsvc.core.tickets import IssuedTicket

_REF = "#/components/schemas/{name}"


def closing() -> list[tuple[int, ErrorEntry]]:
    """The codes of the registry that close a socket, by close code."""
    return sorted(
        ((entry.close_code, entry) for entry in REGISTRY.values() if entry.close_code is not None),
        key=lambda pair: pair[0],
    )


def schemas() -> dict[str, Any]:
    """`components.schemas`."""
    described = (
        *CLIENT_FRAMES,
        *SERVER_FRAMES,
        *STREAM_FRAMES,
        StreamRequest,
        ExtendedTimestamp,
        Explained,
        Refused,
        IssuedTicket,
        Status,
    )
    _, found = msgspec.json.schema_components(described, ref_template=_REF)
    for name in ("Error", "RefusedTopic", "SnapshotAnswer"):
        found[name]["properties"]["code"] = _ref("ErrorCode")
    made = {
        "ClientFrame": _union(CLIENT_FRAMES),
        "ServerFrame": _union(SERVER_FRAMES),
        "StreamFrame": _union((*SERVER_FRAMES, *STREAM_FRAMES)),
        **found,
        "ErrorCode": {"enum": list(REGISTRY), "description": "The codes and their meaning: x-errors."},
        "CloseCode": {
            "enum": [code for code, _ in closing()],
            "description": "WebSocket close codes of this service: x-close-codes.",
        },
        "Problem": {
            "title": "Problem",
            "description": "RFC 9457.",
            "type": "object",
            "properties": {
                "type": {"type": "string", "format": "uri"},
                "title": {"type": "string"},
                "status": {"type": "integer"},
                "code": _ref("ErrorCode"),
                "detail": {"type": "string"},
                "retryable": {"type": "boolean"},
            },
            "required": ["type", "title", "status", "code", "detail", "retryable"],
        },
        "Health": {
            "title": "Health",
            "type": "object",
            "properties": {
                "status": {"enum": ["ok", "degraded", "starting", "draining", "failing"]},
                "detail": {"type": "string"},
            },
            "required": ["status", "detail"],
        },
    }
    made["ServerSentEvent"] = _server_sent(_ref("StreamFrame"))
    made["StatusEvent"] = _server_sent({"anyOf": [_ref("Status"), _ref("Close")]})
    openapi_fields.describe(made)
    openapi_examples.illustrate(made)
    return made


def _server_sent(data: dict[str, Any]) -> dict[str, Any]:
    """One event of an event stream, whose data is JSON of this schema."""
    return {
        "type": "object",
        "properties": {
            "event": {"type": "string"},
            "data": {"type": "string", "contentMediaType": "application/json", "contentSchema": data},
            "id": {"type": "string"},
            "retry": {"type": "integer", "minimum": 0},
        },
    }


def _union(frames: Sequence[type[Frame]]) -> dict[str, Any]:
    names = {str(frame.__struct_config__.tag): frame.__name__ for frame in frames}
    return {
        "oneOf": [_ref(name) for name in names.values()],
        "discriminator": {
            "propertyName": "type",
            "mapping": {tag: _REF.format(name=name) for tag, name in names.items()},
        },
    }


def _ref(name: str) -> dict[str, str]:
    return {"$ref": _REF.format(name=name)}
