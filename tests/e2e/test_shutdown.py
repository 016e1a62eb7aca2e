"""SIGTERM with clients: told first, closed with 4200, spread over the drain time, and the process exits with 0."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.e2e.conftest import Documents, StartService
from tests.support.service import JWT_SECRET, Client, Service, client_of, make_jwt

DRAIN_S = 2.0


@pytest.fixture
def service(start_service: StartService) -> Service:
    return start_service(drain=str(DRAIN_S))


async def ended(client: Client) -> tuple[float, int]:
    """When and with what the server closed."""
    code, _ = await client.closed()
    return time.monotonic(), code


async def test_clients_are_told_and_closed_within_the_drain_time_and_the_exit_code_is_0(
    service: Service, database: Documents, fresh_database: str
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client_of(service, fresh_database)) for _ in range(20)]
        for client in clients:
            await client.subscribe("orders")
        waiting = Client(await stack.enter_async_context(connect(service.url, proxy=None)))
        database["orders"].insert_one({"_id": 1})
        await asyncio.gather(*(client.events(1) for client in clients))
        began = time.monotonic()
        exit_code = asyncio.create_task(asyncio.to_thread(service.stop))
        ends = await asyncio.gather(*map(ended, clients), ended(waiting))
        assert await exit_code == 0
        assert time.monotonic() - began < DRAIN_S + 3
    assert {code for _, code in ends} == {4200}
    closes = sorted(at - began for at, _ in ends)
    assert closes[-1] < DRAIN_S + 0.5
    assert closes[-1] - closes[0] > DRAIN_S / 4
    for client in clients:
        assert [frame["type"] for frame in client.seen].count("event") == 1
    hints = [
        frame["reconnectAfterMs"] for client in clients for frame in client.seen if frame["type"] == "goaway"
    ]
    assert len(hints) == len(clients)
    assert all(0 <= hint <= DRAIN_S * 1000 for hint in hints)
    assert len(set(hints)) > 10
    (token,) = clients[0].tokens.values()
    database["orders"].insert_one({"_id": 2})
    service.start()
    async with client_of(service, fresh_database) as client:
        assert (await client.subscribe("orders", resumeAfter=token))["resumed"] is True
        assert [frame["event"]["documentKey"] for frame in client.seen if frame["type"] == "event"] == [
            {"_id": 2}
        ]
    log = service.log()
    assert "service.draining" in log and "service.stopped" in log
    assert "Traceback" not in log and '"level":"error"' not in log
    assert "eyJ" not in log and JWT_SECRET not in log and service.token_keys.rstrip("=") not in log


async def test_while_draining_it_is_live_but_not_ready_and_refuses_upgrades(
    service: Service, fresh_database: str
) -> None:
    async with client_of(service, fresh_database) as one, client_of(service, fresh_database) as two:
        exit_code = asyncio.create_task(asyncio.to_thread(service.stop))
        await one.until("goaway")
        assert service.get("/healthz/live")[0] == 200
        status, body = service.get("/healthz/ready")
        assert (status, "draining" in body) == (503, True)
        with pytest.raises(InvalidStatus) as refused:
            await connect(
                service.url,
                additional_headers={"Authorization": f"Bearer {make_jwt(fresh_database)}"},
                proxy=None,
            )
        assert refused.value.response.status_code == 503
        assert "Retry-After" in refused.value.response.headers
        assert await exit_code == 0
        assert {(await one.closed())[0], (await two.closed())[0]} == {4200}


async def test_a_shutdown_is_announced_first(start_service: StartService, fresh_database: str) -> None:
    """Not ready at once, but whoever a proxy still sends is served until the drain begins; refused afterwards."""
    service = start_service(announce="2", drain="0.5")
    async with client_of(service, fresh_database) as one:
        await one.subscribe("orders")
        began = time.monotonic()
        exit_code = asyncio.create_task(asyncio.to_thread(service.stop))
        await asyncio.to_thread(service.wait_for, "/healthz/ready", 503, "draining")
        assert time.monotonic() - began < 2
        async with client_of(service, fresh_database) as late:
            await late.subscribe("orders")
            assert all(frame["type"] != "goaway" for frame in late.seen)
            await asyncio.gather(one.until("goaway"), late.until("goaway"))
            assert time.monotonic() - began >= 2
            with pytest.raises(InvalidStatus) as refused:
                async with client_of(service, fresh_database):
                    pass
            assert refused.value.response.status_code == 503
            assert {(await one.closed())[0], (await late.closed())[0]} == {4200}
    assert await exit_code == 0


async def test_without_clients_it_ends_at_once(service: Service) -> None:
    began = time.monotonic()
    assert service.stop() == 0
    assert time.monotonic() - began < DRAIN_S


async def test_a_second_signal_ends_the_drain(start_service: StartService, fresh_database: str) -> None:
    service = start_service(drain="30")
    async with client_of(service, fresh_database) as one, client_of(service, fresh_database) as two:
        os.kill(service.pid, signal.SIGTERM)
        await one.until("goaway")
        await two.until("goaway")
        began = time.monotonic()
        assert await asyncio.to_thread(service.stop) == 0
        assert time.monotonic() - began < 8


async def test_a_client_that_reads_nothing_does_not_hold_up_the_exit(
    service: Service, database: Documents, fresh_database: str
) -> None:
    async with client_of(service, fresh_database) as client:
        await client.subscribe("orders")
        client.socket.transport.pause_reading()
        for number in range(20):
            database["orders"].insert_one({"_id": number, "text": "x" * 900_000})
        began = time.monotonic()
        assert await asyncio.to_thread(service.stop) == 0
        assert time.monotonic() - began < DRAIN_S + 6
        client.socket.transport.abort()
