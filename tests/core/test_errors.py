"""The registry of errors is what protocol.md section 8 says."""

from __future__ import annotations

import pytest

from feedsvc.core.errors import REGISTRY, Refusal, close_action, close_code, problem

CLOSE_CODES = {
    "bad_request": 4000,
    "forbidden": 4003,
    "too_many_errors": 4009,
    "auth_timeout": 4100,
    "auth_expired": 4101,
    "auth_invalid": 4102,
    "going_away": 4200,
    "slow_consumer": 4201,
    "pong_timeout": 4202,
    "internal": 4203,
    "source_unavailable": 4204,
    "max_age": 4205,
    "connection_limit": 4300,
    "rate_limited": 4301,
    "tenant_quota": 4302,
}
FRAME_CODES = [
    *("bad_request", "auth_invalid", "auth_expired", "auth_in_url", "forbidden", "unknown_collection"),
    *("filter_invalid", "filter_unsupported", "images_required", "already_subscribed", "not_subscribed"),
    *("token_invalid", "subscription_limit", "topic_limit", "snapshot_unavailable", "rate_limited"),
    *("source_unavailable", "internal"),
]


def test_close_codes() -> None:
    """The codes that close sockets, and no others, have the numbers of the protocol."""
    found = {code: entry.close_code for code, entry in REGISTRY.items() if entry.close_code is not None}
    assert found == CLOSE_CODES


def test_every_frame_code_is_registered() -> None:
    """Each code that the protocol allows on an error frame exists."""
    assert set(FRAME_CODES) <= set(REGISTRY)


@pytest.mark.parametrize("code", REGISTRY)
def test_the_range_agrees_with_retryable(code: str) -> None:
    """A code that tells the client to come back is retryable, one that tells it to stop is not."""
    entry = REGISTRY[code]
    assert entry.code == code
    assert entry.meaning.endswith(".")
    assert 400 <= entry.status < 600
    if entry.close_code is not None:
        assert entry.retryable == (entry.close_code >= 4200)


@pytest.mark.parametrize("code", REGISTRY)
def test_a_problem_document(code: str) -> None:
    """RFC 9457: type, title, status and detail, beside the registry's code."""
    document = problem(code, "why")
    assert document == {
        "type": f"urn:feedsvc:error:{code}",
        "title": REGISTRY[code].meaning,
        "status": REGISTRY[code].status,
        "code": code,
        "detail": "why",
        "retryable": REGISTRY[code].retryable,
    }


@pytest.mark.parametrize("code", [code for code in REGISTRY if code not in CLOSE_CODES])
def test_other_codes_never_close(code: str) -> None:
    """A code without a close code cannot close a socket by mistake."""
    with pytest.raises(ValueError, match=code):
        close_code(code)


@pytest.mark.parametrize("code", [code for code in REGISTRY if code in CLOSE_CODES])
def test_the_range_says_what_to_do(code: str) -> None:
    """For machines: the same as the prose of section 8; what is none of ours is to come back."""
    names = {40: "stop", 41: "authenticate", 42: "reconnect", 43: "wait"}
    assert close_action(close_code(code)) == names[close_code(code) // 100]
    assert close_action(1011) == "reconnect"


def test_a_refusal_has_a_registered_code() -> None:
    """A code that is not in the registry is a programming error."""
    assert Refusal("forbidden", "no").entry is REGISTRY["forbidden"]
    assert Refusal("tenant_quota", "no", retry_after_ms=7).retry_after_ms == 7
    with pytest.raises(ValueError, match="registry"):
        Refusal("no_such_code", "no")
