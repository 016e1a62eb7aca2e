"""SIGTERM under load (issue 2, must show 5): told, closed with 4200, out in time, and nothing missing afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.faults.numbers import COLLECTION, Writer
from tests.support.engine import Engine
from tests.support.frames import received
from tests.support.service import Service, make_jwt, token_key

DRAIN_S = 5
OUT_WITHIN_S = DRAIN_S + 5
_AT_ONCE = 50


@pytest.fixture
def engine_of_its_own() -> Iterator[Engine]:
    engine = Engine().start()
    yield engine
    engine.stop()


@pytest.fixture
def two_services(engine_of_its_own: Engine, tmp_path: Path) -> Iterator[list[Service]]:
    keys = token_key()
    services = [
        Service(engine_of_its_own.uri, tmp_path, token_keys=keys, drain=str(DRAIN_S)).start()
        for _ in range(2)
    ]
    yield services
    for service in services:
        service.kill()


class Follower:
    """A client that stays until it is closed, then goes on at the other instance."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.got: list[int] = []
        self.token: str | None = None
        self.goaways = 0
        self.close_code: int | None = None
        self.live = asyncio.Event()

    async def follow(self, first: Service, second: Service, total: int, gate: asyncio.Semaphore) -> None:
        """Read at `first` until it closes, then at `second` until all numbers came."""
        try:
            await self._read(first, None, gate)
        except ConnectionClosed as closed:
            self.close_code = closed.rcvd.code if closed.rcvd is not None else None
        await self._read(second, total, gate)

    async def _read(self, service: Service, total: int | None, gate: asyncio.Semaphore) -> None:
        async with gate:
            upgraded = await open_socket(service, self.tenant)
        async with upgraded:
            await upgraded.send(json.dumps(subscribe_frame(self.token)))
            while total is None or len(self.got) < total:
                self._take(received(await asyncio.wait_for(upgraded.recv(), 60)))

    def _take(self, frame: dict[str, object]) -> None:
        match frame:
            case {"type": "event", "event": {"_id": str(token), "documentKey": {"_id": int(number)}}}:
                self.token = token
                self.got.append(number)
            case {"type": "subscribed", "token": str(token)}:
                self.token = token
            case {"type": "checkpoint", "tokens": dict(tokens)}:
                (self.token,) = tokens.values()
            case {"type": "live"}:
                self.live.set()
            case {"type": "goaway"}:
                self.goaways += 1
            case {"type": "resync" | "error"}:
                raise AssertionError(frame)


def subscribe_frame(token: str | None) -> dict[str, object]:
    frame: dict[str, object] = {"type": "subscribe", "id": "n", "topic": {"collection": COLLECTION}}
    if token is not None:
        frame["resumeAfter"] = token
    return frame


async def open_socket(service: Service, tenant: str) -> ClientConnection:
    headers = {"Authorization": f"Bearer {make_jwt(tenant)}"}
    return await connect(
        service.url, additional_headers=headers, proxy=None, close_timeout=2, open_timeout=30
    )


async def sigterm_under_load(
    engine: Engine, services: list[Service], database: str, *, followers: int, total: int
) -> None:
    leaving, staying = services
    gate = asyncio.Semaphore(_AT_ONCE)
    clients = [Follower(database) for _ in range(followers)]
    tasks = [asyncio.create_task(client.follow(leaving, staying, total, gate)) for client in clients]
    deaf = [await open_socket(leaving, database) for _ in range(10)]
    half_closed = [await open_socket(leaving, database) for _ in range(5)]
    for upgraded in deaf + half_closed:
        await upgraded.send(json.dumps(subscribe_frame(None)))
    for upgraded in deaf:
        upgraded.transport.pause_reading()
    for upgraded in half_closed:
        raw: socket.socket = upgraded.transport.get_extra_info("socket")
        raw.shutdown(socket.SHUT_WR)
    await asyncio.gather(*(client.live.wait() for client in clients))
    with Writer(engine.uri, database, total, random.Random(1)) as writer:
        await asyncio.to_thread(writer.wait_for, total // 4)
        began = time.monotonic()
        assert await asyncio.to_thread(leaving.stop) == 0
        took_s = time.monotonic() - began
        await asyncio.gather(*tasks)
    assert writer.error is None
    for upgraded in deaf + half_closed:
        upgraded.transport.abort()
    assert took_s < OUT_WITHIN_S
    assert {client.close_code for client in clients} == {4200}
    assert {client.goaways for client in clients} == {1}
    assert all(client.got == list(range(total)) for client in clients)
    assert "Traceback" not in leaving.log()
    print(
        f"\n{followers} readers, 10 deaf, 5 half closed: out in {took_s:.1f} s of {OUT_WITHIN_S}, nothing missing"
    )


async def test_sigterm_loses_nobody(
    engine_of_its_own: Engine, two_services: list[Service], fresh_database: str
) -> None:
    """Every reader is told, closed with 4200 and goes on without a gap; deaf and half-closed peers delay nobody."""
    await sigterm_under_load(engine_of_its_own, two_services, fresh_database, followers=60, total=400)


@pytest.mark.verify
async def test_sigterm_with_five_hundred_clients(
    engine_of_its_own: Engine, two_services: list[Service], fresh_database: str
) -> None:
    """The same with the 500 clients that the issue asks for."""
    followers = 200 if os.environ.get("VERIFY_SCALE") == "short" else 485
    await sigterm_under_load(
        engine_of_its_own, two_services, fresh_database, followers=followers, total=1_000
    )
