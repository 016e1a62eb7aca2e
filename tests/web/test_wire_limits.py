"""Limits that no test can reach at their defaults in time, made small, as clients meet them on a socket: the documented
answer and nothing else, while another client goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from feedsvc.core.limits import Limits
from feedsvc.ports import Claims
from tests.runtime.world import DATABASE, verifier
from tests.support.frames import Frame, received
from tests.web.asking import Application
from tests.web.served import served


class Bench:
    """A served application and the clients of a test, of which the first one, of another tenant's, must not notice."""

    def __init__(self, web: Application, port: int, stack: contextlib.AsyncExitStack) -> None:
        self.web = web
        self.http = f"http://127.0.0.1:{port}"
        self._url = f"ws://127.0.0.1:{port}/v1/ws"
        self._stack = stack

    async def client(self, jwt: str | None = "alice") -> ClientConnection:
        headers = {} if jwt is None else {"Authorization": f"Bearer {jwt}"}
        return await self._stack.enter_async_context(
            connect(self._url, additional_headers=headers, proxy=None)
        )

    async def stream(self, topic: dict[str, Any]) -> httpx.Response:
        """The head of the answer, or all of it where it is none of a stream."""
        client = await self._stack.enter_async_context(httpx.AsyncClient(trust_env=False, verify=False))
        asked = {"topic": json.dumps(topic)}
        bearer = {"Authorization": "Bearer alice"}
        response = await self._stack.enter_async_context(
            client.stream("GET", f"{self.http}/v1/sse", params=asked, headers=bearer)
        )
        if response.status_code != 200:
            await response.aread()
        return response


@asynccontextmanager
async def bench(**arguments: Any) -> AsyncIterator[Bench]:
    async with served(**arguments) as (web, port), contextlib.AsyncExitStack() as stack:
        found = Bench(web, port, stack)
        web.world.oplog.create("app_globex", "users")
        other = await found.client("other-tenant")
        await say(other, "subscribe", id="s", topic={"collection": "users"})
        await until(other, "live")
        yield found
        web.world.oplog.insert("app_globex", "users", {"_id": 1})
        assert (await until(other, "event"))["event"]["documentKey"] == {"_id": 1}


async def say(peer: ClientConnection, type: str, **fields: Any) -> None:
    await peer.send(json.dumps({"type": type, **fields}))


async def until(peer: ClientConnection, type: str) -> Frame:
    """The next frame of a type; before it no error."""
    async with asyncio.timeout(10):
        while True:
            frame = received(await peer.recv(decode=True))
            if frame["type"] == type:
                return frame
            assert frame["type"] != "error", frame


async def closed(peer: ClientConnection) -> tuple[int, Any]:
    """Close code and reason, which is JSON where the client is asked to wait; before it no error."""
    with contextlib.suppress(ConnectionClosed):
        await until(peer, "no such type")
    assert peer.close_code is not None
    return peer.close_code, json.loads(peer.close_reason or "null")


async def test_sockets_without_credentials() -> None:
    """`waiting_sockets`: 4300 with a time, for those who bring none; credentials make room."""
    async with bench(limits=Limits(waiting_sockets=2)) as found:
        waiting = [await found.client(None) for _ in range(2)]
        assert await closed(await found.client(None)) == (4300, {"retryAfterMs": 10_000})
        await until(await found.client(), "welcome")
        await say(waiting[0], "auth", jwt="alice")
        await until(waiting[0], "welcome")
        third = await found.client(None)
        await say(third, "auth", jwt="alice")
        await until(third, "welcome")


class Slow:
    """A verifier that lets one JWT wait."""

    def __init__(self) -> None:
        self._known = verifier()
        self.go = asyncio.Event()

    async def verify(self, jwt: str) -> Claims:
        if jwt == "alice":
            await self.go.wait()
        return await self._known.verify(jwt)


async def test_frames_behind_an_unanswered_auth() -> None:
    """`pending_frames` and `pending_bytes`: 4301 with a time; as many as that are answered in their order."""
    limits = Limits(pending_frames=4, pending_bytes=200)
    for frames, fits in ((4, True), (5, False)):
        check = Slow()
        async with bench(limits=limits, check=check) as found:
            peer = await found.client(None)
            await say(peer, "auth", jwt="alice")
            for _ in range(frames):
                await say(peer, "ping")
            if fits:
                check.go.set()
                for _ in range(frames):
                    await until(peer, "pong")
            else:
                assert await closed(peer) == (4301, {"retryAfterMs": 5_000})
            check.go.set()
    async with bench(limits=limits, check=(check := Slow())) as found:
        peer = await found.client(None)
        await say(peer, "auth", jwt="alice")
        await say(peer, "ping", filler="x" * 200)
        assert await closed(peer) == (4301, {"retryAfterMs": 5_000})
        check.go.set()


