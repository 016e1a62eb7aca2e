"""Tickets: what was sealed comes out while it can be used, on any instance with one of the keys; nothing else does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedsvc.core.errors import Refusal
from feedsvc.core.limits import Limits
from feedsvc.core.positions import boundary
from feedsvc.core.tickets import TicketSealer
from feedsvc.core.tokens import Seal, TokenSealer

OLD, NEW = b"o" * 32, b"n" * 32
NOW = 1_800_000_000.0
CLAIMS: dict[str, Any] = {"tenant": "acme", "groups": ["a", "b"], "n": 2**70, "name": "Zoë"}
LIMITS = Limits()


def sealer(*keys: bytes) -> TicketSealer:
    return TicketSealer(keys or (OLD,), lifetime_s=LIMITS.ticket_lifetime_s, max_chars=LIMITS.ticket_chars)


def issue(by: TicketSealer | None = None, *, left_s: float = 600, claims: Any = None) -> tuple[str, float]:
    """A ticket of alice's, issued at NOW."""
    said = CLAIMS if claims is None else claims
    return (by or sealer()).issue("alice", NOW + left_s, frozenset({"x", "y"}), said, NOW)


def code_of(ticket: str, by: TicketSealer | None = None, *, at: float = NOW) -> str:
    with pytest.raises(Refusal) as caught:
        (by or sealer()).open(ticket, at)
    assert not ticket or ticket not in caught.value.message
    return caught.value.code


def test_what_was_sealed_comes_out_as_often_as_asked() -> None:
    """The claims, whole, with their own expiry; also integers that 64 bits do not hold."""
    ticket, lifetime_s = issue()
    assert lifetime_s == 30
    for _ in range(3):
        opened = sealer().open(ticket, NOW + 29.9)
        assert (opened.subject, opened.expires_at, opened.scopes) == ("alice", NOW + 600, frozenset("xy"))
        assert opened.claims == CLAIMS


def test_a_ticket_lasts_as_long_as_told_and_no_longer() -> None:
    ticket, lifetime_s = issue()
    sealer().open(ticket, NOW + lifetime_s - 0.001)
    assert code_of(ticket, at=NOW + lifetime_s) == "auth_expired"


def test_a_ticket_never_outlives_its_jwt() -> None:
    ticket, lifetime_s = issue(left_s=4)
    assert lifetime_s == 4
    assert code_of(ticket, at=NOW + 4) == "auth_expired"
    with pytest.raises(Refusal) as caught:
        issue(left_s=0)
    assert caught.value.code == "auth_expired"


def test_keys_rotate_in_the_documented_order() -> None:
    """New key last everywhere, then first, then the old one is gone: each step opens what the one before sealed."""
    ticket, _ = issue(sealer(OLD))
    sealer(OLD, NEW).open(ticket, NOW)
    sealer(NEW, OLD).open(ticket, NOW)
    sealer(NEW).open(issue(sealer(NEW, OLD))[0], NOW)
    assert code_of(ticket, sealer(NEW)) == "auth_invalid"


def test_claims_that_do_not_fit_are_refused_with_what_to_do() -> None:
    """What fits has at most as many characters as may come back."""
    roomy = LIMITS.ticket_chars * 3 // 4 - 200
    ticket, _ = issue(claims={"x": "a" * roomy})
    assert LIMITS.ticket_chars - 200 < len(ticket) <= LIMITS.ticket_chars
    sealer().open(ticket, NOW)
    with pytest.raises(Refusal) as caught:
        issue(claims={"x": "a" * (roomy + 200)})
    assert caught.value.code == "bad_request"
    assert "Authorization" in caught.value.message


def test_a_resume_token_is_no_ticket_and_no_ticket_is_a_resume_token() -> None:
    """The subkeys are by purpose, so the same key seals both."""
    token = TokenSealer([OLD]).seal("", b"b" * 16, b"s" * 8, boundary(1 << 32))
    assert code_of(token) == "auth_invalid"
    with pytest.raises(ValueError):
        Seal([OLD], b"feedsvc resume token v1").open(issue()[0], b"")


@pytest.mark.parametrize("junk", ["", "x", "a" * 100, "=" * 40, "\0", "é" * 30, "a" * 1_000_000])
def test_junk_is_invalid(junk: str) -> None:
    assert code_of(junk) == "auth_invalid"


@given(st.data())
def test_a_damaged_ticket_is_invalid(data: st.DataObject) -> None:
    """One character changed, taken away or added, anywhere."""
    ticket, _ = issue()
    at = data.draw(st.integers(0, len(ticket) - 1))
    other = data.draw(st.sampled_from("ABCDEFGHabcdefgh0123456789-_"))
    damaged = data.draw(
        st.sampled_from(
            [
                ticket[:at] + other + ticket[at + 1 :],
                ticket[:at] + ticket[at + 1 :],
                ticket[:at] + other + ticket[at:],
            ]
        )
    )
    if damaged != ticket:
        assert code_of(damaged) == "auth_invalid"


def test_what_is_sealed_but_no_ticket_is_invalid() -> None:
    """A later version may write another form with the same key."""
    for payload in (b"", b"{}", b"[1]", b"\xff"):
        assert code_of(Seal([OLD], b"feedsvc ticket v1").seal(payload, b"")) == "auth_invalid"
