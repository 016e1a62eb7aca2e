"""`/v1/status` as an event stream of a served process: equal to the plain answer, and its ends over real sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import StartService
from tests.support.frames import received_status
from tests.support.service import Service, client_of, make_jwt
from tests.support.sse import Parser
from tests.support.sse_socket import SseSocket

pytestmark = pytest.mark.xdist_group("status-stream")
PEER_TIMEOUT_S = 3.0


@pytest.fixture(scope="module")
def service(start_for_module: StartService) -> Iterator[Service]:
    service = start_for_module(peer_timeout=str(PEER_TIMEOUT_S), drain="1")
    yield service
    service.kill()


class Reading:
    """The events of one response, as they come."""

    def __init__(self, response: httpx.Response) -> None:
        self._text = response.aiter_text()
        self._parser = Parser()
        self._events: list[dict[str, Any]] = []

    async def next(self) -> dict[str, Any]:
        """Data of the next event, with its `kind`. `StopAsyncIteration` at the end of the response."""
        async with asyncio.timeout(15):
            while not self._events:
                found = self._parser.feed(await anext(self._text))
                self._events += [
                    {"kind": kind, **received_status(data, event=kind)} for kind, data, _ in found
                ]
        return self._events.pop(0)


@asynccontextmanager
async def reading(service: Service, ttl_s: float = 600) -> AsyncIterator[Reading]:
    jwt = make_jwt("ops", scope="feedsvc:admin", ttl_s=ttl_s)
    headers = {"Authorization": f"Bearer {jwt}", "Accept": "text/event-stream"}
    url = f"http://127.0.0.1:{service.port}/v1/status"
    async with (
        httpx.AsyncClient(trust_env=False, verify=False, timeout=30) as http,
        http.stream("GET", url, headers=headers) as response,
    ):
        assert response.status_code == 200, await response.aread()
        yield Reading(response)


async def test_what_changes_is_told_within_seconds(service: Service, fresh_database: str) -> None:
    async with reading(service) as stream:
        assert (await stream.next())["connections"] == 0
        async with client_of(service, fresh_database) as client:
            await client.subscribe("orders")
            began = time.monotonic()
            while (status := await stream.next())["subscriptions"] == 0:
                pass
            assert time.monotonic() - began < 5
            assert (status["kind"], status["connections"]) == ("status", 1)
            assert "feedsvc_status_streams 1.0" in service.get("/metrics")[1]


async def test_a_jwt_that_ends_ends_it(service: Service) -> None:
    async with reading(service, ttl_s=1.2) as stream:
        while (event := await stream.next())["kind"] == "status":
            pass
        assert (event["kind"], event["code"], event["action"]) == ("close", 4101, "authenticate")
        with pytest.raises(StopAsyncIteration):
            await stream.next()


@pytest.mark.verify
async def test_a_peer_that_vanished_frees_its_place(service: Service) -> None:
    """TRA-02 for this stream; it costs the time-out."""
    jwt = make_jwt("ops", scope="feedsvc:admin")
    with SseSocket(service, jwt=jwt, target="/v1/status") as peer:
        await asyncio.to_thread(peer.read_until, b"event: status")
        peer.vanish()
        await asyncio.to_thread(service.wait_for, "/metrics", 200, "feedsvc_status_streams 0.0")
    assert '"code":4202' in service.log()


async def test_a_drain_is_watched_to_its_end(service: Service, fresh_database: str) -> None:
    """Last of the module. `draining` is told while clients leave, `close` when they are gone; it holds up no drain."""
    async with reading(service) as stream, client_of(service, fresh_database) as client:
        await client.subscribe("orders")
        leaving = asyncio.create_task(asyncio.to_thread(service.stop))
        last = event = await stream.next()
        while event["kind"] == "status":
            last, event = event, await stream.next()
        assert (last["state"], event["code"], event["action"]) == ("draining", 4200, "reconnect")
        assert await leaving == 0
    assert "Traceback" not in service.log()
