"""`GET /v1/status`: how this process is, for whoever has the scope `feedsvc:admin` (protocol.md section 10).

An operator's JWT needs no tenant. Without the scope it is 403, and there is no other way in: the page tells the names
of tenants and collections.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from feedsvc.adapters.web.authentication import Authentication
from feedsvc.adapters.web.problems import problem_response
from feedsvc.core.errors import Refusal
from feedsvc.core.status import Status
from feedsvc.ports import Metrics

ADMIN_SCOPE = "feedsvc:admin"


class StatusEndpoint:
    """`status` gathers the answer when it is asked."""

    def __init__(
        self, authentication: Authentication, status: Callable[[], Status], metrics: Metrics
    ) -> None:
        self._authentication = authentication
        self._status = status
        self._metrics = metrics

    async def __call__(self, request: Request) -> Response:
        try:
            claims = await self._authentication.bearer(request.headers, request.url.query)
            if ADMIN_SCOPE not in claims.scopes:
                raise Refusal("forbidden", f"the JWT's scope lacks {ADMIN_SCOPE}")
        except Refusal as refusal:
            self._metrics.count("requests_refused", code=refusal.code)
            return problem_response(refusal)
        return Response(
            msgspec.json.encode(self._status()), 200, {"Cache-Control": "no-store"}, "application/json"
        )
