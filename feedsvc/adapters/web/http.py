"""The HTTP routes beside the feeds: health, metrics and explain (protocol.md section 10)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from feedsvc.adapters.web.problems import problem_response
from feedsvc.core.errors import Refusal

_ANY_OTHER = "/{path:path}"


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


def build_app(
    feed: ASGIApp,
    probe: HealthProbe,
    metrics: Callable[[], tuple[bytes, str]],
    explain: Callable[[Request], Awaitable[Response]],
) -> Starlette:
    """The ASGI application. `metrics` returns the exposition and its content type."""

    def healthz(answer: Callable[[], Health]) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            health = answer()
            body = msgspec.json.encode({"status": health.status, "detail": health.detail})
            status = 200 if health.ok else 503
            return Response(body, status, {"Cache-Control": "no-store"}, "application/json")

        return endpoint

    async def live(request: Request) -> Response:
        return healthz(probe.live)(request)

    async def startup(request: Request) -> Response:
        return healthz(probe.startup)(request)

    async def ready(request: Request) -> Response:
        return healthz(probe.ready)(request)

    async def exposition(request: Request) -> Response:
        body, content_type = metrics()
        return Response(body, 200, {"Cache-Control": "no-store"}, content_type)

    async def topics_explain(request: Request) -> Response:
        return await explain(request)

    async def no_upgrade(request: Request) -> Response:
        message = "this address takes WebSocket upgrades, for example with python -m websockets ws://..."
        response = problem_response(Refusal("bad_request", message))
        response.headers["Upgrade"] = "websocket"
        return response

    async def elsewhere(socket: WebSocket) -> None:
        """Without it the answer would be 403, which sends people to look for what they are not allowed to do."""
        await socket.send_denial_response(
            Response("WebSockets are at /v1/ws\n", 404, media_type="text/plain")
        )

    return Starlette(
        routes=[
            WebSocketRoute("/v1/ws", feed),
            Route("/v1/ws", no_upgrade),
            Route("/v1/topics/explain", topics_explain, methods=["POST"]),
            Route("/healthz/live", live),
            Route("/healthz/startup", startup),
            Route("/healthz/ready", ready),
            Route("/metrics", exposition),
            WebSocketRoute(_ANY_OTHER, elsewhere),
        ]
    )
