"""The answer of `GET /v1/status`: how this process is, for operators (protocol.md section 10).

Names and counts, and nothing that anybody wrote into a document, a filter or a JWT. Of a failure it says the kind, and
what the service itself words about it: the rest is in the log. Counts since the start are those of `/metrics`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from feedsvc.core.changes import ScopeLevel

MOST_TENANTS = 20
MOST_ERRORS = 20


class ScopeStatus(msgspec.Struct, frozen=True):
    """What a tail watches; empty names where the level does not need them."""

    level: ScopeLevel
    database: str
    collection: str


class TailStatus(msgspec.Struct, rename="camel", frozen=True):
    """One live tail with the catch-up tails beside it.

    `lagMs`: how far it is behind MongoDB. `stalled`: clients are told that its upstream does not answer. `error`: the
    kind of its last failure, null once it reads again. `idleSeconds`: how long it has had no subscription, null while
    it has one.
    """

    scope: ScopeStatus
    opened: bool
    lag_ms: int
    stalled: bool
    error: str | None
    subscriptions: int
    catch_ups: int
    waiting: int
    idle_seconds: int | None


class TenantStatus(msgspec.Struct, frozen=True):
    """`topics` are distinct."""

    tenant: str
    connections: int
    subscriptions: int
    topics: int


class OplogStatus(msgspec.Struct, rename="camel", frozen=True):
    """How long a client may be away, null where the oplog may not be read; with images for exact topics."""

    window_seconds: int | None
    window_seconds_with_images: int | None


class OldestPosition(msgspec.Struct, rename="camel", frozen=True):
    """The position that is nearest to the end of the oplog, of those that connected clients hold.

    `ageSeconds`: how far it is behind the newest entry. `windowSeconds`: how far the oplog, and for an exact topic its
    images, reach back. `usedRatio` is their quotient: a reconnect resumes below 1, and ends in a resync from there on.
    Both are null where the oplog may not be read.
    """

    age_seconds: int
    window_seconds: int | None
    used_ratio: float | None


class RecentError(msgspec.Struct, rename="camel", frozen=True):
    """A warning or an error as it was logged. `event`: the log's stable name. `kind`: that of the failure, null where
    there is none. `text`: what the service itself says about it; empty where it might quote somebody."""

    at_ms: int
    event: str
    kind: str | None
    scope: ScopeStatus | None
    text: str


class Status(msgspec.Struct, rename="camel", frozen=True):
    """`startedAtMs` tells instances apart: behind a load balancer the next answer may come from another.

    `waiting`: sockets without credentials, resumes that wait for a catch-up tail, snapshots that wait for a turn.

    `tenants`: those with the most connections, at most 20 of `tenantCount`. `sourceError`: the kind of failure of the
    last question to MongoDB, null where it was answered. `closes`: by WebSocket close code, those that
    occurred. `catchUpsOpened`: change streams that were opened for clients that had been away or were slow.
    `oldestPosition`: null where no client holds a position. `recentErrors`: the last ones first, at most 20.
    """

    version: str
    started_at_ms: int
    uptime_seconds: int
    state: Literal["starting", "serving", "draining"]
    source_error: str | None
    connections: int
    waiting_sockets: int
    subscriptions: int
    topics: int
    snapshots_running: int
    snapshots_waiting: int
    max_tails: int
    tails: list[TailStatus]
    resyncs: dict[str, int]
    tail_errors: dict[str, int]
    closes: dict[str, int]
    catch_ups_opened: int
    oplog: OplogStatus
    oldest_position: OldestPosition | None
    recent_errors: list[RecentError]
    tenant_count: int
    tenants: list[TenantStatus]


def kind_of(error: str | None) -> str | None:
    """The kind of a failure that is kept as `Kind: message`."""
    return None if error is None else error.partition(":")[0]
