"""Every frame of the wire protocol, once. JSON Schemas, `openapi.yaml` and the server's encoding come from here.

Client frames are decoded strictly by type (`decode_client_frame`), unknown fields are ignored. Server frames are
encoded with `encode`, except for `event`: its values are BSON, so `frames.py` builds it as a document with the field
names of `ChangeEvent`, and a test holds the two together.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from feedsvc.core.errors import CloseAction, Refusal

SUBPROTOCOL = "feedsvc.v1"
SUBSCRIPTION_ID_CHARS = 64
STREAM_TOPICS = 8
_ECHO_CHARS = 200

Operation = Literal["insert", "update", "replace", "delete"]
SnapshotMode = Literal["never", "always", "onResync"]
SubscriptionId = Annotated[str, Meta(min_length=1, max_length=SUBSCRIPTION_ID_CHARS)]
ResumeToken = Annotated[str, Meta(description="Opaque, URL-safe, at most 1,024 characters.")]
Milliseconds = Annotated[int, Meta(ge=0)]


class Frame(msgspec.Struct, rename="camel", tag_field="type", frozen=True):
    """One JSON object on the wire, told apart by `type`."""


class TimestampParts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    t: Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
    i: Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]


class ExtendedTimestamp(
    msgspec.Struct, frozen=True, rename={"timestamp": "$timestamp"}, forbid_unknown_fields=True
):
    """A MongoDB Timestamp in Extended JSON."""

    timestamp: TimestampParts

    @classmethod
    def of(cls, cluster_time: int) -> ExtendedTimestamp:
        return cls(TimestampParts(cluster_time >> 32, cluster_time & 0xFFFFFFFF))

    @property
    def cluster_time(self) -> int:
        return (self.timestamp.t << 32) | self.timestamp.i


# -- client to server -------------------------------------------------------------------------------------


class Auth(Frame, tag="auth", frozen=True):
    jwt: str


class TopicRequest(msgspec.Struct, rename="camel", frozen=True):
    """What a client asks to see. `filter` and `fields` are raw JSON: Extended JSON is decoded behind the policy."""

    collection: str
    database: str | UnsetType = UNSET
    filter: dict[str, Any] = {}
    operations: Annotated[list[Operation], Meta(max_length=len(get_args(Operation)))] | UnsetType = UNSET
    fields: dict[str, Any] = {}


class Subscribe(Frame, tag="subscribe", frozen=True):
    id: SubscriptionId
    topic: TopicRequest
    resume_after: ResumeToken | UnsetType = UNSET
    start_after: ResumeToken | UnsetType = UNSET
    start_at_operation_time: ExtendedTimestamp | UnsetType = UNSET
    snapshot: SnapshotMode = "never"

    @property
    def resume_token(self) -> str | None:
        if self.resume_after is not UNSET:
            return self.resume_after
        return None if self.start_after is UNSET else self.start_after


class StreamRequest(msgspec.Struct, rename="camel", frozen=True, forbid_unknown_fields=True):
    """What a stream of server-sent events is asked for: the body of `POST /v1/sse`, or its query parameters.

    An unknown field is refused here: a misspelt `resumeAfter` would miss events without a word.
    """

    topics: Annotated[list[TopicRequest], Meta(min_length=1, max_length=STREAM_TOPICS)]
    resume_after: str | UnsetType = UNSET
    start_at_operation_time: ExtendedTimestamp | UnsetType = UNSET
    snapshot: SnapshotMode = "never"


class Unsubscribe(Frame, tag="unsubscribe", frozen=True):
    topic: str


class Ping(Frame, tag="ping", frozen=True):
    pass


ClientFrame = Auth | Subscribe | Unsubscribe | Ping


# -- server to client -------------------------------------------------------------------------------------


class Welcome(Frame, tag="welcome", frozen=True):
    connection: str
    heartbeat_ms: Milliseconds
    auth_expires_at: Milliseconds
    limits: dict[str, int]
    server: str


class Authenticated(Frame, tag="authenticated", frozen=True):
    auth_expires_at: Milliseconds


class Fidelity(msgspec.Struct, frozen=True):
    membership: Literal["exact", "partial"]
    deletes: bool


class Subscribed(Frame, tag="subscribed", frozen=True):
    id: SubscriptionId
    topic: str
    resumed: bool
    cluster_time: ExtendedTimestamp
    fidelity: Fidelity
    oplog_window_seconds: int | None
    token: ResumeToken | UnsetType = UNSET


class EventNamespace(msgspec.Struct, frozen=True):
    coll: str


class ChangeEvent(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """The change inside an `event` frame; documents are relaxed Extended JSON."""

    id: ResumeToken = msgspec.field(name="_id")
    operation_type: Literal[
        "insert", "update", "replace", "delete", "drop", "rename", "dropDatabase", "invalidate"
    ]
    cluster_time: ExtendedTimestamp
    wall_time: dict[str, Any] | UnsetType = UNSET
    ns: EventNamespace | UnsetType = UNSET
    document_key: dict[str, Any] | UnsetType = UNSET
    full_document: dict[str, Any] | UnsetType = UNSET
    update_description: dict[str, Any] | UnsetType = UNSET
    membership: Literal["entered", "stayed", "left"] | UnsetType = UNSET
    truncated: bool | UnsetType = UNSET


class Event(Frame, tag="event", frozen=True):
    topic: str
    event: ChangeEvent


class Checkpoint(Frame, tag="checkpoint", frozen=True):
    tokens: dict[str, ResumeToken]


class Snapshot(Frame, tag="snapshot", frozen=True):
    topic: str
    page: Annotated[int, Meta(ge=0)]
    documents: list[dict[str, Any]]


class SnapshotEnd(Frame, tag="snapshotEnd", frozen=True):
    topic: str
    token: ResumeToken
    cluster_time: ExtendedTimestamp


class Live(Frame, tag="live", frozen=True):
    topic: str


ResyncReason = Literal[
    "token_expired",
    "topic_changed",
    "source_changed",
    "history_lost",
    "images_lost",
    "event_unavailable",
    "overflow",
    "replay_too_large",
]


class Resync(Frame, tag="resync", frozen=True):
    topic: str
    reason: ResyncReason
    cluster_time: ExtendedTimestamp
    retry_after_ms: Milliseconds
    token: ResumeToken | UnsetType = UNSET


class Unsubscribed(Frame, tag="unsubscribed", frozen=True):
    topic: str
    code: Literal["requested", "forbidden", "topic_changed", "snapshot_too_large"]
    resubscribe: bool


class Heartbeat(Frame, tag="heartbeat", frozen=True):
    stalled: list[str]
    lag_ms: Milliseconds


class Pong(Frame, tag="pong", frozen=True):
    pass


class Goaway(Frame, tag="goaway", frozen=True):
    reconnect_after_ms: Milliseconds


class Error(Frame, tag="error", frozen=True):
    code: str
    message: str
    retryable: bool
    id: str | UnsetType = UNSET
    topic: str | UnsetType = UNSET
    retry_after_ms: Milliseconds | UnsetType = UNSET


class Close(Frame, tag="close", frozen=True):
    """The last event of a stream of server-sent events, in place of a WebSocket's close frame."""

    code: Annotated[int, Meta(description="A close code; its range is told by `action`.")]
    action: CloseAction
    reason: str


