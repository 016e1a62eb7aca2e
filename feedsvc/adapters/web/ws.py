"""`GET /v1/ws`: the upgrade, then one client until its socket is gone.

The reader never awaits anything but the socket. Refused upgrades get an HTTP status and a problem document; after the
upgrade every refusal is a close code of the registry.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Mapping

from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from feedsvc.adapters.web.asgi_connection import AsgiConnection
from feedsvc.adapters.web.authentication import Authentication
from feedsvc.adapters.web.pace import Pace
from feedsvc.adapters.web.problems import problem_response
from feedsvc.adapters.web.server_protocol import protocol_of
from feedsvc.adapters.web.transport_connection import TransportConnection
from feedsvc.core.errors import Refusal
from feedsvc.core.messages import SUBPROTOCOL
from feedsvc.ports import Claims
from feedsvc.runtime.client import Client
from feedsvc.runtime.client_context import ClientContext
from feedsvc.runtime.lifecycle import Lifecycle

_UNSUPPORTED_DATA = 1003
_GONE = (1005, "")


class WebSocketFeed:
    """The ASGI application of `/v1/ws`."""

    def __init__(
        self,
        context: ClientContext,
        lifecycle: Lifecycle,
        authentication: Authentication,
        high_water_bytes: int,
    ) -> None:
        self._context = context
        self._lifecycle = lifecycle
        self._authentication = authentication
        self._high_water_bytes = high_water_bytes
        self._pace = Pace()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._pace.turn()
        socket = WebSocket(scope, receive, send)
        try:
            with self._context.tracer.span("feedsvc.upgrade", transport="websocket") as note:
                claims = await self._check(socket)
                note(credentials=claims is not None)
        except Refusal as refusal:
            self._context.metrics.count("upgrades_refused", code=refusal.code)
            await socket.send_denial_response(problem_response(refusal))
            return
        await socket.accept(SUBPROTOCOL if SUBPROTOCOL in scope.get("subprotocols", ()) else None)
        await self._serve(scope, receive, send, claims)

    async def _check(self, socket: WebSocket) -> Claims | None:
        """The verified claims of the upgrade, if it brought any. Raises `Refusal`."""
        if self._lifecycle.draining:
            raise Refusal(
                "going_away", "this instance is shutting down; connect to another", retry_after_ms=1_000
            )
        subprotocols = socket.scope.get("subprotocols", ())
        claims = await self._authentication.upgrade(socket.headers, socket.url.query, subprotocols)
        if claims is not None:
            tenant = self._authentication.principal(claims).tenant
            self._context.hub.admission.check_pace(tenant, self._context.clock.monotonic())
        return claims

    async def _serve(self, scope: Scope, receive: Receive, send: Send, claims: Claims | None) -> None:
        protocol = protocol_of(scope)
        if protocol is None:
            await self._serve_by_asgi(receive, send, claims)
            return
        connection = TransportConnection(protocol)
        held = _Held(self._context, connection, self._lifecycle)
        if not connection.carry(self._context.wheel, held.receive, held.ended):
            held.ended(*_GONE)
            return
        held.start(claims)

    async def _serve_by_asgi(self, receive: Receive, send: Send, claims: Claims | None) -> None:
        connection = AsgiConnection(send, self._high_water_bytes)
        writer = asyncio.get_running_loop().create_task(connection.run(), name="writer")
        held = _Held(self._context, connection, self._lifecycle)
        code, reason = _GONE
        try:
            held.start(claims)
            code, reason = await _read(receive, held.receive)
        finally:
            held.ended(code, reason)
            writer.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await writer


class _Held:
    """One client from its first frame to the line in the log that says how it ended."""

    __slots__ = ("_client", "_connection", "_context", "_id", "_lifecycle")

    def __init__(
        self,
        context: ClientContext,
        connection: TransportConnection | AsgiConnection,
        lifecycle: Lifecycle,
    ) -> None:
        self._context = context
        self._connection = connection
        self._lifecycle = lifecycle
        self._id = secrets.token_urlsafe(9)
        self._client = Client(context, connection, self._id, lifecycle.remove)
        lifecycle.add(self._client)
        self._report("connection.opened", {})

    def start(self, claims: Claims | None) -> None:
        """Begin. After a fault of ours nobody would ever close the socket: it has no deadline yet."""
        try:
            self._client.start(claims)
        except Exception as error:
            self._failed("start", error)
        if self._lifecycle.draining:  # it began while this upgrade was checked
            self._client.close("going_away")

    def receive(self, text: str | None) -> None:
        """A message; what goes wrong with it is ours, and ends this connection alone."""
        if text is None:
            self._connection.close(_UNSUPPORTED_DATA, "frames are text")
            return
        try:
            self._client.receive(text)
        except Exception as error:
            self._failed("receive", error)

    def ended(self, code: int, reason: str) -> None:
        """The socket is gone; `code` and `reason` are the peer's where this side did not close."""
        connection = self._connection
        self._client.transport_closed()
        code, reason = connection.close_sent or (code, reason)
        self._context.metrics.count("closes", code=str(code))
        self._report("connection.closed", {"code": code, "reason": reason})

    def _failed(self, what: str, error: Exception) -> None:
        self._report("client.failed", {"what": what, "error": f"{type(error).__name__}: {error}"})
        self._client.close("internal")

    def _report(self, event: str, fields: Mapping[str, object]) -> None:
        self._context.report(event, {"connection": self._id, **fields})


async def _read(receive: Receive, deliver: Callable[[str | None], None]) -> tuple[int, str]:
    """Deliver messages until the socket is gone; returns the close code and reason of the peer."""
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            return message.get("code", _GONE[0]), message.get("reason") or ""
        deliver(message.get("text"))
