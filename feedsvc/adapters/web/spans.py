"""A span for each HTTP request that is an answer of moments.

Not for probes and scrapes, which would be most of all spans, and not for streams, which last for hours: they have the
spans of what begins them.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from feedsvc.ports import NO_TRACER, Tracer

_QUIET = ("/healthz/", "/metrics", "/v1/sse")
_OTHER = "other"


class RequestSpans:
    """ASGI middleware. `paths`: those that spans are named after; all others count as one."""

    def __init__(self, app: ASGIApp, tracer: Tracer, paths: Iterable[str]) -> None:
        self._app = app
        self._tracer = tracer
        self._paths = frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(_QUIET) or _asks_for_a_stream(scope):
            await self._app(scope, receive, send)
            return
        path, method = scope["path"], scope["method"]
        name = path if path in self._paths else _OTHER
        with self._tracer.span("feedsvc.request", path=name, method=method) as note:

            async def noting(message: Message) -> None:
                if message["type"] == "http.response.start":
                    note(status=message["status"])
                await send(message)

            await self._app(scope, receive, noting)


def traced(app: Starlette, tracer: Tracer) -> ASGIApp:
    """The application with spans, named after its routes; as it is where nobody wants any."""
    if tracer is NO_TRACER:
        return app
    return RequestSpans(app, tracer, [route.path for route in app.routes if isinstance(route, Route)])


def _asks_for_a_stream(scope: Scope) -> bool:
    return any(name == b"accept" and b"text/event-stream" in value for name, value in scope["headers"])