ServerFrame = (
    Welcome
    | Authenticated
    | Subscribed
    | Event
    | Checkpoint
    | Snapshot
    | SnapshotEnd
    | Live
    | Resync
    | Unsubscribed
    | Heartbeat
    | Pong
    | Goaway
    | Error
)

CLIENT_FRAMES: tuple[type[Frame], ...] = (Auth, Subscribe, Unsubscribe, Ping)
SERVER_FRAMES: tuple[type[Frame], ...] = (
    Welcome,
    Authenticated,
    Subscribed,
    Event,
    Checkpoint,
    Snapshot,
    SnapshotEnd,
    Live,
    Resync,
    Unsubscribed,
    Heartbeat,
    Pong,
    Goaway,
    Error,
)

STREAM_FRAMES: tuple[type[Frame], ...] = (Close,)
"""What server-sent events have beside the server's frames."""

_client_decoder: msgspec.json.Decoder[ClientFrame] = msgspec.json.Decoder(ClientFrame)
_topic_decoder: msgspec.json.Decoder[TopicRequest] = msgspec.json.Decoder(TopicRequest)
_stream_decoder: msgspec.json.Decoder[StreamRequest] = msgspec.json.Decoder(StreamRequest)
_head_decoder: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])
_encoder = msgspec.json.Encoder()


def encode(frame: Frame) -> bytes:
    """The UTF-8 JSON of a frame."""
    return _encoder.encode(frame)


def decode_client_frame(text: str | bytes) -> ClientFrame:
    """Raises `Refusal('bad_request')` naming the field and the rule; never anything else."""
    try:
        frame = _client_decoder.decode(text)
    except msgspec.ValidationError as error:
        raise Refusal("bad_request", f"frame refused: {str(error)[:_ECHO_CHARS]}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        raise Refusal("bad_request", "a frame is one JSON object in UTF-8") from None
    if isinstance(frame, Subscribe):
        given = (frame.resume_after, frame.start_after, frame.start_at_operation_time)
        if sum(value is not UNSET for value in given) > 1:
            raise Refusal("bad_request", "give at most one of resumeAfter, startAfter, startAtOperationTime")
    return frame


def decode_topic_request(text: bytes) -> TopicRequest:
    """A bare `topic`, as a `subscribe` carries it. Raises as `decode_client_frame`."""
    try:
        return _topic_decoder.decode(text)
    except msgspec.ValidationError as error:
        raise Refusal("bad_request", f"topic refused: {str(error)[:_ECHO_CHARS]}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        raise Refusal("bad_request", "a topic is one JSON object in UTF-8") from None


def decode_stream_request(text: bytes) -> StreamRequest:
    """The body of `POST /v1/sse`. Raises as `decode_client_frame`."""
    try:
        return _stream_decoder.decode(text)
    except msgspec.ValidationError as error:
        raise Refusal("bad_request", f"body refused: {str(error)[:_ECHO_CHARS]}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        raise Refusal("bad_request", "the body is one JSON object in UTF-8") from None


def frame_id(text: str | bytes) -> str | None:
    """The `id` of a frame that was refused, so that its error can be told apart; None where there is none."""
    try:
        value = _head_decoder.decode(text).get("id")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return None
    return value if isinstance(value, str) and 0 < len(value) <= SUBSCRIPTION_ID_CHARS else None
