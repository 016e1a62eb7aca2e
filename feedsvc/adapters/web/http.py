"""The HTTP routes: feeds, what belongs to them, and what operators ask (protocol.md section 10).

Whatever is answered with an error is an RFC 9457 problem document, also where no route exists, where one takes other
methods, and where we fail.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute, request_response
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from feedsvc.adapters.web import admin
from feedsvc.adapters.web.api_page import api_page
from feedsvc.adapters.web.cors import CrossOrigin
from feedsvc.adapters.web.problems import problem_response
from feedsvc.core.errors import Refusal
from feedsvc.ports import Metrics

_ANY_OTHER = "/{path:path}"

Endpoint = Callable[[Request], Awaitable[Response]]


class Health(msgspec.Struct, frozen=True):
    """`status` is `ok`, `degraded`, `starting`, `draining` or `failing`; `detail` is for people and names no secret."""

    ok: bool
    status: str
    detail: str = ""


class HealthProbe(Protocol):
    """Three questions with three answers: is the process alive, has it started, does it want traffic?"""

    def live(self) -> Health: ...

    def startup(self) -> Health: ...

    def ready(self) -> Health: ...


class Routes(msgspec.Struct, frozen=True):
    """What answers where. `exposition` returns the page of metrics and its content type, `openapi` is the file,
    `api_page` the same as HTML."""

    feed: ASGIApp
    sse: ASGIApp
    probe: HealthProbe
    exposition: Callable[[], tuple[bytes, str]]
    explain: Endpoint
    tickets: Endpoint
    status: ASGIApp
    openapi: bytes
    api_page: bytes


def build_app(
    routes: Routes,
    allowed_origins: frozenset[str],
    metrics: Metrics,
    report: Callable[[str, Mapping[str, object]], None],
) -> Starlette:
    """The ASGI application."""

    def healthz(answer: Callable[[], Health]) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            health = answer()
            body = msgspec.json.encode({"status": health.status, "detail": health.detail})
            status = 200 if health.ok else 503
            return Response(body, status, {"Cache-Control": "no-store"}, "application/json")

        return endpoint

    async def exposition(request: Request) -> Response:
        body, content_type = routes.exposition()
        return Response(body, 200, {"Cache-Control": "no-store"}, content_type)

    async def openapi(request: Request) -> Response:
        return Response(routes.openapi, 200, {"Cache-Control": "no-cache"}, "application/yaml")

    def for_pages(endpoint: Endpoint, *methods: str) -> CrossOrigin:
        """An endpoint that pages of the allowed origins may use."""
        return CrossOrigin(request_response(endpoint), allowed_origins, metrics, *methods)

    async def no_upgrade(request: Request) -> Response:
        message = "this address takes WebSocket upgrades, for example with python -m websockets ws://..."
        response = problem_response(Refusal("bad_request", message))
        response.headers["Upgrade"] = "websocket"
        return response

    async def elsewhere(socket: WebSocket) -> None:
        """Without it the answer would be 403, which sends people to look for what they are not allowed to do."""
        await socket.send_denial_response(problem_response(Refusal("not_found", "WebSockets are at /v1/ws")))

    async def no_route(request: Request, error: Exception) -> Response:
        return _refused(metrics, Refusal("not_found", "there is nothing at this path"))

    async def no_method(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        response = _refused(metrics, Refusal("method_not_allowed", "this path takes the methods in Allow"))
        response.headers.update(error.headers or {})
        return response

    async def failed(request: Request, error: Exception) -> Response:
        reference = secrets.token_hex(4)
        report("request.failed", {"reference": reference, "error": f"{type(error).__name__}: {error}"})
        return _refused(metrics, Refusal("internal", f"logged as {reference}"))

    streams = CrossOrigin(routes.sse, allowed_origins, metrics, "GET", "POST")
    sse = Route("/v1/sse", streams, methods=["GET", "POST", "OPTIONS"])
    assert sse.methods is not None
    sse.methods.discard("HEAD")  # what a GET would say is not known without a stream
    app = Starlette(
        routes=[
            WebSocketRoute("/v1/ws", routes.feed),
            Route("/v1/ws", no_upgrade),
            sse,
            Route("/v1/tickets", for_pages(routes.tickets, "POST"), methods=["POST", "OPTIONS"]),
            Route("/v1/topics/explain", for_pages(routes.explain, "POST"), methods=["POST", "OPTIONS"]),
            Route("/v1/status", routes.status, methods=["GET"]),
            *admin.routes(),
            Route("/healthz/live", healthz(routes.probe.live)),
            Route("/healthz/startup", healthz(routes.probe.startup)),
            Route("/healthz/ready", healthz(routes.probe.ready)),
            Route("/metrics", exposition),
            Route("/openapi.yaml", openapi),
            Route("/docs", api_page(routes.api_page)),
            WebSocketRoute(_ANY_OTHER, elsewhere),
        ],
        exception_handlers={404: no_route, 405: no_method, Exception: failed},
    )
    app.router.redirect_slashes = False
    return app


def _refused(metrics: Metrics, refusal: Refusal) -> Response:
    metrics.count("requests_refused", code=refusal.code)
    return problem_response(refusal)
