"""Every bound of the service with its default, unit and reason: the entries of the table of limits.

To add one: an entry here, a field in `core.limits.Limits` at the same place, then paste the regenerated table into
`docs/configuration.md` (`limits_table()`).

A limit with an `environment_variable` is the operator's to change, one with a `policy_key` is set in the
policy file under `limits`, and the rest is fixed: part of the protocol, or of no use to turn.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Unit = Literal["seconds", "bytes", "characters", "count", "levels", "percent"]

_KIB = 1024
_MIB = 1024 * _KIB
_GIB = 1024 * _MIB


class Limit(msgspec.Struct, frozen=True):
    """One bound. `name` is the field of `Limits`; `minimum` and `maximum` (inclusive) bind what is configured."""

    name: str
    default: int | float
    unit: Unit
    reason: str
    environment_variable: str | None = None
    policy_key: str | None = None
    minimum: int | float = 1
    maximum: int | float = 2**53 - 1


def _interval(name: str, default: float, reason: str, variable: str, minimum: float = 0.05) -> Limit:
    return Limit(name, default, "seconds", reason, f"FEEDSVC_{variable}", minimum=minimum, maximum=7 * 86400)


def _bound(name: str, default: int, unit: Unit, reason: str, variable: str) -> Limit:
    return Limit(name, default, unit, reason, f"FEEDSVC_{variable}")


def _per_policy(name: str, default: int, reason: str, key: str) -> Limit:
    return Limit(name, default, "count", reason, policy_key=key)


LIMIT_TABLE: tuple[Limit, ...] = (
    _interval(
        "checkpoint_interval_s",
        15,
        "The longest a client's position stays behind on a quiet topic.",
        "CHECKPOINT_INTERVAL",
    ),
    _interval(
        "heartbeat_interval_s",
        20,
        "Below the 30 to 60 s after which proxies cut idle connections.",
        "HEARTBEAT_INTERVAL",
    ),
    _interval(
        "stall_after_s",
        5,
        "A healthy stream answers each second; five silent ones are told to clients.",
        "STALL_AFTER",
    ),
    _interval(
        "slow_after_s",
        30,
        "How long a client may take nothing while frames are owed, before 4201.",
        "SLOW_AFTER",
    ),
    _interval(
        "drain_s",
        30,
        "Spreads the reconnects of a shutdown; a termination grace period must be longer (docs/rolling-updates.md).",
        "DRAIN",
        minimum=0,
    ),
    _interval(
        "announce_s",
        0,
        "How long a shutdown still accepts, with readiness off, until proxies have noticed; then comes the drain. "
        "0 where something else waits: a `preStop`.",
        "ANNOUNCE",
        minimum=0,
    ),
    _interval(
        "max_age_s",
        3600,
        "Connections rebalance over instances, and no state lives longer than an hour.",
        "MAX_AGE",
        minimum=1,
    ),
    _interval(
        "peer_timeout_s",
        60,
        "Three missed heartbeats: a peer that is gone without a close is let go.",
        "PEER_TIMEOUT",
    ),
    _bound(
        "max_tails",
        64,
        "count",
        "Each tail holds a pooled MongoDB connection and costs the server an oplog scan.",
        "MAX_TAILS",
    ),
    Limit(
        "tail_share",
        50,
        "percent",
        "Of `max_tails`, what one tenant may take for collections that only `*` names: it could invent names "
        "without end.",
    ),
    _bound(
        "log_bytes",
        64 * _MIB,
        "bytes",
        "All topic logs of one tail together; the oldest frame is dropped first "
        "and the oplog serves it instead.",
        "LOG_BYTES",
    ),
    _bound(
        "max_event_bytes",
        _MIB,
        "bytes",
        "The usual message limit of WebSocket clients; a larger event loses its document.",
        "MAX_EVENT_BYTES",
    ),
    _bound(
        "max_replay_bytes",
        _GIB,
        "bytes",
        "What one resume may read from the oplog; beyond it fetching the state is cheaper.",
        "MAX_REPLAY_BYTES",
    ),
    _bound(
        "max_snapshot_bytes",
        _GIB,
        "bytes",
        "What one snapshot may send; a client that holds more of a topic in memory needs a narrower one.",
        "MAX_SNAPSHOT_BYTES",
    ),
    _bound(
        "max_snapshot_documents",
        10_000_000,
        "count",
        "What one snapshot may read, sent or not: matching them takes minutes of this process.",
        "MAX_SNAPSHOT_DOCUMENTS",
    ),
    Limit(
        "jwt_leeway_s",
        30,
        "seconds",
        "For `nbf` and `iat`: clocks of issuers differ by seconds. `exp` has none.",
        "FEEDSVC_JWT_LEEWAY",
        minimum=0,
        maximum=300,
    ),
    _per_policy(
        "connections_per_tenant",
        20_000,
        "One tenant cannot take an instance's memory from the others.",
        "connectionsPerTenant",
    ),
    _per_policy(
        "subscriptions_per_connection",
        128,
        "A page needs tens; more is a client that forgets to unsubscribe.",
        "subscriptionsPerConnection",
    ),
    _per_policy(
        "topics_per_tenant",
        20_000,
        "Each distinct topic costs a match per change and a log.",
        "topicsPerTenant",
    ),
    Limit(
        "auth_timeout_s",
        10,
        "seconds",
        "Absolute, so that a socket without credentials cannot be kept alive.",
    ),
    Limit(
        "preauth_frame_bytes",
        4 * _KIB,
        "bytes",
        "Nothing but `auth` may come before `welcome`, and it is short.",
    ),
    Limit(
        "waiting_sockets",
        1000,
        "count",
        "Sockets without credentials, in all; they have no tenant to charge.",
    ),
    Limit("pending_frames", 256, "count", "Frames behind an unanswered `auth` or `subscribe`."),
    Limit(
        "pending_bytes", 256 * _KIB, "bytes", "Their size together: the subscribes of a full connection fit."
    ),
    Limit("jwt_bytes", 8 * _KIB, "bytes", "HTTP servers bound headers alike; checked before any parsing."),
    Limit(
        "jwks_refresh_s",
        300,
        "seconds",
        "A key that the issuer took back is refused within it, at a request every few minutes.",
        "FEEDSVC_JWKS_REFRESH",
        maximum=86_400,
    ),
    Limit(
        "jwks_stale_s",
        86_400,
        "seconds",
        "How long the old keys serve while the key server is out: an outage lasts hours, a key much longer.",
        "FEEDSVC_JWKS_STALE",
        maximum=7 * 86_400,
    ),
    Limit(
        "jwks_unknown_kid_cooldown_s",
        10,
        "seconds",
        "Anybody can name an unknown key; it costs the key server at most one request in this time.",
    ),
    Limit(
        "jwks_timeout_s", 5, "seconds", "Half of what a socket has for its credentials; answers take tenths."
    ),
    Limit("jwks_bytes", 256 * _KIB, "bytes", "A key with its certificates has some KiB."),
    Limit("jwks_keys", 100, "count", "Issuers publish two or three; hundreds are another document."),
    Limit(
        "ticket_lifetime_s",
        30,
        "seconds",
        "A ticket stands in a URL: long enough to connect, short enough to leak.",
    ),
    Limit(
        "ticket_chars",
        6 * _KIB,
        "characters",
        "A request line has 8 KiB with usual proxies; the rest is for path and topics.",
    ),
    Limit(
        "tickets_per_minute",
        40_000,
        "count",
        "Of one tenant: twice as many as it may hold connections, each of which may need one after a restart.",
    ),
    Limit(
        "upgrades_per_minute",
        40_000,
        "count",
        "Connections that one tenant opens: all that it may hold at once, and all of them again.",
    ),
    Limit("frame_bytes", 64 * _KIB, "bytes", "A client frame after `welcome`; a filter has at most 4 KiB."),
    Limit(
        "errors_per_minute",
        100,
        "count",
        "A client that is refused this often is broken, it is closed with 4009.",
    ),
    Limit(
        "requests_spare",
        50,
        "count",
        "`subscribe` and `unsubscribe` frames at once, beyond one for each subscription that a connection may hold.",
    ),
    Limit(
        "requests_per_second",
        20,
        "count",
        "Such frames from then on: nobody changes views faster. Ten `ping`s count as one of them.",
    ),
    Limit(
        "refused_per_minute",
        10_000,
        "count",
        "Frames that were too many and told so (`rate_limited`, which no other bound counts), before 4301.",
    ),
    Limit(
        "refreshes_per_minute",
        10,
        "count",
        "JWTs live for minutes; each refresh applies the policy anew to every subscription of the connection.",
    ),
    Limit(
        "explains_per_minute",
        60,
        "count",
        "Of one tenant. People ask, or a test does; an answer costs a question to MongoDB at the most.",
    ),
    Limit(
        "filter_bytes",
        4 * _KIB,
        "bytes",
        "Bounds parsing, and the work per change; for `fields` too, as sent.",
    ),
    Limit("filter_depth", 8, "levels", "Bounds recursion; hand-written filters stay below 4."),
    Limit("filter_in_values", 200, "count", "As many values as one index lookup of the matcher should hold."),
    Limit(
        "conditions_per_change",
        40_000,
        "count",
        "Of one tenant's topics on a collection, those that no hash look-up answers: some 10 ms of each change.",
    ),
    Limit(
        "subscription_id_chars", 64, "characters", "Room for a UUID with a prefix; it is echoed in frames."
    ),
    Limit(
        "resume_token_chars",
        1024,
        "characters",
        "Fits into URLs and columns; longer ones take the digest form.",
    ),
    Limit("sse_topics", 8, "count", "One SSE stream's topics share the resume token of its `id:` line."),
    Limit(
        "sse_resume_token_chars",
        4096,
        "characters",
        "Proxies bound `Last-Event-ID` as any header, often at 8 KiB.",
    ),
    Limit(
        "status_streams",
        32,
        "count",
        "Open streams of `/v1/status`: operators are few, and pages stay open.",
    ),
    Limit(
        "status_interval_s",
        1,
        "seconds",
        "Between two events of such a stream: tails are asked as often, and nobody reads faster.",
    ),
    Limit(
        "ring_records",
        10_000,
        "count",
        "Upstream records per tail whose place is known without MongoDB; about 0.5 KB each.",
    ),
    Limit("catch_up_tails", 4, "count", "A reconnect storm costs MongoDB this many more cursors at a time."),
    Limit(
        "snapshots",
        16,
        "count",
        "Read at a time; each holds a cursor of MongoDB, one of its replies and one page.",
    ),
    Limit("snapshots_per_tenant", 8, "count", "Slow clients of one tenant leave half of them to the others."),
    Limit(
        "snapshot_page_bytes",
        256 * _KIB,
        "bytes",
        "One page, but for a single larger document: some hundred documents, and what a slow client waits behind.",
    ),
    Limit("catch_up_window_s", 0.05, "seconds", "Positions that ask within it share a catch-up tail."),
    Limit(
        "catch_up_gather_s",
        4,
        "seconds",
        "In a storm of reconnects a catch-up tail waits for more of them.",
    ),
    Limit(
        "step_aside_after_s",
        5,
        "seconds",
        "How long others on a catch-up tail wait, in all, for those who hold it up.",
    ),
    Limit(
        "catch_up_turn_s",
        30,
        "seconds",
        "How long a catch-up tail that is held up keeps its slot while others wait for one.",
    ),
    Limit(
        "tail_linger_s",
        30,
        "seconds",
        "A tail without subscriptions stays open, so that a reload finds it warm.",
    ),
    Limit(
        "high_water_bytes",
        64 * _KIB,
        "bytes",
        "Per socket: one write, and what may wait behind it where the way is not direct (ASGI, SSE). The cursor waits "
        "for the rest, and the log is shared.",
    ),
    Limit(
        "unsent_bytes",
        256 * _KIB,
        "bytes",
        "Per socket, in the kernel: a slow line must not look like a client that takes nothing.",
    ),
    Limit(
        "metric_tenants",
        0,
        "count",
        "Tenants that `/metrics` names, those with the most connections; the rest is one. None by default: the page "
        "asks nobody for credentials.",
        "FEEDSVC_METRIC_TENANTS",
        minimum=0,
        maximum=1_000,
    ),
    Limit("policy_file_bytes", 256 * _KIB, "bytes", "A policy is written by hand; more is the wrong file."),
)