async def test_refreshes_of_one_connection() -> None:
    """`refreshes_per_minute`: an error that says when to come again; rights, topics and events stay."""
    async with bench(limits=Limits(refreshes_per_minute=2)) as found:
        peer = await found.client()
        await say(peer, "subscribe", id="s", topic={"collection": "users"})
        await until(peer, "live")
        for _ in range(2):
            await say(peer, "auth", jwt="alice-later")
            await until(peer, "authenticated")
        await say(peer, "auth", jwt="alice-later")
        error = await until_error(peer)
        assert (error["code"], error["retryable"], error["retryAfterMs"]) == ("rate_limited", True, 5_000)
        found.web.world.oplog.insert(DATABASE, "users", {"_id": 1})
        await until(peer, "event")


async def until_error(peer: ClientConnection) -> Frame:
    async with asyncio.timeout(10):
        while (frame := received(await peer.recv(decode=True)))["type"] != "error":
            pass
    return frame


async def test_filters_that_every_change_is_asked() -> None:
    """`conditions_per_change`: `topic_limit` on either transport, saying what to do; what is cheap still fits."""
    async with bench(limits=Limits(conditions_per_change=4)) as found:
        peer = await found.client()
        for number in range(2):
            topic = {"collection": "users", "filter": {"v": {"$gt": number}}}
            await say(peer, "subscribe", id=f"s{number}", topic=topic)
            await until(peer, "live")
        topic = {"collection": "users", "filter": {"v": {"$gt": 2}}}
        await say(peer, "subscribe", id="x", topic=topic)
        error = await until_error(peer)
        assert (error["id"], error["code"], error["retryable"]) == ("x", "topic_limit", True)
        assert "$eq or $in" in error["message"]
        response = await found.stream(topic)
        assert (response.status_code, response.json()["code"]) == (429, "topic_limit")
        assert "$eq or $in" in response.json()["detail"]
        await say(peer, "subscribe", id="y", topic={"collection": "users", "filter": {"v": 2}})
        await until(peer, "live")


async def test_connections_that_a_tenant_opens() -> None:
    """`upgrades_per_minute`: streams count as upgrades do, 429 with `Retry-After` for both."""
    async with bench(limits=Limits(upgrades_per_minute=2)) as found:
        await until(await found.client(), "welcome")
        assert (await found.stream({"collection": "users"})).status_code == 200
        response = await found.stream({"collection": "users"})
        assert (response.status_code, response.json()["code"]) == (429, "rate_limited")
        assert response.headers["retry-after"] == "30"
        bearer = {"Authorization": "Bearer alice"}
        upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
        async with httpx.AsyncClient(trust_env=False, verify=False) as client:
            key = {"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
            response = await client.get(f"{found.http}/v1/ws", headers={**bearer, **upgrade, **key})
        assert (response.status_code, response.json()["code"]) == (429, "rate_limited")
        assert response.headers["retry-after"] == "30"


async def test_what_a_resume_may_replay() -> None:
    """`max_replay_bytes`: events as far as it goes, `resync`, `live`, and what comes then."""
    limits = msgspec.structs.replace(Limits(), ring_records=3, max_replay_bytes=4_000, high_water_bytes=1_000)
    async with bench(limits=limits) as found:
        peer = await found.client()
        await say(peer, "subscribe", id="s", topic={"collection": "users"})
        await until(peer, "live")
        for number in range(40):
            found.web.world.oplog.insert(DATABASE, "users", {"_id": number})
        first = (await until(peer, "event"))["event"]["_id"]
        while (await until(peer, "event"))["event"]["documentKey"] != {"_id": 39}:
            pass
        back = await found.client()
        await say(back, "subscribe", id="s", topic={"collection": "users"}, resumeAfter=first)
        assert (await until(back, "subscribed"))["resumed"]
        assert (await until(back, "resync"))["reason"] == "replay_too_large"
        await until(back, "live")
        found.web.world.oplog.insert(DATABASE, "users", {"_id": 40})
        assert (await until(back, "event"))["event"]["documentKey"] == {"_id": 40}


async def test_documents_that_a_snapshot_may_read() -> None:
    """`max_snapshot_documents`: the subscription ends with a reason and is not to be asked for again as it is."""
    async with bench(limits=Limits(max_snapshot_documents=3)) as found:
        for number in range(5):
            found.web.world.oplog.insert(DATABASE, "users", {"_id": number})
        peer = await found.client()
        await say(peer, "subscribe", id="s", topic={"collection": "users"}, snapshot="always")
        ended = await until(peer, "unsubscribed")
        assert (ended["code"], ended["resubscribe"]) == ("snapshot_too_large", False)
        await say(peer, "subscribe", id="t", topic={"collection": "users"})
        await until(peer, "live")
