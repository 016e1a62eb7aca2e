"""What the schemas of `openapi.yaml` say in words: when a frame is sent, and what each field means.

The types are those of the messages; the words are of docs/protocol.md, shortened. A test holds the table to the
schemas: every field has its words, and there are none for what does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SCHEMAS: Mapping[str, str] = {
    "ClientFrame": "What a client sends over a WebSocket: text messages, each one JSON object.",
    "ServerFrame": "What the service sends over a WebSocket: text messages, each one JSON object.",
    "StreamFrame": "What is the data of a server-sent event; the event's name is its `type`.",
    "Auth": "The first frame where the upgrade carried no credentials, and later a refresh.",
    "Subscribe": "Asks for a topic. At most one of `resumeAfter`, `startAfter` and `startAtOperationTime`; with none "
    "the stream starts now.",
    "TopicRequest": "What a client asks to see. Topics that are equal once the policy is applied share one stream.",
    "Unsubscribe": "Answered by `unsubscribed`; no frame of that topic follows it.",
    "Ping": "Answered by `pong`, for browsers, which cannot see the pings of WebSocket.",
    "Welcome": "After authentication, once.",
    "Authenticated": "After a refresh.",
    "Subscribed": "The answer to `subscribe`: at once where the stream is fresh or the position is in memory, else "
    "when MongoDB has answered past the position.",
    "Fidelity": "What the topic's events can promise.",
    "Event": "A change. The frame is the same for all subscribers of a topic, on all instances.",
    "ChangeEvent": "A change as MongoDB's change streams name it; documents are relaxed Extended JSON.",
    "EventNamespace": "Where the change happened.",
    "Checkpoint": "The positions of these topics moved on, and nothing is owed to this client before them.",
    "Snapshot": "One page, each document an upsert; page 0 starts a snapshot anew.",
    "SnapshotEnd": "All pages are sent: what was not in them is gone; the events after `token` follow.",
    "Live": "The replay or the snapshot is done: what follows is live.",
    "Resync": "Continuity is broken: fetch the state, or take the snapshot that follows.",
    "Unsubscribed": "The subscription ended.",
    "Heartbeat": "Every `heartbeatMs`, jittered, and at once when `stalled` changes.",
    "Pong": "The answer to `ping`.",
    "Goaway": "Before a planned close: reconnect after that time, anywhere, with your tokens.",
    "Error": "A frame was refused; the connection stays open.",
    "Close": "The last event of a stream of server-sent events, in place of a WebSocket's close frame.",
    "TimestampParts": "Seconds since 1970, and the ordinal within the second.",
    "StreamRequest": "What a stream of server-sent events is asked for. A field that is not listed is refused: a "
    "misspelt `resumeAfter` would miss events without a word.",
    "CanonicalTopic": "The topic in readable words.",
    "TopicIndex": "What the matcher's index does with the topic.",
    "TenantStatus": "One tenant, on this instance.",
    "Problem": "What every error of HTTP is (RFC 9457).",
    "Health": "The answer of a probe.",
    "ServerSentEvent": "One event of the stream. `retry:` is sent once, at the beginning.",
    "StatusEvent": "One event of `/v1/status`: `status`, and at the end `close`.",
    "Status": "How one process is.",
    "TailStatus": "One live tail with the catch-up tails beside it.",
    "OldestPosition": "The position that is nearest to the end of the oplog, of those that connected clients hold.",
    "RecentError": "A warning or an error as it was logged.",
}

_TOPIC_ID = (
    "The topic id, computed from the whole effective topic: the same on all instances of one configuration."
)
_RESUME = "A resume token: everything after it is delivered, on any instance."
_CLUSTER_TIME = "The time of the deployment that the position stands for."
_POSITION = "The position as a resume token: opaque, URL-safe, at most 1,024 characters."

FIELDS: Mapping[str, Mapping[str, str]] = {
    "Auth": {"jwt": "The JWT, without `Bearer`."},
    "Subscribe": {
        "id": "Chosen by the client; echoed in `subscribed` and `error`.",
        "topic": "What to see.",
        "resumeAfter": _RESUME,
        "startAfter": "As `resumeAfter`; both also take the token of an `invalidate`.",
        "startAtOperationTime": "Deliver everything from this time on, inclusively.",
        "snapshot": "Whether the state comes first: `onResync` only where continuity is broken. A snapshot needs all "
        "operations. With `always` a token beside it is ignored.",
    },
    "TopicRequest": {
        "collection": "A collection that the policy names.",
        "database": "Absent, or the one that the policy gives.",
        "filter": "A query on the document as the policy shows it: comparison, `$in`, `$exists`, `$elemMatch`, "
        "`$regex`, `$and` and `$or` among others, as MongoDB's `find` answers them. At most 4 KiB and 8 levels deep.",
        "operations": "Which of MongoDB's operations are sent; all where it is absent. Control events always are.",
        "fields": "A projection that includes or excludes; `_id` always stays.",
    },
    "Unsubscribe": {"topic": "The topic id of `subscribed`."},
    "Welcome": {
        "connection": "Names the connection in the service's log.",
        "heartbeatMs": "How often `heartbeat` comes at the latest; where none does, the connection is dead.",
        "authExpiresAt": "When the credentials expire, in epoch milliseconds: send `auth` before.",
        "limits": "The bounds of this connection, by name.",
        "server": "Name and version of the service.",
    },
    "Authenticated": {"authExpiresAt": "When the new credentials expire, in epoch milliseconds."},
    "Subscribed": {
        "id": "That of `subscribe`; of a stream of server-sent events the topic's index.",
        "topic": _TOPIC_ID,
        "resumed": "Whether the stream goes on from the position that was asked for. If not, it starts now, and where "
        "a position was given `resync` follows.",
        "clusterTime": _CLUSTER_TIME,
        "fidelity": "What the events can promise.",
        "oplogWindowSeconds": "How long a client may be away and resume; null where it is not known.",
        "token": "The position to resume from; absent where `resync` or a snapshot follows.",
    },
    "Fidelity": {
        "membership": "`exact`: the collection keeps images, and `left` is sent exactly when a document leaves. "
        "`partial`: `left` is sent for every change of a document that does not match now.",
        "deletes": "Whether deletes are sent.",
    },
    "Event": {"topic": _TOPIC_ID, "event": "The change."},
    "ChangeEvent": {
        "_id": "The resume token of this event; it is the same wherever and whenever the event comes.",
        "operationType": "MongoDB's name of the operation.",
        "clusterTime": "When it happened, by the deployment's clock.",
        "wallTime": "When it happened, by the server's clock, as an Extended JSON date.",
        "ns": "Where it happened.",
        "documentKey": "The `_id` of the document.",
        "fullDocument": "The projected document of an insert, update or replace; absent where it is not known. "
        "Whatever carries it is an upsert.",
        "updateDescription": "The update's own delta, projected; absent where that would be ambiguous.",
        "membership": "Whether the document came into the topic, stayed, or left it: remove it then. Absent where the "
        "service cannot tell.",
        "truncated": "True where the event was too large: it lost `fullDocument` and `updateDescription`.",
    },
    "EventNamespace": {"coll": "The collection."},
    "Checkpoint": {"tokens": "Topic id to resume token."},
    "Snapshot": {"topic": _TOPIC_ID, "page": "From 0.", "documents": "Projected documents of the topic."},
    "SnapshotEnd": {"topic": _TOPIC_ID, "token": _POSITION, "clusterTime": _CLUSTER_TIME},
    "Live": {"topic": _TOPIC_ID},
    "Resync": {
        "topic": _TOPIC_ID,
        "reason": "Why: `token_expired` (older than the oplog), `topic_changed` (filter, fields, operations or "
        "rights), `source_changed` (another deployment or scope), `history_lost` (upstream, while you were connected), "
        "`images_lost`, `event_unavailable` (could not be read), `overflow` (you read too slowly), "
        "`replay_too_large`.",
        "clusterTime": "Fetch the state at this time or later.",
        "retryAfterMs": "Wait so long before fetching; it grows where a topic resyncs again and again.",
        "token": "Where the events that follow start. Keep it only together with the new state; absent where a "
        "snapshot follows.",
    },
    "Unsubscribed": {
        "topic": _TOPIC_ID,
        "code": "`requested` by the client, `forbidden` by new claims, `topic_changed` by other rights or images, "
        "`snapshot_too_large`.",
        "resubscribe": "Whether to subscribe again, with the token.",
    },
    "Heartbeat": {
        "stalled": "Topic ids whose upstream does not answer.",
        "lagMs": "How far the service is behind MongoDB.",
    },
    "Goaway": {"reconnectAfterMs": "When to reconnect."},
    "Error": {
        "code": "Of the registry.",
        "message": "For people: names the field and the rule.",
        "retryable": "Whether the same can succeed later, unchanged.",
        "id": "That of the frame that was refused, where it had one.",
        "topic": "The topic that it is about, where there is one.",
        "retryAfterMs": "When to try again.",
    },
    "Close": {
        "code": "A close code; its range is told by `action`.",
        "action": "What to do: do not come back, get new credentials, reconnect with backoff, or wait first.",
        "reason": "The code of the registry, or JSON with `retryAfterMs`.",
    },
    "TimestampParts": {"t": "Seconds.", "i": "Ordinal."},
    "ExtendedTimestamp": {"$timestamp": "Its two parts."},
    "StreamRequest": {
        "topics": "What to see; `subscribed.id` is the index in this list.",
        "resumeAfter": "An `id:` of this or another stream, for all topics that it knows.",
        "startAtOperationTime": "For the topics that no token knows.",
        "snapshot": "For all topics, as in `Subscribe`.",
    },
    "Explained": {
        "topic": _TOPIC_ID,
        "canonical": "What the topic is.",
        "index": "What finding its changes costs.",
        "fidelity": "What its events can promise.",
        "snapshot": "Whether it can have one.",
    },
    "CanonicalTopic": {
        "collection": "The collection.",
        "filter": "The client's filter in canonical form, as relaxed Extended JSON.",
        "policyFilter": "Whether the policy AND-s a filter of its own.",
        "operations": "What is sent.",
        "fields": "The client's projection in canonical form.",
        "membership": "Whether leaving is told exactly.",
    },
    "TopicIndex": {
        "lookups": "The paths of each hash look-up that finds the topic, of those that the client named.",
        "residual": "Whether what a look-up finds is asked further conditions.",
        "scanned": "Whether there are changes for which the topic is asked whatever is in the document.",
        "cost": "Conditions that a change may cost in vain.",
    },
    "SnapshotAnswer": {
        "available": "Whether `snapshot` can be asked for.",
        "code": "If not, why.",
        "message": "If not, why, for people.",
    },
    "Refused": {"refused": "Why."},
    "RefusedTopic": {"code": "Of the registry.", "message": "For people: names the field and the rule."},
    "IssuedTicket": {
        "ticket": "Opaque, URL-safe.",
        "expiresInMs": "How long it opens feeds; what it opened lasts as long as the JWT.",
    },
    "Problem": {
        "type": "`urn:feedsvc:error:` and the code.",
        "title": "What the code means.",
        "status": "The HTTP status.",
        "code": "Of the registry.",
        "detail": "What was wrong here: names the field and the rule.",
        "retryable": "Whether the same can succeed later, unchanged.",
    },
    "Health": {
        "status": "In a word; `degraded` is ready while MongoDB does not answer.",
        "detail": "For people; empty where all is well.",
    },
    "Status": {
        "version": "That of the service.",
        "startedAtMs": "When the process began: another one has another.",
        "uptimeSeconds": "Since the process started.",
        "state": "Whether connections are welcome.",
        "sourceError": "The kind of failure of the last question to MongoDB, null where it was answered.",
        "connections": "Clients that are authenticated, WebSockets and streams.",
        "waitingSockets": "Sockets without credentials.",
        "subscriptions": "Of all connections.",
        "topics": "Distinct ones.",
        "snapshotsRunning": "Snapshots that are being read.",
        "snapshotsWaiting": "Snapshots that wait for a turn.",
        "maxTails": "How many live tails there may be.",
        "tails": "The live tails.",
        "resyncs": "By reason, those that were sent.",
        "tailErrors": "By kind, failures of tails.",
        "closes": "By WebSocket close code, those that occurred.",
        "catchUpsOpened": "Change streams that were opened for clients that had been away or were slow.",
        "oplog": "How long a client may be away.",
        "oldestPosition": "Null where no client holds a position.",
        "recentErrors": "The last ones first, at most 20.",
        "tenantCount": "Tenants with connections.",
        "tenants": "Those with the most connections, at most 20.",
    },
    "TailStatus": {
        "scope": "What it watches.",
        "opened": "Whether MongoDB has answered it.",
        "lagMs": "How far it is behind MongoDB.",
        "stalled": "Whether clients are told that its upstream does not answer.",
        "error": "The kind of its last failure, null once it reads again.",
        "subscriptions": "That hang on it.",
        "catchUps": "Catch-up tails beside it.",
        "waiting": "Resumes that wait for a catch-up tail.",
        "idleSeconds": "How long it has had no subscription, null while it has one.",
    },
    "ScopeStatus": {
        "level": "How wide it is.",
        "database": "Empty where the level does not need it.",
        "collection": "Empty where the level does not need it.",
    },
    "TenantStatus": {
        "tenant": "Its name.",
        "connections": "Its connections.",
        "subscriptions": "Its subscriptions.",
        "topics": "Its distinct topics.",
    },
    "OplogStatus": {
        "windowSeconds": "How far the oplog reaches back.",
        "windowSecondsWithImages": "The same for exact topics, whose images MongoDB may drop earlier.",
    },
    "OldestPosition": {
        "ageSeconds": "How far it is behind the newest entry.",
        "windowSeconds": "How far the oplog, and for an exact topic its images, reach back.",
        "usedRatio": "The quotient: a reconnect resumes below 1, and ends in a resync from there on.",
    },
    "RecentError": {
        "atMs": "When, in epoch milliseconds.",
        "event": "The log's stable name.",
        "kind": "That of the failure, null where there is none.",
        "scope": "The tail that it is about, null where it is about none.",
        "text": "What the service itself says about it; empty where it might quote somebody.",
    },
    "StatusEvent": {
        "event": "`status` or `close`.",
        "data": "The answer of a plain GET, or a `Close`, as JSON.",
        "id": "Not sent.",
        "retry": "How long a reader waits before it reconnects, in milliseconds.",
    },
    "ServerSentEvent": {
        "event": "The `type` of the data.",
        "data": "One frame as JSON.",
        "id": "A resume token of the whole stream, which covers all its topics.",
        "retry": "How long an EventSource waits before it reconnects, in milliseconds.",
    },
}


def describe(schemas: dict[str, Any]) -> None:
    """Put the words into the schemas."""
    for name, text in SCHEMAS.items():
        schemas[name]["description"] = text
    for name, fields in FIELDS.items():
        properties = schemas[name]["properties"]
        for field, text in fields.items():
            properties[field] = {**properties[field], "description": text}
