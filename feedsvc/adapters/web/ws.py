"""`GET /v1/ws`: the upgrade, then one client until its socket is gone.

The reader never awaits anything but the socket. Refused upgrades get an HTTP status and a problem document; after the
upgrade every refusal is a close code of the registry.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Mapping

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from feedsvc.adapters.web.asgi_connection import AsgiConnection
from feedsvc.adapters.web.credentials import check_origin, check_url, upgrade_jwt
from feedsvc.adapters.web.problems import problem_response
from feedsvc.adapters.web.server_protocol import protocol_of
from feedsvc.adapters.web.transport_connection import TransportConnection
from feedsvc.core.errors import Refusal
from feedsvc.core.messages import SUBPROTOCOL
from feedsvc.ports import AuthError, Claims
from feedsvc.runtime.client import Client, ClientContext
from feedsvc.runtime.lifecycle import Lifecycle

_UNSUPPORTED_DATA = 1003
_GONE = (1005, "")

Carrier = TransportConnection | AsgiConnection
"""By the server: ours carries ready frames itself, any other one through ASGI."""


class WebSocketFeed:
    """The ASGI application of `/v1/ws`."""

    def __init__(
        self,
        context: ClientContext,
        lifecycle: Lifecycle,
        allowed_origins: frozenset[str],
        high_water_bytes: int,
    ) -> None:
        self._context = context
        self._lifecycle = lifecycle
        self._allowed_origins = allowed_origins
        self._high_water_bytes = high_water_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        try:
            claims = await self._check(socket)
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
        headers: Headers = socket.headers
        check_origin(headers, self._allowed_origins)
        check_url(socket.url.query)
        jwt = upgrade_jwt(headers.getlist("authorization"), socket.scope.get("subprotocols", ()))
        if jwt is None:
            return None
        try:
            claims = await self._context.verifier.verify(jwt)
        except AuthError as error:
            raise Refusal(error.code, error.message) from None
        self._context.hub.policy.tenant(claims.claims)
        return claims

    async def _serve(self, scope: Scope, receive: Receive, send: Send, claims: Claims | None) -> None:
        connection_id = secrets.token_urlsafe(9)
        protocol = protocol_of(scope)
        if protocol is not None:
            carried = TransportConnection(protocol, self._high_water_bytes)
            await self._hold(carried, connection_id, receive, claims)
            return
        plain = AsgiConnection(send, self._high_water_bytes)
        writer = asyncio.get_running_loop().create_task(plain.run(), name=f"writer-{connection_id}")
        try:
            await self._hold(plain, connection_id, receive, claims)
        finally:
            writer.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await writer

    async def _hold(
        self, connection: Carrier, connection_id: str, receive: Receive, claims: Claims | None
    ) -> None:
        """One client until its socket is gone."""
        client = Client(self._context, connection, connection_id, self._lifecycle.remove)
        self._lifecycle.add(client)
        self._report("connection.opened", connection_id, {})
        try:
            client.start(claims)
            if self._lifecycle.draining:  # it began while this upgrade was checked
                client.close("going_away")
            code, reason = await _read(receive, client.receive, connection)
        finally:
            client.transport_closed()
        code, reason = connection.close_sent or (code, reason)
        metrics = self._context.metrics
        metrics.count("closes", code=str(code))
        metrics.count("frames_sent", connection.frames_sent)
        metrics.count("bytes_sent", connection.bytes_sent)
        self._report("connection.closed", connection_id, {"code": code, "reason": reason})

    def _report(self, event: str, connection_id: str, fields: Mapping[str, object]) -> None:
        self._context.report(event, {"connection": connection_id, **fields})


async def _read(receive: Receive, deliver: Callable[[str], None], connection: Carrier) -> tuple[int, str]:
    """Deliver text frames until the socket is gone; returns the close code and reason of the peer."""
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            return message.get("code", _GONE[0]), message.get("reason") or ""
        text = message.get("text")
        if text is None:
            connection.close(_UNSUPPORTED_DATA, "frames are text")
        else:
            deliver(text)
