"""Each limit and each error code is hit by tests: a limit that is added without one fails here.

`answer` is what a client, or the operator, gets beyond the limit: codes of the registry, close codes of WebSocket
(1009) and reasons of `resync` as they stand in the named tests, or, where nothing is refused, what is done instead.
"""

from __future__ import annotations

import re
from typing import NamedTuple, get_args

import pytest

from feedsvc.core.errors import REGISTRY
from feedsvc.core.limits import LIMITS
from feedsvc.core.messages import ResyncReason
from tests.support.node_ids import text_of


class Shown(NamedTuple):
    answer: str
    tests: tuple[str, ...]


def shown(answer: str, *tests: str) -> Shown:
    return Shown(answer, tests)


LIMIT_TESTS: dict[str, Shown] = {
    "checkpoint_interval_s": shown(
        "a `checkpoint` in time",
        "core/test_session.py::test_heartbeats_and_checkpoints_keep_their_intervals",
        "e2e/test_websocket.py::test_a_checkpoint_token_resumes_behind_what_was_written_to_other_topics",
    ),
    "heartbeat_interval_s": shown(
        "a `heartbeat` in time",
        "core/test_session.py::test_heartbeats_and_checkpoints_keep_their_intervals",
        "e2e/test_websocket.py::test_heartbeats_come_at_the_announced_interval",
    ),
    "stall_after_s": shown(
        "a `heartbeat` that names the topic in `stalled`",
        "runtime/test_client.py::test_heartbeats_tell_stalls_at_once",
        "e2e/test_websocket.py::test_a_paused_engine_shows_as_stalled_in_time_and_nothing_is_lost",
    ),
    "slow_after_s": shown(
        "slow_consumer",
        "runtime/test_client.py::test_a_slow_consumer_is_closed",
        "e2e/test_slow_readers.py::test_one_that_takes_nothing_is_closed_and_resumes_on_another_instance_without_loss",
        "e2e/test_sse_ends.py::test_a_reader_that_stops_is_closed_with_4201_and_resumes_without_loss",
    ),
    "drain_s": shown(
        "going_away",
        "e2e/test_shutdown.py::test_clients_are_told_and_closed_within_the_drain_time_and_the_exit_code_is_0",
        "e2e/test_sse_ends.py::test_a_drain_tells_every_stream_and_ends_it",
        "runtime/test_lifecycle.py::test_a_peer_that_never_answers_is_not_waited_for",
    ),
    "announce_s": shown(
        "readiness is off while connections are still accepted",
        "runtime/test_lifecycle.py::test_it_is_announced_before_anybody_is_told_or_refused",
        "e2e/test_shutdown.py::test_a_shutdown_is_announced_first",
    ),
    "max_age_s": shown(
        "max_age",
        "e2e/test_limits.py::test_a_connection_ends_at_its_maximum_age_and_resumes_elsewhere",
        "e2e/test_sse_ends.py::test_streams_that_age_in_turn_miss_nothing_between_them",
    ),
    "peer_timeout_s": shown(
        "pong_timeout",
        "e2e/test_backpressure.py::test_a_peer_that_says_anything_is_there_and_one_that_says_nothing_gets_4202",
        "e2e/test_limits.py::test_a_peer_that_answers_no_ping_is_let_go",
        "e2e/test_sse_vanishing.py::test_a_dead_network_is_noticed_on_quiet_and_on_busy_connections",
    ),
    "max_tails": shown(
        "topic_limit",
        "e2e/test_reported_cases.py::test_topics_beyond_the_budget_of_streams_are_refused_and_disturb_nobody",
        "runtime/test_client.py::test_what_is_refused_opens_no_tail",
    ),
    "tail_share": shown(
        "topic_limit",
        "e2e/test_quotas.py::test_invented_collections_take_a_share_of_the_tails",
        "runtime/test_tail_room.py::test_invented_names_take_a_share_and_no_more",
    ),
    "log_bytes": shown(
        "the oplog serves what the log has dropped; where it cannot, overflow",
        "e2e/test_slow_readers.py::test_one_that_fell_off_the_log_is_served_from_the_oplog_without_a_resync",
        "e2e/test_slow_readers.py::test_what_neither_log_nor_oplog_can_serve_is_a_resync_of_that_topic_alone",
        "e2e/test_slow_readers.py::test_memory_does_not_grow_with_what_a_stopped_reader_is_owed",
    ),
    "max_event_bytes": shown(
        "`truncated` in place of the document",
        "e2e/test_limits.py::test_a_large_event_loses_its_document_and_says_so",
    ),
    "max_replay_bytes": shown(
        "replay_too_large",
        "runtime/test_bounds.py::test_a_replay_beyond_its_bound_is_a_resync_for_whoever_asked",
        "web/test_wire_limits.py::test_what_a_resume_may_replay",
    ),
    "max_snapshot_bytes": shown(
        "`unsubscribed` with snapshot_too_large",
        "runtime/test_snapshot.py::test_what_cannot_be_sent_ends_the_subscription",
        "e2e/test_snapshot.py::test_the_bound_ends_the_subscription",
    ),
    "max_snapshot_documents": shown(
        "`unsubscribed` with snapshot_too_large",
        "runtime/test_snapshot.py::test_what_cannot_be_sent_ends_the_subscription",
        "web/test_wire_limits.py::test_documents_that_a_snapshot_may_read",
    ),
    "jwt_leeway_s": shown("auth_invalid", "adapters/test_jwt_verifier.py::test_leeway"),
    "connections_per_tenant": shown(
        "tenant_quota",
        "e2e/test_limits.py::test_a_tenant_holds_no_more_connections_than_its_limit",
        "e2e/test_limits.py::test_a_tenants_quotas_are_told_before_a_stream_begins",
    ),
    "subscriptions_per_connection": shown(
        "subscription_limit",
        "e2e/test_limits.py::test_a_connection_holds_no_more_subscriptions_than_its_limit",
        "e2e/test_limits.py::test_a_tenants_quotas_are_told_before_a_stream_begins",
    ),
    "topics_per_tenant": shown(
        "topic_limit",
        "e2e/test_limits.py::test_a_tenant_holds_no_more_distinct_topics_than_its_limit",
        "e2e/test_limits.py::test_a_tenants_quotas_are_told_before_a_stream_begins",
    ),
    "auth_timeout_s": shown(
        "auth_timeout",
        "e2e/test_auth.py::test_no_credentials_for_ten_seconds_close_with_4100_whatever_is_sent_before",
    ),
    "preauth_frame_bytes": shown(
        "1009",
        "e2e/test_auth.py::test_a_frame_over_4_kib_before_welcome_closes_with_1009",
        "core/test_session.py::test_frames_before_welcome_are_bounded",
    ),
    "waiting_sockets": shown(
        "connection_limit",
        "runtime/test_client.py::test_waiting_sockets_are_capped",
        "e2e/test_reported_cases.py::test_sockets_without_credentials_do_not_keep_clients_out",
        "web/test_wire_limits.py::test_sockets_without_credentials",
    ),
    "pending_frames": shown(
        "rate_limited",
        "core/test_session.py::test_frames_that_wait_are_bounded_by_their_number",
        "web/test_wire_limits.py::test_frames_behind_an_unanswered_auth",
    ),
    "pending_bytes": shown(
        "rate_limited",
        "core/test_session.py::test_frames_that_wait_are_bounded_by_their_size_together",
        "web/test_wire_limits.py::test_frames_behind_an_unanswered_auth",
    ),
    "jwt_bytes": shown(
        "auth_invalid",
        "adapters/test_jwt_verifier.py::test_size_is_bounded",
        "e2e/test_limits.py::test_a_jwt_over_8_kib_is_refused_before_it_is_read",
    ),
    "jwks_refresh_s": shown(
        "keys are fetched again",
        "adapters/test_jwks.py::test_keys_are_refreshed_in_time_without_anybody_asking",
        "e2e/test_jwks.py::test_rotation_under_clients",
    ),
    "jwks_stale_s": shown("source_unavailable", "adapters/test_jwks.py::test_an_old_set_ends"),
    "jwks_unknown_kid_cooldown_s": shown(
        "auth_invalid",
        "adapters/test_jwks.py::test_an_unknown_kid_flood_costs_two_requests_and_delays_nobody",
        "adapters/test_jwks.py::test_the_cooldown_of_unknown_kids_ends",
        "e2e/test_jwks.py::test_an_unknown_kid_flood",
    ),
    "jwks_timeout_s": shown(
        "source_unavailable",
        "adapters/test_jwks.py::test_a_server_that_hangs_is_given_up",
        "adapters/test_jwks.py::test_a_peer_that_never_speaks_is_given_up",
    ),
    "jwks_bytes": shown(
        "the keys stay as they were", "adapters/test_jwks.py::test_a_bad_answer_changes_nothing"
    ),
    "jwks_keys": shown(
        "the keys stay as they were", "adapters/test_jwks.py::test_a_bad_answer_changes_nothing"
    ),
    "ticket_lifetime_s": shown(
        "auth_expired",
        "web/test_tickets.py::test_a_ticket_ends",
        "e2e/test_tickets.py::test_an_old_or_damaged_ticket_is_401",
    ),
    "ticket_chars": shown(
        "bad_request", "core/test_tickets.py::test_claims_that_do_not_fit_are_refused_with_what_to_do"
    ),
    "tickets_per_minute": shown(
        "rate_limited", "web/test_tickets.py::test_a_tenant_that_asks_too_often_waits"
    ),
    "upgrades_per_minute": shown(
        "rate_limited",
        "web/test_upgrades.py::test_a_tenant_that_upgrades_too_often_gets_429",
        "web/test_upgrades.py::test_credentials_in_a_first_frame_are_counted_too",
        "web/test_wire_limits.py::test_connections_that_a_tenant_opens",
    ),
    "frame_bytes": shown(
        "1009, and bad_request over HTTP",
        "e2e/test_websocket.py::test_a_frame_that_is_no_text_of_64_kib_closes_the_connection",
        "e2e/test_websocket.py::test_a_message_in_fragments_that_passes_64_kib_closes_with_1009",
        "e2e/test_explain.py::test_a_body_over_the_bound_gets_an_answer",
        "web/test_sse_request.py::test_so_is_a_body",
    ),
    "errors_per_minute": shown(
        "too_many_errors", "e2e/test_limits.py::test_the_101st_error_in_a_minute_closes_with_4009"
    ),
    "requests_spare": shown(
        "rate_limited",
        "core/test_pacing.py::test_as_many_at_once_as_a_connection_may_hold_and_some_to_spare",
        "e2e/test_quotas.py::test_five_thousand_subscribes_at_once",
    ),
    "requests_per_second": shown("rate_limited", "e2e/test_quotas.py::test_a_thousand_pairs_a_second"),
    "refused_per_minute": shown(
        "rate_limited", "e2e/test_quotas.py::test_who_never_stops_is_closed_and_told_when_to_come_back"
    ),
    "refreshes_per_minute": shown(
        "rate_limited",
        "core/test_session.py::test_refreshes_are_bounded",
        "web/test_wire_limits.py::test_refreshes_of_one_connection",
    ),
    "explains_per_minute": shown(
        "rate_limited", "web/test_explain.py::test_a_tenant_that_asks_too_often_waits"
    ),
    "filter_bytes": shown(
        "filter_invalid, and bad_request for `fields`",
        "e2e/test_limits.py::test_what_is_too_long_for_a_request_is_refused_alike_on_both_transports",
        "core/test_filters_bounds.py::test_the_text_is_bounded_exactly",
    ),
    "filter_depth": shown(
        "filter_invalid",
        "e2e/test_limits.py::test_what_is_too_long_for_a_request_is_refused_alike_on_both_transports",
        "core/test_filters_bounds.py::test_depth",
    ),
    "filter_in_values": shown(
        "filter_invalid",
        "e2e/test_limits.py::test_what_is_too_long_for_a_request_is_refused_alike_on_both_transports",
        "core/test_filters_bounds.py::test_members",
    ),
    "conditions_per_change": shown(
        "topic_limit",
        "runtime/test_admission.py::test_filters_that_every_change_is_asked_are_bounded_per_tenant_and_collection",
        "web/test_wire_limits.py::test_filters_that_every_change_is_asked",
    ),
    "subscription_id_chars": shown(
        "bad_request",
        "e2e/test_websocket.py::test_a_malformed_frame_is_a_bad_request_and_the_connection_stays",
        "core/test_session.py::test_an_error_names_the_request",
    ),
    "resume_token_chars": shown(
        "token_invalid; what is given never has more, it takes the digest form",
        "e2e/test_limits.py::test_what_is_too_long_for_a_request_is_refused_alike_on_both_transports",
        "core/test_tokens.py::test_the_digest_form_begins_where_the_wire_limit_is",
    ),
    "sse_topics": shown(
        "bad_request",
        "e2e/test_sse.py::test_what_is_refused_is_a_problem_and_no_stream",
        "web/test_sse_request.py::test_so_is_a_body",
    ),
    "sse_resume_token_chars": shown(
        "token_invalid; what is given never has more, positions take the digest form",
        "e2e/test_sse.py::test_what_is_refused_is_a_problem_and_no_stream",
        "core/test_stream_token.py::test_eight_topics_fit_whatever_their_positions_are",
    ),
    "status_streams": shown(
        "connection_limit", "web/test_status_streams.py::test_one_too_many_is_refused_and_may_come_later"
    ),
    "status_interval_s": shown(
        "one `status` for all readers",
        "web/test_status_streams.py::test_the_timer_gives_all_readers_the_same_status_gathered_once",
        "web/test_status_streams.py::test_for_a_reader_that_stops_one_status_waits_and_no_more",
    ),
    "ring_records": shown(
        "MongoDB finds the place",
        "runtime/test_bounds.py::test_a_place_that_the_ring_has_forgotten_is_found_by_mongodb",
        "core/test_ring.py::test_memory_is_bounded_by_what_is_kept",
    ),
    "catch_up_tails": shown(
        "a resume waits for its turn",
        "runtime/test_feed.py::test_a_topic_that_fails_to_catch_up_takes_no_slot_from_the_others",
        "runtime/test_catch_up_slots.py::test_one_tenant_leaves_a_slot_and_the_next_one_goes_to_the_next_tenant",
        "e2e/test_one_stream.py::test_a_reconnect_storm_shares_catch_up_streams",
    ),
    "snapshots": shown(
        "a snapshot waits for its turn",
        "runtime/test_snapshot.py::test_it_ends_with_its_subscription",
        "runtime/test_turns.py::test_tenants_take_turns",
    ),
    "snapshots_per_tenant": shown(
        "a snapshot waits for its turn",
        "runtime/test_bounds.py::test_snapshots_of_one_tenant_leave_the_rest_to_the_others",
    ),
    "snapshot_page_bytes": shown(
        "another page",
        "core/test_snapshot_pages.py::test_a_page_keeps_its_bound_but_for_one_larger_document",
        "e2e/test_snapshot.py::test_a_large_snapshot_for_a_slow_client_takes_little_memory",
    ),
    "catch_up_window_s": shown(
        "a stream opens", "runtime/test_feed.py::test_one_client_does_not_wait_for_others"
    ),
    "catch_up_gather_s": shown(
        "a stream opens",
        "runtime/test_feed.py::test_a_storm_of_reconnects_is_gathered_even_if_each_one_is_older_than_the_last",
    ),
    "step_aside_after_s": shown(
        "they queue for another one",
        "runtime/test_step_aside.py::test_a_client_of_another_tenant_waits_only_seconds_for_it",
    ),
    "catch_up_turn_s": shown(
        "the next one's turn", "runtime/test_step_aside.py::test_the_only_slot_goes_round"
    ),
    "unsent_bytes": shown(
        "the transport is full sooner, and has room again sooner",
        "e2e/test_slow_but_steady.py::test_who_reads_a_megabyte_a_second_is_not_closed_as_slow",
    ),
    "tail_linger_s": shown("the stream ends", "runtime/test_tail_room.py::test_nothing_is_left_behind"),
    "high_water_bytes": shown(
        "the cursor stays in the log",
        "e2e/test_slow_readers.py::test_the_cursor_of_a_stopped_reader_stays_in_the_log_and_the_others_get_everything_meanwhile",
        "web/test_asgi_connection.py::test_it_is_full_at_the_mark_and_has_room_at_half_of_it",
        "web/test_sse_connection.py::test_it_is_full_at_the_mark_and_has_room_at_half_of_it",
    ),
    "metric_tenants": shown(
        "the rest of the tenants count together",
        "runtime/test_measure.py::test_few_tenants_are_named_and_those_that_leave_go_from_the_page",
        "runtime/test_measure.py::test_nobody_is_named_by_default",
    ),
    "policy_file_bytes": shown(
        "a problem of the configuration",
        "test_settings.py::test_unfit_policy_files",
        "test_settings.py::test_files_are_read_from_disk",
    ),
}

