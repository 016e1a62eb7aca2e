"""`GET /v1/status`: how this process is, for whoever has the scope `feedsvc:admin` (protocol.md section 10).

An operator's JWT needs no tenant. Without the scope it is 403, and there is no other way in: the answer tells the names
of tenants and collections. JSON, or for whom `Accept` prefers it a stream of events (`status_streams`). Both take the
JWT in the header only, the stream too: a page reads it with `fetch`, so that nothing secret stands in a URL.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from feedsvc.adapters.web.accept import JSON, prefers_event_stream
from feedsvc.adapters.web.authentication import Authentication
from feedsvc.adapters.web.problems import problem_response
from feedsvc.adapters.web.status_streams import StatusStreams
from feedsvc.core.errors import Refusal
from feedsvc.ports import Claims, Metrics

ADMIN_SCOPE = "feedsvc:admin"
_HEADERS = {"Cache-Control": "no-store", "Vary": "Accept"}


class StatusEndpoint:
    """The ASGI application of `/v1/status`."""

    def __init__(self, authentication: Authentication, streams: StatusStreams, metrics: Metrics) -> None:
        self._authentication = authentication
        self._streams = streams
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            claims = await self._operator(request)
            accept = ",".join(request.headers.getlist("accept"))
            if request.method == "GET" and prefers_event_stream(accept):
                await self._streams.serve(claims, scope, receive, send)
                return
            response = Response(self._streams.now(), 200, _HEADERS, JSON)
        except Refusal as refusal:
            self._metrics.count("requests_refused", code=refusal.code)
            response = problem_response(refusal)
        await response(scope, receive, send)

    async def _operator(self, request: Request) -> Claims:
        claims = await self._authentication.bearer(request.headers, request.url.query)
        if ADMIN_SCOPE not in claims.scopes:
            raise Refusal("forbidden", f"the JWT's scope lacks {ADMIN_SCOPE}")
        return claims
