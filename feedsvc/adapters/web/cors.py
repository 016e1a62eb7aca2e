"""Which pages of other origins may use a route (the Fetch standard, CORS; protocol.md section 2).

The list is that of FEEDSVC_ALLOWED_ORIGINS, compared whole. A request without an Origin comes from no page of another
origin and passes; one of another origin gets 403 before anything is done, for a browser would only hide the answer to
what was done. There is no wildcard and no credentials mode: nothing here looks at cookies, so a JWT or a ticket is all
that a page needs. Starlette's middleware answers a foreign preflight with a plain 400, lets foreign requests
through, and stands before every route.

Plain ASGI, so that it neither buffers a stream nor hides its disconnect.
"""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from feedsvc.adapters.web.credentials import check_origin
from feedsvc.adapters.web.problems import problem_response
from feedsvc.core.errors import Refusal
from feedsvc.ports import Metrics

_ALLOWED_HEADERS = "Authorization, Content-Type, Last-Event-ID"
_EXPOSED_HEADERS = "Retry-After"
_MAX_AGE_S = 600
"""How long a browser may remember a preflight: an origin that was taken off the list still gets 403."""


class CrossOrigin:
    """The route `app` for the allowed origins. `methods` are the route's own."""

    def __init__(
        self, app: ASGIApp, allowed_origins: frozenset[str], metrics: Metrics, *methods: str
    ) -> None:
        self._app = app
        self._allowed_origins = allowed_origins
        self._metrics = metrics
        self._methods = ", ".join((*methods, "OPTIONS"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        origin = headers.get("origin")

        async def send_with_origin(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = MutableHeaders(scope=message)
                added.add_vary_header("Origin")
                if origin in self._allowed_origins:
                    added["Access-Control-Allow-Origin"] = origin
                    added["Access-Control-Expose-Headers"] = _EXPOSED_HEADERS
            await send(message)

        app = self._app
        try:
            check_origin(headers, self._allowed_origins)
        except Refusal as refusal:
            self._metrics.count("requests_refused", code=refusal.code)
            app = problem_response(refusal)
        else:
            if scope["method"] == "OPTIONS":
                app = self._options(preflight="access-control-request-method" in headers)
        await app(scope, receive, send_with_origin)

    def _options(self, *, preflight: bool) -> Response:
        headers = {"Allow": self._methods, "Cache-Control": "no-store"}
        if preflight:
            headers |= {
                "Access-Control-Allow-Methods": self._methods,
                "Access-Control-Allow-Headers": _ALLOWED_HEADERS,
                "Access-Control-Max-Age": str(_MAX_AGE_S),
            }
        return Response(status_code=204, headers=headers)
