"""`GET` and `POST /v1/sse`: one client from its request until its response is over (protocol.md sections 2 and 10).

Everything that can be refused is refused before the first byte, as a problem document: credentials, parameters, the
token to resume after, each topic, the quotas. From then on the stream is a client like any other; `SseConnection`
writes what it is sent. Three things end it:

* this side closes: the `close` event leaves behind what was written before it, then the response and its socket end; a
  reader that takes nothing for `ABORT_AFTER_S` is cut off;
* the peer ends its side, or resets: `receive` says so;
* the peer vanishes: the kernel's acknowledgements stop (`peer_watch.py`).

A client that is gone before the first byte is noticed at the latest when its topics are resolved, which is bounded;
what it held is given back in one place, a `finally` that is entered before anything is taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Mapping

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from feedsvc.adapters.web.authentication import Authentication
from feedsvc.adapters.web.http_protocol import FeedHttpProtocol, http_protocol_of
from feedsvc.adapters.web.pace import Pace
from feedsvc.adapters.web.peer_watch import PeerWatch
from feedsvc.adapters.web.problems import problem_response
from feedsvc.adapters.web.server_protocol import ABORT_AFTER_S
from feedsvc.adapters.web.sse_connection import RETRY_MS, SseConnection
from feedsvc.adapters.web.sse_request import stream_request
from feedsvc.core.errors import Refusal
from feedsvc.core.stream_plan import StreamPlan
from feedsvc.core.stream_token import StreamSealer
from feedsvc.ports import Claims
from feedsvc.runtime.client import ClientContext
from feedsvc.runtime.lifecycle import Lifecycle
from feedsvc.runtime.sse_client import SseClient

_GONE = (1005, "")


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
        self._protocol: FeedHttpProtocol | None = http_protocol_of(scope)
        self._abort_timer: asyncio.TimerHandle | None = None
        retry_ms = int(RETRY_MS * (0.5 + context.random()))
        self._connection = SseConnection(
            send, limits.high_water_bytes, plan.positions, retry_ms, self._closing
        )
        self._client = SseClient(context, self._connection, self._id, lifecycle.remove)

    async def serve(self, claims: Claims, receive: Receive) -> None:
        """The stream until it ends. Raises `Refusal` where it does not begin."""
        client, begun = self._client, False
        self._lifecycle.add(client)
        try:
            await self._begin(claims)
            begun = True
            await self._until_gone(receive)
        finally:
            client.transport_closed()
            if begun:
                self._ended()
            if self._abort_timer is not None:
                self._abort_timer.cancel()

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

    async def _until_gone(self, receive: Receive) -> None:
        """Write until the response is over or the peer is."""
        protocol, watch = self._protocol, None
        if protocol is not None:
            limits = self._context.hub.limits
            if not protocol.begin_stream(limits.high_water_bytes):
                return
            watch = PeerWatch(protocol.transport, limits.peer_timeout_s, self._vanished)
        writer = asyncio.get_running_loop().create_task(self._connection.run(), name="writer")
        try:
            while (await receive())["type"] != "http.disconnect":
                pass  # what a request without a body may carry is nobody's
        finally:
            if watch is not None:
                watch.stop()
            writer.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await writer

    def _closing(self) -> None:
        """This side closed. What is written waits for a reader, but not for ever."""
        if self._protocol is not None:
            self._abort_timer = asyncio.get_running_loop().call_later(ABORT_AFTER_S, self._abort)

    def _vanished(self) -> None:
        self._client.close("pong_timeout")
        self._abort()

    def _abort(self) -> None:
        if self._protocol is not None:
            self._protocol.transport.abort()

    def _ended(self) -> None:
        connection, metrics = self._connection, self._context.metrics
        code, reason = connection.close_sent or _GONE
        metrics.count("closes", code=str(code))
        metrics.count("frames_sent", connection.frames_sent)
        metrics.count("bytes_sent", connection.bytes_sent)
        self._report("connection.closed", {"code": code, "reason": reason})

    def _report(self, event: str, fields: Mapping[str, object]) -> None:
        self._context.report(event, {"connection": self._id, **fields})
