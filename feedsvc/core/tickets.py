"""Tickets: verified claims sealed for a URL, where a browser cannot set a header (protocol.md section 2).

A ticket is stateless: it carries what a JWT said after it was verified, and until when it may be used, under a subkey
of its own of the token keys. So any instance of one configuration takes it, any number of times within its lifetime,
and there is nothing to store, to count or to clean up. It never outlives the JWT that it was made for: the claims'
own expiry is inside too and ends the connection. Keys rotate with those of resume tokens: the first seals, all open.

Whoever sees a ticket can use it until it ends, which is why that is soon, why no log line shows it, and why it opens
feeds only: the request that asks for a ticket does not take one. Instances must agree on the time within a few
seconds.

Size: claims that would not fit beside the rest into a request line are refused; they can come by header or frame.
Time is linear in the size of the claims.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from feedsvc.core.errors import Refusal
from feedsvc.core.tokens import Seal

_PURPOSE = b"feedsvc ticket v1"
_ASSOCIATED = b""
"""The tenant is not known before the ticket is open; it is in the claims."""


class Ticket(msgspec.Struct, frozen=True, array_like=True):
    """What a ticket says. `usable_until` and `expires_at` (of the claims) are epoch seconds."""

    usable_until: float
    expires_at: float
    subject: str | None
    scopes: frozenset[str]
    claims: Mapping[str, Any]


class IssuedTicket(msgspec.Struct, rename="camel", frozen=True):
    """The answer of `POST /v1/tickets`: put `ticket` into the URL of a feed, within `expiresInMs`."""

    ticket: str
    expires_in_ms: Annotated[int, Meta(gt=0)]


class TicketSealer:
    """`keys`: see `core.tokens.Seal`. `wall` arguments are epoch seconds."""

    def __init__(self, keys: Sequence[bytes], *, lifetime_s: float, max_chars: int) -> None:
        self._seal = Seal(keys, _PURPOSE)
        self._lifetime_s = lifetime_s
        self._max_chars = max_chars

    def issue(
        self,
        subject: str | None,
        expires_at: float,
        scopes: frozenset[str],
        claims: Mapping[str, Any],
        wall: float,
    ) -> tuple[str, float]:
        """A ticket and how many seconds it can be used. Raises `Refusal`: `auth_expired` where the claims have
        ended, `bad_request` where they are too many."""
        lifetime_s = min(self._lifetime_s, expires_at - wall)
        if lifetime_s <= 0:
            raise Refusal("auth_expired", "the JWT has expired")
        said = (wall + lifetime_s, expires_at, subject, sorted(scopes), claims)
        # Not msgspec: a claim may be an integer of any size.
        payload = json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode()
        ticket = self._seal.seal(payload, _ASSOCIATED)
        if len(ticket) > self._max_chars:
            raise Refusal(
                "bad_request",
                f"the JWT's claims do not fit into a ticket of {self._max_chars} characters; send the JWT as "
                "Authorization: Bearer, as subprotocol bearer.<jwt>, or in a first frame auth",
            )
        return ticket, lifetime_s

    def open(self, ticket: str, wall: float) -> Ticket:
        """What `issue` sealed, while it can be used. Raises `Refusal`: `auth_invalid` or `auth_expired`."""
        if not 0 < len(ticket) <= self._max_chars:
            raise _invalid()
        try:
            opened = msgspec.json.decode(self._seal.open(ticket, _ASSOCIATED), type=Ticket)
        except ValueError:  # msgspec's errors are some, too
            raise _invalid() from None
        if opened.usable_until <= wall:
            raise Refusal("auth_expired", "the ticket has expired; get a new one from POST /v1/tickets")
        return opened


def _invalid() -> Refusal:
    return Refusal("auth_invalid", "the ticket does not open; get a new one from POST /v1/tickets")
