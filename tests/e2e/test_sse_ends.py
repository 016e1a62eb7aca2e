"""How streams of server-sent events end: by either side, in silence, slowly, planned, and for good."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Documents, StartService
from tests.support.frames import received
from tests.support.service import Service, make_jwt
from tests.support.sse import Parser, opened, sse_url, stream_of
from tests.support.sse_socket import SseSocket

PEER_TIMEOUT_S = 3.0
SLOW_AFTER_S = 0.5


@pytest.fixture(scope="module")
def service(start_for_module: StartService) -> Iterator[Service]:
    service = start_for_module(
        peer_timeout=str(PEER_TIMEOUT_S), slow_after=str(SLOW_AFTER_S), heartbeat_interval="0.5"
    )
    yield service
    service.kill()


async def figures(service: Service) -> dict[str, float]:
    page = (await asyncio.to_thread(service.get, "/metrics"))[1]
    lines = (line.rsplit(" ", 1) for line in page.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in lines}


async def nothing_held(service: Service, within_s: float = 10.0) -> dict[str, float]:
    """Wait until no connection, topic or subscription is left; the figures then."""
    names = ("feedsvc_connections", "feedsvc_topics", "feedsvc_subscriptions")
    async with asyncio.timeout(within_s):
        while True:
            found = await figures(service)
            if not any(found[name] for name in names):
                return found


def closes(found: dict[str, float], code: int) -> float:
    return found.get(f'feedsvc_closes_total{{code="{code}"}}', 0.0)


async def test_a_peer_that_is_there_stays(service: Service, fresh_database: str) -> None:
    """Longer than any silence that is told, though it never sends anything."""
    async with stream_of(service, fresh_database, "quiet") as stream:
        async with asyncio.timeout(20):
            began = time.monotonic()
            while time.monotonic() - began < PEER_TIMEOUT_S * 0.9:
                await stream.receive()
        assert "close" not in stream.types()
        assert stream.types().count("heartbeat") > 3


async def test_a_client_that_closes_is_noticed_at_once(service: Service, fresh_database: str) -> None:
    """TRA-03: by its FIN, long before any time-out."""
    with SseSocket(service, fresh_database, "orders") as peer:
        await asyncio.to_thread(peer.read_until, b"event: live")
    await nothing_held(service, within_s=2.0)


async def test_a_reader_that_stops_is_closed_with_4201_and_resumes_without_loss(
    service: Service, database: Documents, fresh_database: str
) -> None:
    """What the service holds for it is bounded by the marks of its buffers, and others are not delayed."""
    orders = database["orders"]
    with SseSocket(service, fresh_database, "orders", buffer_bytes=4_096) as peer:
        head = await asyncio.to_thread(peer.read_until, b"event: live")
        before = await figures(service)
        async with stream_of(service, fresh_database, "orders") as other:
            await other.live()
            reading = asyncio.create_task(other.events(40))  # all the time, or it is slow as well
            for number in range(40):
                await asyncio.to_thread(orders.insert_one, {"_id": number, "text": "x" * 200_000})
            await reading
        after = await nothing_held(service, within_s=SLOW_AFTER_S + 10)
        rest = await asyncio.to_thread(peer.read_to_the_end)
    assert closes(after, 4201) == closes(before, 4201) + 1
    parser = Parser()
    body = _unchunked((head + rest).partition(b"\r\n\r\n")[2])
    seen = [
        received(data, event=kind)
        for kind, data, _ in parser.feed(body.decode(errors="replace"))
        if kind == "event"
    ]
    assert [frame["event"]["documentKey"]["_id"] for frame in seen] == list(range(len(seen)))
    assert len(seen) < 40
    async with stream_of(service, fresh_database, "orders", last_event_id=parser.last_event_id) as stream:
        events = await stream.events(40 - len(seen))
        assert [event["documentKey"]["_id"] for event in events] == list(range(len(seen), 40))


def _unchunked(body: bytes) -> bytes:
    """The payload of chunks (RFC 9112, section 7.1), up to where they were cut."""
    found = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size or b"0", 16)
        found, body = found + body[:length], body[length + 2 :]
    return found


async def test_a_jwt_that_expires_ends_its_stream_and_the_next_request(
    service: Service, database: Documents, fresh_database: str
) -> None:
    """AUT-01: `close` names code and action, the socket ends, and coming back with the same JWT gets 401."""
    given: dict[str, Any] = {
        "params": {"topic": '{"collection":"orders"}'},
        "headers": {"Authorization": f"Bearer {make_jwt(fresh_database, ttl_s=1.5)}"},
    }
    async with opened(service, "GET", **given) as stream:
        await stream.to_the_end()
        assert stream.seen[-1]["type"] == "close"
        assert (stream.seen[-1]["code"], stream.seen[-1]["action"]) == (4101, "authenticate")
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:
        answer = await client.get(sse_url(service), **given)
    assert (answer.status_code, answer.json()["code"]) == (401, "auth_expired")


async def test_a_drain_tells_every_stream_and_ends_it(
    start_service: StartService, database: Documents, fresh_database: str
) -> None:
    """DEP-03: `goaway` with a time that EventSource takes as `retry:`, then `close` 4200 and the end; one that does not
    read is cut off, and holds up nobody."""
    service = start_service(drain="1")
    with SseSocket(service, fresh_database, "orders", buffer_bytes=4_096) as stalled:
        await asyncio.to_thread(stalled.read_until, b"event: live")
        async with stream_of(service, fresh_database, "orders") as stream:
            await stream.live()
            for number in range(40):
                await asyncio.to_thread(database["orders"].insert_one, {"_id": number, "text": "x" * 200_000})
            await stream.events(40)
            began = time.monotonic()
            leaving = asyncio.create_task(asyncio.to_thread(service.stop))
            await stream.to_the_end()
            assert stream.types()[-2:] == ["goaway", "close"]
            assert stream.parser.retry_ms is not None and 1_000 <= stream.parser.retry_ms <= 3_000
            assert (stream.seen[-1]["code"], stream.seen[-1]["action"]) == (4200, "reconnect")
            assert await leaving == 0
            assert time.monotonic() - began < 8
    assert "Cancel" not in service.log()


async def test_streams_that_age_in_turn_miss_nothing_between_them(
    start_service: StartService, database: Documents, fresh_database: str
) -> None:
    """RES-15: the service ends each stream after a second, the client comes back as EventSource would; header and
    query in turn, no event twice."""
    service, orders = start_service(max_age="1"), database["orders"]
    seen: list[int] = []
    last: str | None = None
    writing: asyncio.Task[None] | None = None

    async def write() -> None:
        for number in range(60):
            await asyncio.to_thread(orders.insert_one, {"_id": number})

    for turn in range(100):
        by_query = {"resumeAfter": last} if last and turn % 2 else {}
        header = last if last and not turn % 2 else None
        async with stream_of(service, fresh_database, "orders", last_event_id=header, **by_query) as stream:
            if writing is None:
                await stream.live()
                writing = asyncio.create_task(write())
            while len(seen) < 60:
                try:
                    frame = await stream.receive()
                except EOFError:
                    break
                if frame["type"] == "event":
                    seen.append(frame["event"]["documentKey"]["_id"])
            last = stream.last_event_id
        if len(seen) == 60:
            break
    assert writing is not None
    await writing
    assert seen == list(range(60))
