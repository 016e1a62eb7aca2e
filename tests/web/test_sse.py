"""`/v1/sse` as an ASGI application: what begins a stream, what ends it, and what is given back."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
from starlette.types import ASGIApp

from feedsvc.core.limits import Limits
from feedsvc.core.messages import TopicRequest
from feedsvc.core.stream_token import StreamPositions, StreamSealer, request_key
from tests.runtime.world import DATABASE, until
from tests.support.frames import received
from tests.support.sse import Parser
from tests.web.asking import KEY, ORIGIN, Application, application

SEALER = StreamSealer((KEY,))


class Asking:
    """One request: its answer as it comes, and an end when told."""

    def __init__(self, app: ASGIApp, method: str, query: bytes, jwt: str | None) -> None:
        self.sent: list[dict[str, Any]] = []
        self.room = asyncio.Event()
        self.room.set()
        self.gone = asyncio.Event()
        headers = [] if jwt is None else [(b"authorization", f"Bearer {jwt}".encode())]
        scope = {
            "type": "http",
            "method": method,
            "path": "/v1/sse",
            "raw_path": b"/v1/sse",
            "root_path": "",
            "scheme": "http",
            "server": ("feedsvc", 80),
            "query_string": query,
            "headers": headers,
        }
        self.task = asyncio.create_task(_called(app, scope, self._receive, self._send))
        self._asked = False

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.room.wait()
        self.sent.append(dict(message))
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.gone.set()

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def body(self) -> bytes:
        return b"".join(part.get("body", b"") for part in self.sent[1:])

    @property
    def events(self) -> list[dict[str, Any]]:
        return [received(data, event=kind) for kind, data, _ in Parser().feed(self.body.decode())]

    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    async def until(self, kind: str) -> dict[str, Any]:
        await until(lambda: kind in self.types())
        return next(event for event in self.events if event["type"] == kind)

    async def answered(self) -> Any:
        """The status and the problem code of a request that began no stream."""
        await self.task
        found = json.loads(self.body) if self.body else {}
        return self.status, found.get("code")


async def _called(app: ASGIApp, *arguments: Any) -> None:
    await app(*arguments)


def request(
    web: Application, *topics: str, method: str = "GET", jwt: str | None = "alice", **parameters: str
) -> Asking:
    query = [*(("topic", json.dumps({"collection": topic})) for topic in topics), *parameters.items()]
    return Asking(web.app, method, urlencode(query).encode(), jwt)


@asynccontextmanager
async def serving(limits: Limits | None = None, **arguments: Any) -> AsyncIterator[Application]:
    async with application(limits, **arguments) as web:
        world = web.world
        world.oplog.create(DATABASE, "users")
        yield web
        assert not web.lifecycle.clients
        assert world.subscriptions() == world.hub.admission.connections == world.hub.admission.topics == 0


async def leave(asking: Asking) -> None:
    asking.gone.set()
    await asking.task


async def test_a_stream_lives_until_its_peer_is_gone() -> None:
    """And is told of in two lines of the log."""
    async with serving() as web:
        asking = request(web, "users")
        await asking.until("live")
        assert len(web.lifecycle.clients) == 1
        web.world.oplog.insert(DATABASE, "users", {"_id": 1})
        await asking.until("event")
        await leave(asking)
        assert asking.types() == ["welcome", "subscribed", "live", "event"]
        assert [name for name, _ in web.world.reports if name.startswith("connection.")] == [
            "connection.opened",
            "connection.closed",
        ]


async def test_a_client_that_was_told_to_stop_gets_204() -> None:
    """Whatever else it asks for: an EventSource stops at it."""
    positions = StreamPositions(SEALER, "acme", [request_key(TopicRequest("users"))])
    async with serving() as web:
        asking = request(web, "users", resumeAfter=positions.token(ended=True))
        assert await asking.answered() == (204, None)
        assert asking.body == b""
        assert dict(asking.sent[0]["headers"])[b"cache-control"] == b"no-store"
        other = StreamPositions(SEALER, "globex", [b"12345678"]).token(ended=True)
        assert await request(web, "users", resumeAfter=other).answered() == (400, "token_invalid")


@pytest.mark.parametrize("jwt", [None, "junk", "past", "expired"])
async def test_credentials_are_asked_for_first(jwt: str | None) -> None:
    """401, also where the rest is wrong too."""
    async with serving() as web:
        status, _ = await request(web, "users", jwt=jwt).answered()
        assert status == 401
        if jwt != "past":
            assert (await request(web, "nowhere", snapshot="x", jwt=jwt).answered())[0] == 401


async def test_other_methods_are_told_which_there_are() -> None:
    """HEAD too: what a GET would say is not known without a stream."""
    async with serving() as web:
        for method in ("HEAD", "PUT", "DELETE"):
            asking = request(web, "users", method=method)
            assert await asking.answered() == (405, "method_not_allowed")
            allow = dict(asking.sent[0]["headers"])[b"allow"].decode()
            assert set(allow.replace(" ", "").split(",")) == {"GET", "POST", "OPTIONS"}


async def test_while_draining_nobody_is_let_in() -> None:
    """503 with a time to come back."""
    async with serving() as web:
        web.lifecycle.draining = True
        asking = request(web, "users")
        assert await asking.answered() == (503, "going_away")
        assert b"retry-after" in dict(asking.sent[0]["headers"])


async def test_a_fault_of_ours_is_a_problem_with_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a word of what it was."""

    async def broken(*arguments: Any) -> Any:
        raise KeyError("secret")

    async with serving() as web:
        monkeypatch.setattr(web.world.hub, "resolve", broken)
        asking = request(web, "users")
        assert await asking.answered() == (500, "internal")
        assert b"secret" not in asking.body
        (fields,) = [fields for name, fields in web.world.reports if name == "client.failed"]
        assert str(fields["reference"]).encode() in asking.body


