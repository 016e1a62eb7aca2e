"""Every metric that the code may use, declared once; `docs/metrics.md` is generated from it.

Rules for editing: the code uses a metric by `name`; a test holds the names in the source and this table together,
both ways, and another one those in `ops/`. Nothing is labelled by topic or connection.
"""

from __future__ import annotations

from feedsvc.adapters.telemetry.metric_kinds import (
    CLOSE_CODES,
    CODES,
    RESYNC_REASONS,
    SCOPE_LEVELS,
    SOURCE_ERRORS,
    Metric,
    by_tenant,
    counter,
    gauge,
    per_step,
)

_NOTHING = "Nothing by itself."
_QUOTA = "Where one tenant nears its bound: raise it in the policy, or find out what that tenant does."

_FROM_MONGODB = (
    gauge(
        "source_up",
        "1 where the last question to MongoDB was answered, 0 where it was not.",
        "Where 0: look at MongoDB and the network to it. Clients stay connected and resume when it is back.",
    ),
    counter(
        "changes_read",
        "Changes read from MongoDB, by tail scope.",
        "Compare with the writes of the deployment: where it stays behind, look at `feedsvc_tail_lag_seconds`.",
        level=SCOPE_LEVELS,
    ),
    gauge(
        "tails", "Open live tails.", "Near `feedsvc_tails_limit`: clients get `source_unavailable`; raise it."
    ),
    gauge("tails_limit", "The most live tails: FEEDSVC_MAX_TAILS.", _NOTHING),
    counter(
        "tail_errors",
        "Failures of live tails, by kind; each is followed by a reopening.",
        "`SourceRefused`: privileges or configuration of MongoDB. `SourceUnavailable` now and then is an election.",
        kind=SOURCE_ERRORS,
    ),
    counter(
        "live_tails_lost",
        "Live tails that lost their position; their subscriptions got resync.",
        "The oplog was shorter than an outage, or MongoDB was restored: make the oplog larger.",
    ),
    gauge(
        "tails_stalled",
        "Live tails in use without an answer from MongoDB for longer than FEEDSVC_STALL_AFTER.",
        "See `feedsvc_source_up`. Where MongoDB answers, readiness fails and Kubernetes sends clients elsewhere.",
    ),
    gauge(
        "tail_lag_seconds",
        "How far the slowest live tail is behind MongoDB.",
        "Where it grows: more is written than one process reads or writes out. See `feedsvc_pump_delay_seconds`.",
    ),
    gauge(
        "oplog_window_seconds",
        "Time between the oplog's first and last entry; NaN where it is not known.",
        "How long a client may be away. Too short: make the oplog larger (`replSetResizeOplog`).",
    ),
    gauge(
        "oldest_position_age_seconds",
        "How far the oldest position that a connected client holds is behind the newest oplog entry.",
        "In health at most about FEEDSVC_CHECKPOINT_INTERVAL. Where it grows: a tail is dead, or catch-ups wait.",
    ),
    gauge(
        "oldest_position_used_ratio",
        "The same as a share of how far the oplog, or pre-images, reach back; 1 is lost. NaN where not known.",
        "Above 0.5: act before 1, from where on a reconnect ends in resync. Make the oplog larger, see the age.",
    ),
    gauge(
        "catch_up_tails", "Open catch-up tails.", "At its bound for long: see `feedsvc_catch_ups_waiting`."
    ),
    gauge(
        "catch_ups_waiting",
        "Subscriptions that wait for a catch-up tail.",
        "After a restart it falls within seconds. Where it does not: MongoDB is slow to serve old positions.",
    ),
    counter(
        "catch_ups_opened",
        "Change streams opened for positions that live tails no longer have, by tail scope.",
        "Few for each reconnect storm. Many all the time: clients are too slow, or FEEDSVC_LOG_BYTES too small.",
        level=SCOPE_LEVELS,
    ),
    counter(
        "catch_up_tails_lost",
        "Catch-up tails that could not be served, by reason.",
        "`token_expired`: clients were away for longer than the oplog reaches back.",
        reason=RESYNC_REASONS,
    ),
    per_step(
        "match_seconds",
        "Time spent on finding the topics of a batch of changes and making their frames, by kind of tail.",
        "Where it grows: filters that no index serves. See docs/filters.md.",
    ),
    per_step(
        "pump_seconds",
        "Time spent on writing a batch of changes to the connections, by kind of tail.",
        "Grows with connections per topic. Its rate is the share of one core: near 1, add instances.",
    ),
    per_step(
        "pump_delay_seconds",
        "From the arrival of a batch of changes until all that could take it were written to, by kind of tail.",
        "Above 1 s the process is too busy: add instances. What MongoDB adds is `feedsvc_tail_lag_seconds`.",
    ),
    counter(
        "events_failed",
        "Changes that could not be made into an event; their topics got resync.",
        "A mistake of the service: see `event.failed` in the log.",
    ),
)

