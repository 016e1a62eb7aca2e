"""From an HTTP request to the claims of whoever sent it: the one way for WebSocket, SSE and the requests beside them.

Origin first, then where credentials may stand (`credentials.py`), then whether they are good: a JWT is verified, a
ticket opened. What goes wrong is a `Refusal`, the same for all.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers

from feedsvc.adapters.web.credentials import check_origin, upgrade_jwt, url_ticket
from feedsvc.core.errors import Refusal
from feedsvc.core.policy import Policy
from feedsvc.core.session import Principal
from feedsvc.core.tickets import IssuedTicket, TicketSealer
from feedsvc.ports import AuthError, Claims, Clock, Verifier


class Authentication:
    """What all routes of a process share."""

    def __init__(
        self,
        verifier: Verifier,
        policy: Policy,
        tickets: TicketSealer,
        clock: Clock,
        allowed_origins: frozenset[str],
    ) -> None:
        self._verifier = verifier
        self._policy = policy
        self._tickets = tickets
        self._clock = clock
        self._allowed_origins = allowed_origins

    async def upgrade(self, headers: Headers, query: str, subprotocols: Sequence[str] = ()) -> Claims | None:
        """The claims behind a request for a feed: JWT or ticket; None where it brings neither. Raises `Refusal`.

        They name a tenant. Whether there is room for one more of it is not asked here.
        """
        check_origin(headers, self._allowed_origins)
        ticket = url_ticket(query)
        jwt = upgrade_jwt(headers.getlist("authorization"), subprotocols)
        if ticket is not None and jwt is not None:
            raise Refusal("bad_request", "give a ticket or a JWT, not both")
        if ticket is not None:
            claims = self.open_ticket(ticket)
        elif jwt is not None:
            claims = await self._verified(jwt)
        else:
            return None
        self._policy.tenant(claims.claims)
        return claims

    async def stream(self, headers: Headers, query: str) -> Claims:
        """The claims behind a feed that cannot ask for credentials later. Raises `Refusal`."""
        claims = await self.upgrade(headers, query)
        if claims is None:
            raise Refusal("auth_invalid", "send the JWT as Authorization: Bearer, or a ticket as ?ticket=")
        return claims

    async def bearer(self, headers: Headers, query: str) -> Claims:
        """The claims behind a request that is no feed: JWTs only, so that no ticket begets another. Raises `Refusal`.

        They need not name a tenant: see `principal`.
        """
        check_origin(headers, self._allowed_origins)
        if url_ticket(query) is not None:
            raise Refusal("auth_invalid", "a ticket opens feeds only; send the JWT as Authorization: Bearer")
        jwt = upgrade_jwt(headers.getlist("authorization"), ())
        if jwt is None:
            raise Refusal("auth_invalid", "send the JWT as Authorization: Bearer")
        return await self._verified(jwt)

    def principal(self, claims: Claims) -> Principal:
        """Whom they speak for. Raises `Refusal('auth_invalid')` where they name no tenant."""
        tenant = self._policy.tenant(claims.claims)
        return Principal(tenant, claims.subject, claims.scopes, claims.claims, claims.expires_at)

    def ticket(self, claims: Claims) -> IssuedTicket:
        """A ticket for verified claims. Raises `Refusal` where they have ended, or do not fit."""
        ticket, lifetime_s = self._tickets.issue(
            claims.subject, claims.expires_at, claims.scopes, claims.claims, self._clock.wall()
        )
        return IssuedTicket(ticket, max(1, int(lifetime_s * 1000)))

    def open_ticket(self, ticket: str) -> Claims:
        """The claims that a ticket carries. Raises `Refusal`: `auth_invalid` or `auth_expired`."""
        opened = self._tickets.open(ticket, self._clock.wall())
        return Claims(opened.subject, opened.expires_at, opened.scopes, opened.claims)

    async def _verified(self, jwt: str) -> Claims:
        try:
            return await self._verifier.verify(jwt)
        except AuthError as error:
            raise Refusal(error.code, error.message) from None
