"""`GET` and `POST /v1/sse`: one client from its request until its response is over (protocol.md sections 2 and 10).

Everything that can be refused is refused before the first byte, as a problem document: credentials, parameters, the
token to resume after, each topic, the quotas. From then on the stream is a client like any other; `SseConnection`
writes what it is sent, until `StreamResponse` ends.

A client that is gone before the first byte is noticed at the latest when its topics are resolved, which is bounded;
what it held is given back in one place, a `finally` that is entered before anything is taken.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from feedsvc.adapters.web.authentication import Authentication
from feedsvc.adapters.web.event_stream import RETRY_MS
from feedsvc.adapters.web.pace import Pace
from feedsvc.adapters.web.problems import problem_response
from feedsvc.adapters.web.sse_connection import SseConnection
from feedsvc.adapters.web.sse_request import stream_request
from feedsvc.adapters.web.stream_response import GONE, StreamResponse
from feedsvc.core.errors import Refusal
from feedsvc.core.stream_plan import StreamPlan
from feedsvc.core.stream_token import StreamSealer
from feedsvc.ports import Claims
from feedsvc.runtime.client_context import ClientContext
from feedsvc.runtime.lifecycle import Lifecycle
from feedsvc.runtime.sse_client import SseClient


class SseFeed:
    """The ASGI application of `/v1/sse`."""

    def __init__(
        self,
        context: ClientContext,
        lifecycle: Lifecycle,
        authentication: Authentication,
        sealer: StreamSealer,
    ) -> None:
        self._context = context
        self._lifecycle = lifecycle
        self._authentication = authentication
        self._sealer = sealer
        self._pace = Pace()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._pace.turn()
        try:
            with self._context.tracer.span("feedsvc.upgrade", transport="sse"):
                claims, plan = await self._check(Request(scope, receive))
            if plan.ended:
                await Response(status_code=204, headers={"Cache-Control": "no-store"})(scope, receive, send)
                return
            await _Stream(self._context, self._lifecycle, scope, send, plan).serve(claims, receive)
        except ClientDisconnect:
            return
        except Refusal as refusal:
            self._context.metrics.count("requests_refused", code=refusal.code)
            await problem_response(refusal)(scope, receive, send)

    async def _check(self, request: Request) -> tuple[Claims, StreamPlan]:
        """Who asks, and for what. Raises `Refusal`, `ClientDisconnect`."""
        if self._lifecycle.draining:
            raise Refusal(
                "going_away", "this instance is shutting down; connect to another", retry_after_ms=1_000
            )
        claims = await self._authentication.stream(request.headers, request.url.query)
        asked = await stream_request(request, self._context.hub.limits.frame_bytes)
        return claims, StreamPlan(self._sealer, self._context.hub.policy.tenant(claims.claims), asked)


class _Stream:
    """One client, from the first thing that it takes to the line in the log that says how it ended."""

    def __init__(
        self, context: ClientContext, lifecycle: Lifecycle, scope: Scope, send: Send, plan: StreamPlan
    ) -> None:
        limits = context.hub.limits
        self._context = context
        self._lifecycle = lifecycle
        self._plan = plan
        self._id = secrets.token_urlsafe(9)
        self._response = StreamResponse(scope, limits.high_water_bytes, limits.peer_timeout_s, self._vanished)
        retry_ms = int(RETRY_MS * (0.5 + context.random()))
        self._connection = SseConnection(
            send, limits.high_water_bytes, plan.positions, retry_ms, self._response.closing
        )
        self._client = SseClient(context, self._connection, self._id, lifecycle.remove)

    async def serve(self, claims: Claims, receive: Receive) -> None:
        """The stream until it ends. Raises `Refusal` where it does not begin."""
        client, begun = self._client, False
        self._lifecycle.add(client)
        try:
            await self._begin(claims)
            begun = True
            await self._response.until_gone(self._connection, receive)
        finally:
            client.transport_closed()
            if begun:
                self._ended()
            self._response.ended()

    async def _begin(self, claims: Claims) -> None:
        try:
            await self._client.begin(claims, self._plan.requests, self._plan.by_binding)
        except Refusal:
            raise
        except Exception as error:
            reference = secrets.token_hex(4)
            fields = {"what": "stream", "reference": reference, "error": f"{type(error).__name__}: {error}"}
            self._report("client.failed", fields)
            raise Refusal("internal", f"logged as {reference}") from error
        self._report("connection.opened", {})
        if self._lifecycle.draining:  # it began while the topics were resolved
            self._client.close("going_away")

    def _vanished(self) -> None:
        self._client.close("pong_timeout")

    def _ended(self) -> None:
        connection = self._connection
        code, reason = connection.close_sent or GONE
        self._context.metrics.count("closes", code=str(code))
        self._report("connection.closed", {"code": code, "reason": reason})

    def _report(self, event: str, fields: Mapping[str, object]) -> None:
        self._context.report(event, {"connection": self._id, **fields})
