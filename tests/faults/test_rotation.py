"""Keys rotate under load, in the documented order (issue 2, must show 6): no client is refused and none is resynced.

Twenty clients of two instances are cut and come back all the time while a writer writes. The issuer's key goes
first: the new one is published beside the old one, JWTs are signed with it after a refresh, the old one is removed.
Then the token keys, by rolling restarts: the new one last everywhere, then first everywhere, and the old one is
removed when every client has a token of the new one (in production: after the oplog window).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.faults.numbers import COLLECTION, Reader, Writer, seed
from tests.support.engine import Engine
from tests.support.key_server import IssuerKey, KeyServer
from tests.support.service import Client, Service, token_key

CUT_EVERY = 40
REFRESHED = 5
"""Requests after which both instances have fetched keys anew: they ask in turn, and one may have been under way."""

LAST = 100
"""Numbers that are written after the last step."""

PLANNED_ENDS = {503, 4200}
"""What a client may meet at a rolling restart: an instance that is draining, before and after the upgrade."""


@pytest.fixture
def key_server() -> Iterator[KeyServer]:
    with KeyServer() as server:
        yield server


async def all_reach(readers: list[Reader], number: int) -> None:
    """Until every reader has taken so many numbers."""
    async with asyncio.timeout(60):
        while any(len(reader.got) < number for reader in readers):  # noqa: ASYNC110 - many, in their own tasks
            await asyncio.sleep(0.02)


async def restart_one_by_one(services: list[Service], token_keys: str) -> None:
    for service in services:
        service.environment["FEEDSVC_TOKEN_KEYS"] = token_keys
        assert await asyncio.to_thread(service.stop) == 0
        await asyncio.to_thread(service.start)


async def rotate_under_load(
    engine: Engine, server: KeyServer, directory: Path, database: str, *, clients: int, write_rest_s: float
) -> None:
    number = seed()
    rng = random.Random(number)
    print(f"\nNUMBERS_SEED={number}")
    began = time.monotonic()
    old, new = IssuerKey("old"), IssuerKey("new")
    issuer = [old]
    old_token_key, new_token_key = token_key(), token_key()
    server.publish(old)
    services = [
        Service(
            engine.uri,
            directory,
            token_keys=old_token_key,
            drain="0.5",
            jwt_secret="",
            jwks_url=server.url,
            jwks_refresh="1",
        )
        for _ in range(2)
    ]
    readers = [
        Reader(
            services,
            database,
            random.Random(rng.random()),
            cut_every=CUT_EVERY,
            jwt_of=lambda tenant: issuer[0].sign(tenant=tenant),
        )
        for _ in range(clients)
    ]
    async with contextlib.AsyncExitStack() as stack:
        for service in services:
            stack.callback(service.kill)
            await asyncio.to_thread(service.start)
        tasks = [asyncio.create_task(reader.read(1 << 30, 0)) for reader in readers]
        for task in tasks:
            stack.callback(task.cancel)
        async with asyncio.timeout(20):
            while any(reader.token is None for reader in readers):  # noqa: ASYNC110 - many, in their own tasks
                await asyncio.sleep(0.02)
        writer = stack.enter_context(
            Writer(engine.uri, database, 1 << 30, random.Random(rng.random()), rest_s=write_rest_s)
        )
        await all_reach(readers, 1)
        first_token = readers[0].token

        server.publish(old, new)
        await asyncio.to_thread(server.wait_for_requests, len(server.requests) + REFRESHED)
        issuer[0] = new
        await all_reach(readers, writer.written + 3 * CUT_EVERY)
        server.publish(new)
        await asyncio.to_thread(server.wait_for_requests, len(server.requests) + REFRESHED)
        await all_reach(readers, writer.written + 3 * CUT_EVERY)

        await restart_one_by_one(services, f"{old_token_key},{new_token_key}")
        await restart_one_by_one(services, f"{new_token_key},{old_token_key}")
        await all_reach(readers, writer.written + 1)
        await restart_one_by_one(services, new_token_key)

        writer.total = total = writer.written + LAST
        for reader in readers:
            reader.total = total
        await asyncio.gather(*tasks)
        writer.wait_for(total)
        assert writer.error is None
        for service in services:
            assert await answer_to(service, old, database, None) == "401"
            assert await answer_to(service, new, database, first_token) == "token_invalid"
            assert "Traceback" not in service.log()
    for reader in readers:
        assert reader.got == list(range(total))
        assert (reader.resyncs, reader.repeated) == ([], 0)
        assert set(reader.ends) <= PLANNED_ENDS, reader.ends
    print(
        f"{clients} clients, {total} numbers each, {sum(reader.drops for reader in readers)} cuts, "
        f"{sum(reader.ends[4200] for reader in readers)} planned closes, 6 restarts, "
        f"{time.monotonic() - began:.1f} s"
    )


async def answer_to(service: Service, key: IssuerKey, tenant: str, token: str | None) -> str:
    """What an old JWT or an old token gets in the end: an HTTP status or the type or code of the answer."""
    headers = {"Authorization": f"Bearer {key.sign(tenant=tenant)}"}
    try:
        async with connect(service.url, additional_headers=headers, proxy=None) as socket:
            client = Client(socket)
            topic = {"collection": COLLECTION}
            await client.send({"type": "subscribe", "id": "s", "topic": topic, "resumeAfter": token})
            answer = await client.until(lambda frame: frame.get("id") == "s")
            return str(answer.get("code", answer["type"]))
    except InvalidStatus as refused:
        return str(refused.response.status_code)


@pytest.mark.verify
async def test_keys_rotate_under_load(
    engine: Engine, key_server: KeyServer, tmp_path: Path, fresh_database: str
) -> None:
    """Every client sees every number once and in order, and only planned ends; what was rotated out is refused."""
    await rotate_under_load(engine, key_server, tmp_path, fresh_database, clients=20, write_rest_s=0.03)


@pytest.mark.verify
async def test_keys_rotate_under_more_load(
    engine: Engine, key_server: KeyServer, tmp_path: Path, fresh_database: str
) -> None:
    """With 100 clients; 40 with VERIFY_SCALE=short."""
    clients = 40 if os.environ.get("VERIFY_SCALE") == "short" else 100
    await rotate_under_load(engine, key_server, tmp_path, fresh_database, clients=clients, write_rest_s=0.05)