_TO_CLIENTS = (
    gauge(
        "connections", "Authenticated connections.", "Each needs a file descriptor: see `process_max_fds`."
    ),
    counter(
        "connections_opened",
        "Connections that were authenticated.",
        "A jump without a deployment is a reconnect storm: see `feedsvc_closes_total`.",
    ),
    gauge(
        "waiting_sockets",
        "Sockets that have not shown credentials yet.",
        "Near `feedsvc_waiting_sockets_limit`: somebody opens sockets and says nothing.",
    ),
    gauge("waiting_sockets_limit", "The most sockets without credentials.", _NOTHING),
    gauge("status_streams", "Open event streams of /v1/status; they are no connections.", _NOTHING),
    gauge("subscriptions", "Subscriptions of all connections.", _NOTHING),
    gauge(
        "topics",
        "Distinct topics with a subscription.",
        "Memory and matching grow with it, not with clients.",
    ),
    gauge(
        "fullest_tenant_connections_ratio",
        "The largest share of its connections that a tenant holds.",
        _QUOTA,
    ),
    gauge("fullest_tenant_topics_ratio", "The largest share of its topics that a tenant holds.", _QUOTA),
    by_tenant(
        "tenant_connections",
        "Connections of the tenants with the most; the rest is `(others)`.",
        "FEEDSVC_METRIC_TENANTS names that many. Nobody is named by default: /metrics asks for no credentials.",
    ),
    by_tenant("tenant_subscriptions", "Subscriptions of the same tenants.", _NOTHING),
    by_tenant("tenant_topics", "Distinct topics of the same tenants.", _NOTHING),
    counter(
        "auth_refused",
        "Refused credentials, by error code.",
        "`auth_expired`: clients do not refresh. `auth_invalid`: keys, issuer or audience do not fit.",
        code=CODES,
    ),
    counter(
        "jwks_fetches",
        "Fetches of the issuer's keys, by outcome.",
        "`failed`: the key server. Known keys go on for FEEDSVC_JWKS_STALE; then nobody can connect.",
        outcome=("changed", "unchanged", "failed"),
    ),
    counter(
        "errors_sent", "Error frames sent, by error code.", "See docs/errors.md for each code.", code=CODES
    ),
    counter(
        "resyncs",
        "Resync frames sent, by reason.",
        "`token_expired`, `history_lost`: the oplog is too short. `overflow`: clients too slow. See the protocol.",
        reason=RESYNC_REASONS,
    ),
    counter(
        "closes",
        "Ended connections, by WebSocket close code of whichever side was first.",
        "4201: clients that do not read. 1006: the network or a proxy. Others: docs/errors.md.",
        code=CLOSE_CODES,
    ),
    counter("frames_sent", "Frames handed to transports.", _NOTHING),
    counter("bytes_sent", "Payload bytes of frames handed to transports.", _NOTHING, "sent_bytes"),
    counter(
        "snapshots",
        "Attempts at a snapshot, by what became of them.",
        "`failed`: MongoDB. `too_large`: the topic needs a narrower filter. `broken`: a mistake of the service.",
        outcome=("sent", "abandoned", "failed", "too_large", "broken"),
    ),
    gauge("snapshots_running", "Snapshots that are being read.", _NOTHING),
    gauge(
        "snapshots_waiting",
        "Snapshots that are owed and wait for their turn, or for MongoDB.",
        "After many resyncs it falls within minutes. Where it does not: finds are slow, an index may be missing.",
    ),
    counter(
        "upgrades_refused",
        "Upgrades answered with an HTTP error, by error code.",
        "`forbidden`: an origin or a tenant. `rate_limited`, `tenant_quota`: bounds of the tenant.",
        code=CODES,
    ),
    counter(
        "requests_refused",
        "HTTP requests answered with a problem, but for upgrades and explains, by error code.",
        "`internal` is a mistake of the service: see `request.failed` in the log.",
        code=CODES,
    ),
    counter(
        "explains",
        "Questions to /v1/topics/explain, by answer.",
        _NOTHING,
        outcome=("explained", "refused", "problem"),
    ),
    counter("tickets_issued", "Tickets given for a JWT.", _NOTHING),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in (*_FROM_MONGODB, *_TO_CLIENTS)}
