"""Every metric that the code may use, declared once.

Rules for editing: the code uses a metric by `name`; a test holds the names in the source and this table together,
both ways. A label takes its values from a bounded set that is known here, so that no client can make series: codes
come from the error registry, reasons from the protocol. Nothing is labelled by tenant, topic or connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import msgspec

from feedsvc.core.changes import ScopeLevel
from feedsvc.core.errors import REGISTRY
from feedsvc.core.messages import ResyncReason

Kind = Literal["counter", "gauge", "histogram"]

OTHER = "other"
"""Stands for every value outside an open set."""

CODES = tuple(REGISTRY)
RESYNC_REASONS: tuple[str, ...] = get_args(ResyncReason)
SCOPE_LEVELS: tuple[str, ...] = get_args(ScopeLevel)
_RFC_CLOSE_CODES = (1000, 1001, 1002, 1003, 1005, 1006, 1007, 1009, 1011, 1012)
"""RFC 6455 section 7.4.1 and what stands for no code at all; a peer may send any other."""
_OUR_CLOSE_CODES = sorted({entry.close_code for entry in REGISTRY.values() if entry.close_code is not None})
CLOSE_CODES = (*map(str, (*_RFC_CLOSE_CODES, *_OUR_CLOSE_CODES)), OTHER)
SOURCE_ERRORS = (
    "SourceUnavailable",
    "PositionLost",
    "EventUnavailable",
    "SourceRefused",
    "SourceError",
    OTHER,
)


class Metric(msgspec.Struct, frozen=True):
    """`name` is the code's. `labels`: label to its possible values; where `other` is one, all else counts as it.

    `exported` is the name on the page without the prefix `feedsvc_` and the suffix `_total`, where Prometheus' rules
    of naming ask for another order of words than the code.
    """

    name: str
    kind: Kind
    help: str
    labels: Mapping[str, tuple[str, ...]] = {}
    buckets: tuple[float, ...] = ()
    exported: str = ""

    @property
    def family(self) -> str:
        return f"feedsvc_{self.exported or self.name}"


def _counter(name: str, text: str, exported: str = "", **labels: tuple[str, ...]) -> Metric:
    return Metric(name, "counter", text, labels, exported=exported)


def _gauge(name: str, text: str) -> Metric:
    return Metric(name, "gauge", text)


_TABLE = (
    # From MongoDB
    _counter("changes_read", "Changes read from MongoDB, by tail scope.", level=SCOPE_LEVELS),
    _counter(
        "tail_errors", "Failures of live tails, by kind; each is followed by a reopening.", kind=SOURCE_ERRORS
    ),
    _counter("live_tails_lost", "Live tails that lost their position; their subscriptions got resync."),
    _counter(
        "catch_ups_opened",
        "Change streams opened for positions that live tails no longer have, by tail scope.",
        level=SCOPE_LEVELS,
    ),
    _counter(
        "catch_up_tails_lost", "Catch-up tails that could not be served, by reason.", reason=RESYNC_REASONS
    ),
    _gauge("tails", "Open live tails."),
    _gauge("catch_up_tails", "Open catch-up tails."),
    _gauge(
        "tails_stalled",
        "Live tails in use without an answer from MongoDB for longer than FEEDSVC_STALL_AFTER.",
    ),
    _gauge("tail_lag_seconds", "How far the slowest live tail is behind MongoDB."),
    _gauge(
        "oplog_window_seconds", "Time between the oplog's first and last entry; absent where it is not known."
    ),
    # To clients
    _gauge("connections", "Authenticated connections."),
    _gauge("waiting_sockets", "Sockets that have not shown credentials yet."),
    _gauge("status_streams", "Open event streams of /v1/status; they are no connections."),
    _gauge("subscriptions", "Subscriptions of all connections."),
    _gauge("topics", "Distinct topics with a subscription."),
    _counter("auth_refused", "Refused credentials, by error code.", code=CODES),
    _counter(
        "jwks_fetches",
        "Fetches of the issuer's keys, by outcome.",
        outcome=("changed", "unchanged", "failed"),
    ),
    _counter("errors_sent", "Error frames sent, by error code.", code=CODES),
    _counter(
        "explains",
        "Questions to /v1/topics/explain, by answer.",
        outcome=("explained", "refused", "problem"),
    ),
    _counter("events_failed", "Changes that could not be made into an event; their topics got resync."),
    _counter(
        "snapshots",
        "Attempts at a snapshot, by what became of them.",
        outcome=("sent", "abandoned", "failed", "too_large", "broken"),
    ),
    _gauge("snapshots_running", "Snapshots that are being read."),
    _gauge("snapshots_waiting", "Snapshots that are owed and wait for their turn, or for MongoDB."),
    _counter("resyncs", "Resync frames sent, by reason.", reason=RESYNC_REASONS),
    _counter(
        "closes", "Ended connections, by WebSocket close code of whichever side was first.", code=CLOSE_CODES
    ),
    _counter("upgrades_refused", "Upgrades answered with an HTTP error, by error code.", code=CODES),
    _counter(
        "requests_refused",
        "HTTP requests answered with a problem, but for upgrades and explains, by error code.",
        code=CODES,
    ),
    _counter("tickets_issued", "Tickets given for a JWT."),
    _counter("frames_sent", "Frames handed to transports."),
    _counter("bytes_sent", "Payload bytes of frames handed to transports.", "sent_bytes"),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _TABLE}