async def test_a_close_ends_the_response_behind_what_was_written() -> None:
    """The application returns, though its peer says nothing more."""
    async with serving() as web:
        asking = request(web, "users")
        await asking.until("live")
        (client,) = web.lifecycle.clients
        client.close("max_age")
        await asking.task
        assert asking.events[-1] == {
            "type": "close",
            "code": 4205,
            "action": "reconnect",
            "reason": "max_age",
        }
        assert asking.sent[-1]["more_body"] is False


async def test_cancelled_anywhere_it_gives_everything_back() -> None:
    """TRA-04: before the topics are resolved, before the first byte, in the middle of a send."""
    async with serving() as web:
        for rounds in range(12):
            asking = request(web, "users")
            asking.room.clear()
            for _ in range(rounds):
                await asyncio.sleep(0)
            asking.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking.task
            assert not web.lifecycle.clients
        asking = request(web, "users")
        await asking.until("live")
        await leave(asking)


async def test_a_peer_that_is_gone_while_the_first_byte_waits_gives_everything_back() -> None:
    """TRA-01: the writer is stuck, the reader is told."""
    async with serving() as web:
        asking = request(web, "users")
        asking.room.clear()
        await until(lambda: web.world.subscriptions() == 1)
        await leave(asking)
        assert asking.sent == []


async def test_the_change_stream_of_the_last_one_ends_with_it() -> None:
    """TRA-01: also where it never got a byte. Not at once: a page that is loaded again finds it open."""
    async with serving(level="collection") as web:
        world = web.world
        for number in range(3):
            asking = request(web, "users")
            if number:
                asking.room.clear()
            await until(lambda: world.subscriptions() == 1)
            await leave(asking)
        assert len(world.source.opened) == 1
        world.clock.advance(world.hub.limits.tail_linger_s + 1)
        await until(lambda: not world.hub.feeds)


async def test_a_topic_that_means_something_else_now_is_resynced_and_one_that_was_added_is_not() -> None:
    """The same request under other claims: without the digest in the token it would start now, without a word."""
    async with serving() as web:
        web.world.oplog.create(DATABASE, "mine", images=True)
        asking = request(web, "mine")
        await asking.until("live")
        parser = Parser()
        parser.feed(asking.body.decode())
        await leave(asking)
        again = request(web, "users", "mine", jwt="alice-of-b", resumeAfter=parser.last_event_id)
        resync = await again.until("resync")
        await until(lambda: again.types().count("live") == 2)
        mine = next(event["topic"] for event in again.events if event.get("id") == "1")
        assert (resync["topic"], resync["reason"]) == (mine, "topic_changed")
        assert again.types().count("resync") == 1
        await leave(again)


async def test_a_snapshot_that_was_cut_is_given_anew_and_the_token_goes_on_behind_it() -> None:
    """No id before `snapshotEnd`, so nothing is left out by a client that was cut in the middle of it."""
    async with serving() as web:
        web.world.oplog.create(DATABASE, "mine", images=True)
        web.world.oplog.insert(DATABASE, "mine", {"_id": 1, "owner": "a"})
        asking = request(web, "mine", snapshot="onResync")
        await asking.until("live")
        first = Parser()
        first.feed(asking.body.decode())
        await leave(asking)
        other = request(web, "mine", snapshot="onResync", jwt="alice-of-b", resumeAfter=first.last_event_id)
        await other.until("snapshotEnd")
        ids = [last for _, _, last in Parser().feed(other.body.decode())]
        before = other.types().index("snapshotEnd")
        assert set(ids[:before]) == {first.last_event_id}
        assert ids[before] != first.last_event_id
        await leave(other)


async def test_a_page_of_an_allowed_origin_may_send_the_header_of_a_reconnect() -> None:
    """The preflight of a fetch with `Last-Event-ID` and a JWT."""
    async with serving() as web:
        asked = {"Origin": ORIGIN, "Access-Control-Request-Method": "GET"}
        answer = await web.request("OPTIONS", "/v1/sse", jwt=None, headers=asked)
        assert answer.status_code == 204
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        allowed = answer.headers["access-control-allow-headers"].lower().replace(" ", "").split(",")
        assert {"authorization", "last-event-id", "content-type"} <= set(allowed)
        assert {"GET", "POST"} <= set(
            answer.headers["access-control-allow-methods"].replace(" ", "").split(",")
        )


async def test_a_tenant_without_room_is_told_when_to_come_back() -> None:
    """429 and `Retry-After`, before anything is resolved."""
    async with serving(msgspec.structs.replace(Limits(), connections_per_tenant=1)) as web:
        first = request(web, "users")
        await first.until("live")
        second = request(web, "users")
        assert await second.answered() == (429, "tenant_quota")
        assert int(dict(second.sent[0]["headers"])[b"retry-after"]) > 0
        await leave(first)
        third = request(web, "users")
        await third.until("live")
        await leave(third)
