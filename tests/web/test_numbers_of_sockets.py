"""Sockets of two tenants come and go while both are written to past their transports: the kernel gives each number to
the next one that connects, and nobody gets what was meant for who had it before."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from random import Random

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from feedsvc.core import lockstep
from tests.support.frames import received
from tests.web.asking import Application
from tests.web.served import SUBSCRIBE, peer_at, reset, served

TENANTS = {"acme": "alice", "globex": "other-tenant"}
WORKERS = 6
"""For each tenant."""
LIVES = 25
"""Of each worker, a connection each."""


async def live(web: Application, port: int, tenant: str, chance: Random) -> int:
    """One connection, until one side ends it: each of its events must be of its tenant. Returns how many came."""
    peer = await peer_at(port, TENANTS[tenant], compress=chance.random() < 0.5)
    seen = 0
    with contextlib.suppress(ConnectionClosed):
        await peer.send(SUBSCRIBE)
        for _ in range(chance.randrange(5, 40)):
            frame = received(await peer.recv(decode=False))
            if frame["type"] == "event":
                assert frame["event"]["fullDocument"]["of"] == tenant
                seen += 1
        await end(web, peer, chance.randrange(4))
    return seen


async def end(web: Application, peer: ClientConnection, how: int) -> None:
    if how == 0:
        await peer.close()
    elif how == 1:
        await reset(peer)
    elif how == 2:
        web.lifecycle.clients.copy().pop().close("going_away")
        await peer.close()
    else:
        peer.transport.close()
        await peer.wait_closed()


async def test_a_number_brings_nothing_of_who_had_it_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockstep, "_YIELD_EVERY", 2)
    had: defaultdict[int, set[str]] = defaultdict(set)

    async with served() as (web, port):
        web.world.oplog.create("app_globex", "users")

        async def work(tenant: str, number: int) -> int:
            chance = Random(f"{tenant} {number}")
            return sum([await live(web, port, tenant, chance) for _ in range(LIVES)])

        async def write() -> None:
            for number in range(10**6):
                for tenant in TENANTS:
                    text = "x" * 2_000 if number % 2 else ""  # has two forms, or one
                    document = {"_id": number, "of": tenant, "text": text}
                    web.world.oplog.insert(f"app_{tenant}", "users", document)
                for client in web.lifecycle.clients:
                    if client.connection.direct is not None and client._tenant is not None:
                        had[client.connection.direct.descriptor].add(client._tenant)
                await asyncio.sleep(0.001)

        writing = asyncio.create_task(write())
        working = [work(tenant, number) for tenant in TENANTS for number in range(WORKERS)]
        async with asyncio.timeout(60):
            seen = await asyncio.gather(*working)
        writing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await writing
    assert min(seen) > LIVES
    assert sum(len(tenants) == 2 for tenants in had.values()) > WORKERS
