"""The limits in force, and their table as the documentation shows it.

`LIMIT_TABLE` is the source. `Limits` is the same table as a frozen value that the code passes around; its
defaults are read from the table, so a number exists once. `docs/configuration.md` contains `limits_table()`
verbatim and a test compares the two.
"""

from __future__ import annotations

import msgspec

from feedsvc.core.limit_table import LIMIT_TABLE, Limit

LIMITS: dict[str, Limit] = {limit.name: limit for limit in LIMIT_TABLE}


def _whole(name: str) -> int:
    return int(LIMITS[name].default)


def _seconds(name: str) -> float:
    return float(LIMITS[name].default)


class Limits(msgspec.Struct, frozen=True):
    """The limits in force. Fields are those of the table, in its order; see there for units and reasons."""

    checkpoint_interval_s: float = _seconds("checkpoint_interval_s")
    heartbeat_interval_s: float = _seconds("heartbeat_interval_s")
    stall_after_s: float = _seconds("stall_after_s")
    slow_after_s: float = _seconds("slow_after_s")
    drain_s: float = _seconds("drain_s")
    announce_s: float = _seconds("announce_s")
    max_age_s: float = _seconds("max_age_s")
    peer_timeout_s: float = _seconds("peer_timeout_s")
    max_tails: int = _whole("max_tails")
    tail_share: int = _whole("tail_share")
    log_bytes: int = _whole("log_bytes")
    max_event_bytes: int = _whole("max_event_bytes")
    max_replay_bytes: int = _whole("max_replay_bytes")
    max_snapshot_bytes: int = _whole("max_snapshot_bytes")
    max_snapshot_documents: int = _whole("max_snapshot_documents")
    jwt_leeway_s: float = _seconds("jwt_leeway_s")
    connections_per_tenant: int = _whole("connections_per_tenant")
    subscriptions_per_connection: int = _whole("subscriptions_per_connection")
    topics_per_tenant: int = _whole("topics_per_tenant")
    auth_timeout_s: float = _seconds("auth_timeout_s")
    preauth_frame_bytes: int = _whole("preauth_frame_bytes")
    waiting_sockets: int = _whole("waiting_sockets")
    pending_frames: int = _whole("pending_frames")
    pending_bytes: int = _whole("pending_bytes")
    jwt_bytes: int = _whole("jwt_bytes")
    jwks_refresh_s: float = _seconds("jwks_refresh_s")
    jwks_stale_s: float = _seconds("jwks_stale_s")
    jwks_unknown_kid_cooldown_s: float = _seconds("jwks_unknown_kid_cooldown_s")
    jwks_timeout_s: float = _seconds("jwks_timeout_s")
    jwks_bytes: int = _whole("jwks_bytes")
    jwks_keys: int = _whole("jwks_keys")
    ticket_lifetime_s: float = _seconds("ticket_lifetime_s")
    ticket_chars: int = _whole("ticket_chars")
    tickets_per_minute: int = _whole("tickets_per_minute")
    upgrades_per_minute: int = _whole("upgrades_per_minute")
    frame_bytes: int = _whole("frame_bytes")
    errors_per_minute: int = _whole("errors_per_minute")
    requests_spare: int = _whole("requests_spare")
    requests_per_second: int = _whole("requests_per_second")
    refused_per_minute: int = _whole("refused_per_minute")
    refreshes_per_minute: int = _whole("refreshes_per_minute")
    explains_per_minute: int = _whole("explains_per_minute")
    filter_bytes: int = _whole("filter_bytes")
    filter_depth: int = _whole("filter_depth")
    filter_in_values: int = _whole("filter_in_values")
    conditions_per_change: int = _whole("conditions_per_change")
    subscription_id_chars: int = _whole("subscription_id_chars")
    resume_token_chars: int = _whole("resume_token_chars")
    sse_topics: int = _whole("sse_topics")
    sse_resume_token_chars: int = _whole("sse_resume_token_chars")
    status_streams: int = _whole("status_streams")
    status_interval_s: float = _seconds("status_interval_s")
    ring_records: int = _whole("ring_records")
    catch_up_tails: int = _whole("catch_up_tails")
    snapshots: int = _whole("snapshots")
    snapshots_per_tenant: int = _whole("snapshots_per_tenant")
    snapshot_page_bytes: int = _whole("snapshot_page_bytes")
    catch_up_window_s: float = _seconds("catch_up_window_s")
    catch_up_gather_s: float = _seconds("catch_up_gather_s")
    step_aside_after_s: float = _seconds("step_aside_after_s")
    catch_up_turn_s: float = _seconds("catch_up_turn_s")
    tail_linger_s: float = _seconds("tail_linger_s")
    high_water_bytes: int = _whole("high_water_bytes")
    unsent_bytes: int = _whole("unsent_bytes")
    metric_tenants: int = _whole("metric_tenants")
    policy_file_bytes: int = _whole("policy_file_bytes")


def limits_table() -> str:
    """The table as Markdown, as `docs/configuration.md` shows it. Ends without a newline."""
    rows = ["| limit | set by | default | unit | reason |", "|---|---|---|---|---|"]
    for limit in LIMIT_TABLE:
        if limit.environment_variable is not None:
            set_by = f"`{limit.environment_variable}`"
        elif limit.policy_key is not None:
            set_by = f"policy file, `limits.{limit.policy_key}`"
        else:
            set_by = "fixed"
        rows.append(f"| `{limit.name}` | {set_by} | {limit.default} | {limit.unit} | {limit.reason} |")
    return "\n".join(rows)
