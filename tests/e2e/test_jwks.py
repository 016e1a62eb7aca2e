"""Keys from a key server on a served process: rotation under clients, unknown keys, and outages."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.e2e.conftest import Documents, StartService
from tests.support.key_server import Answer, IssuerKey, KeyServer
from tests.support.service import Client, Service


@pytest.fixture
def server() -> Iterator[KeyServer]:
    with KeyServer() as server:
        yield server


@contextlib.asynccontextmanager
async def client_with(service: Service, jwt: str) -> AsyncIterator[Client]:
    """A connection with this JWT in the upgrade. Raises InvalidStatus."""
    headers = {"Authorization": f"Bearer {jwt}"}
    async with connect(service.url, additional_headers=headers, proxy=None) as socket:
        client = Client(socket)
        assert (await client.receive())["type"] == "welcome"
        yield client


async def upgrade_status(service: Service, jwt: str) -> int:
    """101, or the HTTP status of the refusal."""
    try:
        async with client_with(service, jwt):
            return 101
    except InvalidStatus as error:
        response = error.response
    assert json.loads(response.body or b"{}")["retryable"] == (response.status_code == 503)
    return response.status_code


async def refreshed(server: KeyServer) -> None:
    """Until a fetch that began after this call has ended: the one after it has begun."""
    await asyncio.to_thread(server.wait_for_requests, len(server.requests) + 2)


async def refreshed_once(server: KeyServer) -> None:
    """Until a fetch began after this call; a JWT that comes now waits for it."""
    await asyncio.to_thread(server.wait_for_requests, len(server.requests) + 1)


async def test_rotation_under_clients(
    start_service: StartService, server: KeyServer, database: Documents
) -> None:
    """AUT-05: through a rotation in the documented order nobody is refused or cut, and no event is missed."""
    tenant = database.name
    old, new = IssuerKey("old", "RS256"), IssuerKey("new")
    server.publish(old)
    service = start_service(jwt_secret="", jwks_url=server.url, jwks_refresh="1")
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(client_with(service, old.sign(tenant=tenant))) for _ in range(4)
        ]
        for client in clients:
            await client.subscribe("orders")

        async def everyone_sees(number: int, *keys: IssuerKey) -> None:
            database["orders"].insert_one({"_id": number})
            for client in clients:
                assert (await client.events(1))[0]["documentKey"] == {"_id": number}
            for key in keys:
                assert await upgrade_status(service, key.sign(tenant=tenant)) == 101
                for client in clients:
                    await client.send({"type": "auth", "jwt": key.sign(tenant=tenant)})
                    await client.until("authenticated")

        await everyone_sees(1, old)
        server.publish(old, new)
        await refreshed(server)
        await everyone_sees(2, old, new)
        server.answer = Answer(status=500)
        await refreshed(server)
        await everyone_sees(3, old, new)
        server.publish(new)
        await refreshed(server)
        await everyone_sees(4, new)
        assert await upgrade_status(service, old.sign(tenant=tenant)) == 401


async def test_an_unknown_kid_flood(
    start_service: StartService, server: KeyServer, database: Documents
) -> None:
    """AUT-04: 200 random kids in 2 s cost two requests at most, and valid clients connect in under 200 ms."""
    tenant = database.name
    key, forged = IssuerKey("k1"), IssuerKey("forged")
    server.publish(key)
    service = start_service(jwt_secret="", jwks_url=server.url)
    assert await upgrade_status(service, key.sign(tenant=tenant)) == 101
    before = len(server.requests)
    flood = []
    waits_s: list[float] = []
    for number in range(200):
        jwt = forged.sign(header={"kid": f"random-{number}"}, tenant=tenant)
        flood.append(asyncio.create_task(upgrade_status(service, jwt)))
        await asyncio.sleep(0.01)  # the pace of the flood
        if number % 40 == 20:
            began = time.monotonic()
            assert await upgrade_status(service, key.sign(tenant=tenant)) == 101
            waits_s.append(time.monotonic() - began)
    assert set(await asyncio.gather(*flood)) == {401}
    assert len(server.requests) - before <= 2
    # The middle one: a neighbour on the machine may hold up one connection, a fetch per kid would hold up all.
    assert len(waits_s) == 5 and statistics.median(waits_s) < 0.2


async def test_an_outage_is_not_the_fault_of_the_jwt(
    start_service: StartService, server: KeyServer, database: Documents
) -> None:
    """AUT-05: while nothing can be judged, an upgrade gets 503 and a first frame 4204; both work once keys come."""
    jwt = IssuerKey("k1").sign(tenant=database.name)
    server.answer = Answer(status=500)
    service = start_service(jwt_secret="", jwks_url=server.url)
    assert await upgrade_status(service, jwt) == 503
    async with connect(service.url, proxy=None) as socket:
        client = Client(socket)
        await client.send({"type": "auth", "jwt": jwt})
        assert (await client.closed())[0] == 4204
    key = IssuerKey("k1")
    server.publish(key)
    await refreshed_once(server)
    assert await upgrade_status(service, key.sign(tenant=database.name)) == 101


async def test_a_refresh_during_an_outage_leaves_the_connection_as_it_was(
    start_service: StartService, server: KeyServer, database: Documents
) -> None:
    """A new JWT that cannot be judged is answered by a retryable error; the old expiry and the subscriptions stay."""
    tenant = database.name
    key, new = IssuerKey("k1"), IssuerKey("k2")
    server.publish(key)
    service = start_service(jwt_secret="", jwks_url=server.url)
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(client_with(service, key.sign(tenant=tenant)))
        await client.subscribe("orders")
        short = await stack.enter_async_context(client_with(service, key.sign(tenant=tenant, ttl_s=2)))
        server.answer = Answer(status=500)
        for refreshing in (short, client):
            await refreshing.send({"type": "auth", "jwt": new.sign(tenant=tenant)})
            error = await refreshing.until("error")
            assert (error["code"], error["retryable"]) == ("source_unavailable", True)
        database["orders"].insert_one({"_id": 1})
        assert (await client.events(1))[0]["documentKey"] == {"_id": 1}
        assert (await short.closed())[0] == 4101
        server.publish(key, new)
        await refreshed_once(server)
        await client.send({"type": "auth", "jwt": new.sign(tenant=tenant)})
        await client.until("authenticated")
    log = service.log()
    assert "jwks.failed" in log and "jwks.changed" in log
