"""How many connections a tenant opens, one after another: 429 before the upgrade, 4301 behind it; others unharmed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from feedsvc.core.limits import Limits
from tests.runtime.world import until
from tests.web.asking import Application, application

LIMITS = Limits(upgrades_per_minute=3)


class Socket:
    """The peer of one upgrade, as an ASGI server plays it."""

    def __init__(self, asked: Application, jwt: str | None, query: str) -> None:
        headers = [] if jwt is None else [(b"authorization", f"Bearer {jwt}".encode())]
        scope = {
            "type": "websocket",
            "path": "/v1/ws",
            "raw_path": b"/v1/ws",
            "root_path": "",
            "scheme": "ws",
            "query_string": query.encode(),
            "headers": [(b"host", b"feedsvc"), *headers],
            "subprotocols": [],
            "extensions": {"websocket.http.response": {}},
        }
        self.sent: list[dict[str, Any]] = []
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._incoming.put_nowait({"type": "websocket.connect"})
        application: Any = asked.app
        self.task = asyncio.create_task(application(scope, self._incoming.get, self._send))

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    def say(self, **frame: Any) -> None:
        self._incoming.put_nowait({"type": "websocket.receive", "text": msgspec.json.encode(frame).decode()})

    async def answer(self, kind: str) -> dict[str, Any]:
        """The first message of this kind."""
        await until(lambda: any(message["type"] == kind for message in self.sent))
        return next(message for message in self.sent if message["type"] == kind)

    async def leave(self) -> None:
        self._incoming.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await self.task


@asynccontextmanager
async def socket(asked: Application, jwt: str | None = "alice", query: str = "") -> AsyncIterator[Socket]:
    opened = Socket(asked, jwt, query)
    try:
        yield opened
    finally:
        await opened.leave()


async def refused(asked: Application, jwt: str = "alice", query: str = "") -> dict[str, Any]:
    """The problem document of a refused upgrade, with `Retry-After` under that name."""
    async with socket(asked, None if query else jwt, query) as peer:
        start = await peer.answer("websocket.http.response.start")
        body = await peer.answer("websocket.http.response.body")
    headers = dict(start["headers"])
    assert headers[b"content-type"] == b"application/problem+json"
    found: dict[str, Any] = msgspec.json.decode(body["body"])
    assert found["status"] == start["status"]
    return {**found, "Retry-After": headers.get(b"retry-after", b"").decode()}


async def accepted(asked: Application, jwt: str = "alice") -> None:
    async with socket(asked, jwt) as peer:
        await peer.answer("websocket.accept")


async def test_a_tenant_that_upgrades_too_often_gets_429() -> None:
    """By JWT or ticket; what is refused costs nothing; who waits as told is let in, and others never notice."""
    async with application(LIMITS) as asked:
        ticket = (await asked.request("POST", "/v1/tickets")).json()["ticket"]
        for _ in range(3):
            await accepted(asked)
        for query in ("", f"ticket={ticket}", ""):
            problem = await refused(asked, query=query)
            assert (problem["status"], problem["code"]) == (429, "rate_limited")
            assert problem["Retry-After"] == "20"
        await accepted(asked, "other-tenant")
        asked.world.clock.advance(20)
        await accepted(asked)
        assert (await refused(asked))["code"] == "rate_limited"


async def test_credentials_in_a_first_frame_are_counted_too() -> None:
    """They come behind the upgrade, so the answer is the close code of the same meaning."""
    async with application(LIMITS) as asked:
        for _ in range(3):
            await accepted(asked)
        async with socket(asked, None) as peer:
            await peer.answer("websocket.accept")
            peer.say(type="auth", jwt="alice")
            close = await peer.answer("websocket.close")
        assert (close["code"], close["reason"]) == (4301, '{"retryAfterMs":20000}')
        async with socket(asked, None) as peer:
            peer.say(type="auth", jwt="other-tenant")
            welcome = await peer.answer("websocket.send")
        assert '"welcome"' in welcome["text"]


async def test_what_names_no_tenant_is_charged_to_nobody() -> None:
    async with application(LIMITS) as asked:
        for jwt in ("nobody", "expired", "no-tenant") * 3:
            assert (await refused(asked, jwt))["status"] == 401
        await accepted(asked)