CODE_TESTS: dict[str, str] = {
    "bad_request": "e2e/test_auth.py::test_another_first_frame_closes_with_4000",
    "auth_timeout": "e2e/test_auth.py::test_no_credentials_for_ten_seconds_close_with_4100_whatever_is_sent_before",
    "auth_expired": "e2e/test_auth_refresh.py::test_a_connection_ends_with_its_jwt_and_no_event_comes_after",
    "auth_invalid": "e2e/test_auth.py::test_an_invalid_first_auth_closes_with_4102",
    "auth_in_url": "e2e/test_auth.py::test_a_jwt_in_the_url_is_refused_and_not_logged",
    "forbidden": "e2e/test_auth.py::test_what_the_policy_does_not_name_is_refused",
    "too_many_errors": "e2e/test_limits.py::test_the_101st_error_in_a_minute_closes_with_4009",
    "unknown_collection": "e2e/test_auth.py::test_what_the_policy_does_not_name_is_refused",
    "filter_invalid": "e2e/test_filter_cases.py::test_a_refused_filter_asks_mongodb_for_nothing",
    "filter_unsupported": "e2e/test_filter_cases.py::test_a_refused_filter_asks_mongodb_for_nothing",
    "images_required": "e2e/test_partial.py::test_without_images_a_policy_filter_needs_allow_partial",
    "already_subscribed": "e2e/test_websocket.py::test_a_topic_is_held_once_and_the_refusal_names_it",
    "not_subscribed": "e2e/test_websocket.py::test_after_unsubscribed_no_frame_of_the_topic_follows",
    "token_invalid": "e2e/test_sse.py::test_tenants_see_nothing_of_each_other",
    "subscription_limit": "e2e/test_limits.py::test_a_connection_holds_no_more_subscriptions_than_its_limit",
    "topic_limit": "e2e/test_limits.py::test_a_tenant_holds_no_more_distinct_topics_than_its_limit",
    "snapshot_unavailable": "e2e/test_snapshot.py::test_refusals",
    "not_found": "e2e/test_status.py::test_where_nothing_is_a_problem_document_says_so",
    "method_not_allowed": "e2e/test_status.py::test_where_nothing_is_a_problem_document_says_so",
    "going_away": "e2e/test_sse_ends.py::test_a_drain_tells_every_stream_and_ends_it",
    "slow_consumer": "e2e/test_server_hazards.py::test_a_stalled_reader_is_aborted_two_seconds_after_the_close",
    "pong_timeout": "e2e/test_sse_vanishing.py::test_a_dead_network_is_noticed_on_quiet_and_on_busy_connections",
    "internal": "runtime/test_client.py::test_a_fault_while_verifying_closes_and_is_reported",
    "source_unavailable": "e2e/test_jwks.py::test_an_outage_is_not_the_fault_of_the_jwt",
    "max_age": "e2e/test_limits.py::test_a_connection_ends_at_its_maximum_age_and_resumes_elsewhere",
    "connection_limit": "web/test_wire_limits.py::test_sockets_without_credentials",
    "rate_limited": "e2e/test_quotas.py::test_who_never_stops_is_closed_and_told_when_to_come_back",
    "tenant_quota": "e2e/test_limits.py::test_a_tenant_holds_no_more_connections_than_its_limit",
}
"""A test that provokes the code; where the code closes sockets and streams, by its close code."""

