"""`POST /v1/tickets`: a ticket for a JWT, which may stand in a URL (protocol.md section 2; `core.tickets`)."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from feedsvc.adapters.web.authentication import Authentication
from feedsvc.adapters.web.problems import problem_response
from feedsvc.core.errors import Refusal
from feedsvc.core.tickets import IssuedTicket
from feedsvc.ports import Clock, Metrics
from feedsvc.runtime.quota import Quota


class TicketsEndpoint:
    """Each tenant gets `per_minute` at the most."""

    def __init__(
        self, authentication: Authentication, clock: Clock, metrics: Metrics, per_minute: int
    ) -> None:
        self._authentication = authentication
        self._clock = clock
        self._metrics = metrics
        self._quota = Quota(per_minute)

    async def __call__(self, request: Request) -> Response:
        try:
            issued = await self._issue(request)
        except Refusal as refusal:
            self._metrics.count("requests_refused", code=refusal.code)
            return problem_response(refusal)
        self._metrics.count("tickets_issued")
        return Response(msgspec.json.encode(issued), 200, {"Cache-Control": "no-store"}, "application/json")

    async def _issue(self, request: Request) -> IssuedTicket:
        claims = await self._authentication.bearer(request.headers, request.url.query)
        principal = self._authentication.principal(claims)
        self._quota.spend(principal.tenant, self._clock.monotonic())
        return self._authentication.ticket(claims)
