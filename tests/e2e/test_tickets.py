"""Tickets of served processes: a browser's way in, on any instance, and in no line of any log."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from feedsvc.core.limits import Limits
from feedsvc.core.tickets import TicketSealer
from tests.e2e.conftest import Documents, StartService
from tests.support.service import Client, Service, make_jwt, token_key
from tests.support.sse import opened

LIMITS = Limits()
ORIGIN = "https://app.example"


@pytest.fixture(scope="module")
def service(start_for_module: StartService) -> Iterator[Service]:
    service = start_for_module(allowed_origins=ORIGIN)
    yield service
    service.kill()


async def issue(service: Service, tenant: str, **claims: Any) -> str:
    """A ticket for a JWT of this tenant."""
    async with httpx.AsyncClient(trust_env=False, verify=False) as http:
        answer = await http.post(
            f"http://127.0.0.1:{service.port}/v1/tickets",
            headers={"Authorization": f"Bearer {make_jwt(tenant, **claims)}", "Origin": ORIGIN},
        )
    assert answer.status_code == 200, answer.text
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    ticket: str = answer.json()["ticket"]
    return ticket


def aged(service: Service, tenant: str, age_s: float) -> str:
    """A ticket that this service issued some time ago, as far as it can tell."""
    keys = [base64.urlsafe_b64decode(f"{key}==") for key in service.token_keys.split(",")]
    sealer = TicketSealer(keys, lifetime_s=LIMITS.ticket_lifetime_s, max_chars=LIMITS.ticket_chars)
    now = time.time()
    return sealer.issue("alice", now + 600, frozenset(), {"tenant": tenant}, now - age_s)[0]


async def refusal(service: Service, ticket: str) -> list[tuple[int, str]]:
    """How an upgrade and a stream with this ticket are refused: status and code."""
    with pytest.raises(InvalidStatus) as refused:
        async with connect(f"{service.url}?ticket={ticket}", proxy=None):
            pass
    response = refused.value.response
    assert response.body is not None
    found = [(response.status_code, httpx.Response(200, content=bytes(response.body)).json()["code"])]
    async with httpx.AsyncClient(trust_env=False, verify=False) as http:
        url = f"http://127.0.0.1:{service.port}/v1/sse"
        answer = await http.get(url, params={"ticket": ticket, "topic": '{"collection":"orders"}'})
    return [*found, (answer.status_code, answer.json()["code"])]


async def test_a_ticket_opens_feeds_with_the_rights_of_its_jwt(
    service: Service, database: Documents, fresh_database: str
) -> None:
    """Several at once, by WebSocket and by server-sent events, and each sees its own tenant."""
    ticket = await issue(service, fresh_database)
    url = f"{service.url}?ticket={ticket}"
    async with (
        connect(url, proxy=None, origin=ORIGIN) as one,  # type: ignore[arg-type]
        connect(url, proxy=None) as two,
    ):
        for client in (Client(one), Client(two)):
            assert (await client.receive())["type"] == "welcome"
            await client.subscribe("orders")
            database["orders"].insert_one({"x": 1})
            assert (await client.events(1))[0]["ns"] == {"coll": "orders"}


async def test_a_connection_by_ticket_ends_with_its_jwt(service: Service, fresh_database: str) -> None:
    """It was no longer needed by then, but the rights that it carried are over; a refresh would keep them."""
    ticket = await issue(service, fresh_database, ttl_s=3)
    async with (
        connect(f"{service.url}?ticket={ticket}", proxy=None) as one,
        connect(f"{service.url}?ticket={ticket}", proxy=None) as two,
    ):
        refreshed = Client(two)
        await refreshed.receive()
        await refreshed.send({"type": "auth", "jwt": make_jwt(fresh_database)})
        await refreshed.until("authenticated")
        assert (await Client(one).closed())[0] == 4101
        await refreshed.send({"type": "ping"})
        await refreshed.until("pong")
    assert await refusal(service, ticket) == [(401, "auth_expired")] * 2


async def test_instances_in_the_middle_of_a_rotation_take_each_others_tickets(
    start_service: StartService, fresh_database: str
) -> None:
    """The step at which the sealing key changes; a ticket is gone before the next one."""
    keys = token_key(), token_key()
    before = start_service(allowed_origins=ORIGIN, token_keys=",".join(keys))
    after = start_service(allowed_origins=ORIGIN, token_keys=",".join(reversed(keys)))
    tickets = {service.port: await issue(service, fresh_database) for service in (before, after)}
    for service in (before, after):
        for ticket in tickets.values():
            async with connect(f"{service.url}?ticket={ticket}", proxy=None) as socket:
                assert (await Client(socket).receive())["type"] == "welcome"


async def test_an_old_or_damaged_ticket_is_401(service: Service, fresh_database: str) -> None:
    ticket = await issue(service, fresh_database)
    other = "A" if ticket[20] != "A" else "B"
    for damaged in (ticket[:-1], ticket[:20] + other + ticket[21:], "junk", "", "a" * 6_500):
        assert await refusal(service, damaged) == [(401, "auth_invalid")] * 2
    assert await refusal(service, aged(service, fresh_database, 31)) == [(401, "auth_expired")] * 2
    async with connect(f"{service.url}?ticket={aged(service, fresh_database, 20)}", proxy=None) as socket:
        assert (await Client(socket).receive())["type"] == "welcome"


async def test_no_log_line_holds_a_ticket(start_service: StartService, fresh_database: str) -> None:
    """Used, refused, in a request that is broken, on a path that is none, and in what uvicorn says itself."""
    service = start_service(allowed_origins=ORIGIN)
    tickets = [await issue(service, fresh_database), aged(service, fresh_database, 60), "dGhpcyBpcyBub25l"]
    for ticket in tickets:
        for query in (f"ticket={ticket}", f"TICKET={ticket}", f"x=1&ticket={ticket}&ticket={ticket}"):
            try:
                async with connect(f"{service.url}?{query}", proxy=None) as socket:
                    await socket.send("{")
            except InvalidStatus:
                pass
            for path in ("/v1/sse", "/v1/nowhere", "/v1/status", "/v1/tickets", "/v1/ws"):
                await asyncio.to_thread(service.get, f"{path}?{query}")
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(
            f"GET /v1/ws?ticket={ticket} HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n"
            f"GET /v1/ws?ticket={ticket} HTTP/9\r\nbad\r\n\r\n".encode()
        )
        await reader.read(1)
        writer.close()
    assert service.stop() == 0
    log = service.log()
    assert '"connection.closed"' in log
    for ticket in tickets:
        assert ticket not in log
        assert ticket[:30] not in log


async def test_a_stream_by_ticket(service: Service, database: Documents, fresh_database: str) -> None:
    ticket = await issue(service, fresh_database)
    given = {"ticket": ticket, "topic": '{"collection":"orders"}'}
    async with opened(service, "GET", params=given, headers={"Origin": ORIGIN}) as stream:
        assert stream.response.headers["access-control-allow-origin"] == ORIGIN
        await stream.live()
        database["orders"].insert_one({"_id": 1})
        assert (await stream.events(1))[0]["documentKey"] == {"_id": 1}