NEVER_CLOSES = {"forbidden"}
"""4003 is kept for a service that would close for it; this one refuses the upgrade, or the topic."""


def names(test: str, code: str) -> bool:
    """Whether a test's text holds a code, or the number that stands for it on the wire."""
    number = REGISTRY[code].close_code if code in REGISTRY else None
    return re.search(rf"\b({code}{'' if number is None else f'|{number}'})\b", text_of(test)) is not None


def test_every_limit_has_its_tests() -> None:
    assert LIMIT_TESTS.keys() == LIMITS.keys()


@pytest.mark.parametrize("limit", LIMIT_TESTS)
def test_the_tests_of_a_limit_exist_and_name_its_answer(limit: str) -> None:
    answer, tests = LIMIT_TESTS[limit]
    assert tests
    for test in tests:
        assert text_of(test)
    known = {*REGISTRY, *get_args(ResyncReason), "snapshot_too_large", "1009"}
    for code in known.intersection(re.findall(r"[a-z_]+|\d+", answer)):
        assert any(names(test, code) for test in tests), code


def test_every_code_has_its_test() -> None:
    assert list(CODE_TESTS) == list(REGISTRY)


@pytest.mark.parametrize("code", CODE_TESTS)
def test_the_test_of_a_code_exists_and_names_it(code: str) -> None:
    number = REGISTRY[code].close_code
    wanted = code if number is None or code in NEVER_CLOSES else str(number)
    assert wanted in text_of(CODE_TESTS[code])
