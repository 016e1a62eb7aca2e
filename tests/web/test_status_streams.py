"""`/v1/status` as an event stream: what it sends, to whom, and each way in which it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from feedsvc.core.limits import Limits
from feedsvc.core.status import Status
from feedsvc.testing import MemoryVerifier
from tests.runtime.world import claims, until
from tests.support.frames import received_status
from tests.support.sse import Parser
from tests.web.asking import Application, application
from tests.web.test_asgi_connection import Peer, settle

VERIFIER = MemoryVerifier(
    {
        "operator": claims(scopes="feedsvc:admin"),
        "for-a-minute": claims(scopes="feedsvc:admin", left_s=60),
        "alice": claims(),
    }
)
LIMITS = Limits(status_streams=2, slow_after_s=10, max_age_s=1_000, status_interval_s=1_000)
"""The tests call `tick` themselves."""


class Reader:
    """One request for the stream, without a server: what it was sent, and its end."""

    def __init__(self, asked: Application, jwt: str) -> None:
        self.peer = Peer()
        self._parser = Parser()
        self._read = 0
        self._gone = asyncio.Event()
        headers = {"authorization": f"Bearer {jwt}", "accept": "text/event-stream"}
        scope = {
            "type": "http", "method": "GET", "path": "/v1/status", "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }  # fmt: skip
        self.task = asyncio.create_task(asked.app(scope, self._receive, self._send))

    async def _send(self, message: Any) -> None:
        await self.peer.send(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self._gone.set()

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def take(self) -> list[tuple[str, dict[str, Any]]]:
        """The events since the last time."""
        await settle()
        new, self._read = self.peer.taken[self._read :], len(self.peer.taken)
        body = b"".join(part["body"] for part in new if part["type"] == "http.response.body")
        return [
            (kind, received_status(data, event=kind)) for kind, data, _ in self._parser.feed(body.decode())
        ]

    async def closed(self) -> tuple[int, str]:
        """Code and action of the one event that is left, behind which the response is over."""
        ((kind, frame),) = await self.take()
        assert kind == frame["type"] == "close"
        assert self.peer.taken[-1]["more_body"] is False
        return frame["code"], frame["action"]

    @property
    def head(self) -> tuple[int, Mapping[bytes, bytes]]:
        return self.peer.taken[0]["status"], dict(self.peer.taken[0]["headers"])

    async def leave(self) -> None:
        """As a server says that the peer is gone."""
        self.peer.open.set()
        self._gone.set()
        await asyncio.wait_for(self.task, 5)


@asynccontextmanager
async def reading(*jwts: str, limits: Limits = LIMITS) -> AsyncIterator[tuple[Application, list[Reader]]]:
    """The readers have taken what comes at once."""
    async with application(limits, check=VERIFIER) as asked:
        readers = [Reader(asked, jwt) for jwt in jwts]
        await settle()
        yield asked, readers
        for reader in readers:
            await reader.leave()
        assert len(asked.status_streams) == 0


async def test_it_begins_with_the_status_and_repeats_it() -> None:
    async with reading("operator") as (asked, [reader]):
        status, headers = reader.head
        assert (status, headers[b"content-type"]) == (200, b"text/event-stream; charset=utf-8")
        assert (headers[b"cache-control"], headers[b"vary"]) == (b"no-store", b"Accept")
        for _ in range(3):
            ((kind, frame),) = await reader.take()
            plain = await asked.request("GET", "/v1/status", jwt="operator")
            assert (kind, frame) == ("status", plain.json())
            assert msgspec.convert(frame, Status) == asked.status()
            asked.world.clock.advance(1)
            asked.status_streams.tick()


async def test_the_timer_gives_all_readers_the_same_status_gathered_once() -> None:
    async with reading("operator", "operator", limits=Limits(status_interval_s=0.01)) as (asked, readers):
        for reader in readers:
            await reader.take()
        gathered, inner = 0, asked.status

        def counted() -> Status:
            nonlocal gathered
            gathered += 1
            return inner()

        asked.status = counted  # type: ignore[assignment]
        await until(lambda: gathered >= 3)
        asked.status = inner
        one, two = [await reader.take() for reader in readers]
        assert gathered <= len(one) <= gathered + 1 and one[:gathered] == two[:gathered]


@pytest.mark.parametrize(
    ("headers", "status"), [({"Accept": "text/event-stream"}, 403), ({"Accept": "*/*"}, 403)]
)
async def test_the_stream_needs_the_scope_too(headers: dict[str, str], status: int) -> None:
    async with application(LIMITS, check=VERIFIER) as asked:
        response = await asked.request("GET", "/v1/status", jwt="alice", headers=headers)
        assert response.status_code == status
        assert len(asked.status_streams) == 0


async def test_head_opens_none() -> None:
    async with application(LIMITS, check=VERIFIER) as asked:
        headers = {"Accept": "text/event-stream"}
        response = await asked.request("HEAD", "/v1/status", jwt="operator", headers=headers)
        assert (response.status_code, response.headers["content-type"]) == (200, "application/json")


async def test_one_too_many_is_refused_and_may_come_later() -> None:
    async with reading("operator", "operator") as (asked, readers):
        asking = {"jwt": "operator", "headers": {"Accept": "text/event-stream"}}
        refused = await asked.request("GET", "/v1/status", **asking)  # type: ignore[arg-type]
        assert (refused.status_code, refused.json()["code"]) == (503, "connection_limit")
        assert int(refused.headers["retry-after"]) > 0
        assert (await asked.request("GET", "/v1/status", jwt="operator")).status_code == 200
        await readers.pop().leave()
        readers.append(Reader(asked, "operator"))
        assert [kind for kind, _ in await readers[-1].take()] == ["status"]


async def test_it_ends_with_its_jwt_and_says_nothing_after_it() -> None:
    async with reading("for-a-minute") as (asked, [reader]):
        await reader.take()
        asked.world.clock.advance(60)
        asked.status_streams.tick()
        assert await reader.closed() == (4101, "authenticate")


async def test_it_ends_at_the_age_of_connections() -> None:
    async with reading("operator") as (asked, [reader]):
        await reader.take()
        asked.world.clock.advance(LIMITS.max_age_s)
        asked.status_streams.tick()
        assert await reader.closed() == (4205, "reconnect")


async def test_for_a_reader_that_stops_one_status_waits_and_no_more() -> None:
    """What it gets when it reads on is the newest but one, not a history; the others are not held up."""
    async with reading("operator", "operator") as (asked, [slow, quick]):
        for reader in (slow, quick):
            await reader.take()
        slow.peer.open.clear()
        for _ in range(9):
            asked.world.clock.advance(1)
            asked.status_streams.tick()
            assert len(await quick.take()) == 1
        slow.peer.open.set()
        (status,) = await slow.take()
        assert status[1]["uptimeSeconds"] == 1
        asked.status_streams.tick()
        assert (await slow.take())[0][1]["uptimeSeconds"] == 9


async def test_a_reader_that_takes_nothing_for_too_long_is_closed() -> None:
    async with reading("operator") as (asked, [reader]):
        await reader.take()
        reader.peer.open.clear()
        for _ in range(12):
            asked.status_streams.tick()
            await settle()
            asked.world.clock.advance(1)
        reader.peer.open.set()
        await settle()
        (waited, end) = await reader.take()
        assert (waited[0], end[1]["code"], end[1]["action"]) == ("status", 4201, "reconnect")


async def test_the_end_of_the_process_ends_all_and_begins_none() -> None:
    async with reading("operator", "operator") as (asked, readers):
        for reader in readers:
            await reader.take()
        asked.lifecycle.draining = True
        asked.status_streams.close()
        for reader in readers:
            (last, end) = await reader.take()
            assert (last[1]["state"], end[1]["code"], end[1]["action"]) == ("draining", 4200, "reconnect")
        headers = {"Accept": "text/event-stream"}
        refused = await asked.request("GET", "/v1/status", jwt="operator", headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (503, "going_away")


async def test_a_status_that_fails_ends_them_with_a_reference_in_the_log() -> None:
    async with reading("operator", limits=Limits(status_interval_s=0.01)) as (asked, [reader]):

        def fails() -> Status:
            raise RuntimeError("secret")

        asked.status = fails  # type: ignore[assignment]
        await until(lambda: asked.world.reported("status.closed"))
        assert (await reader.take())[-1][1]["code"] == 4203
        (fields,) = [fields for event, fields in asked.world.reports if event == "request.failed"]
        assert "RuntimeError: secret" in str(fields["error"])
        assert b"secret" not in b"".join(part.get("body", b"") for part in reader.peer.taken)
