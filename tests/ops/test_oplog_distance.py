"""The alert on oplog distance fires while the token can still be resumed, and without help it is lost afterwards.

A real engine with a short oplog, and a client that is told nothing but heartbeats, so that it stays where it subscribed
while others write. What the token is worth, another instance says: it remembers nothing and has only the oplog.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bson import Timestamp
from pymongo import WriteConcern

from tests.ops.holding import figure, holds
from tests.support.engine import Engine
from tests.support.service import Client, Frame, Service, client_of, token_key

WRITES_A_SECOND = 200
OPLOG_S = 30
BATCH = 50


@pytest.fixture
def short_oplog() -> Iterator[Engine]:
    """About `OPLOG_S` of writes; it is trimmed each 1,000 of them."""
    engine = Engine(oplog_max_entries=OPLOG_S * WRITES_A_SECOND, sync_on_commit=False).start()
    yield engine
    engine.stop()


async def write(engine: Engine, database: str, stop: asyncio.Event) -> None:
    """At a steady pace, into a collection that nobody watches."""
    filler = engine.client[database].get_collection("filler", write_concern=WriteConcern(w=1))
    due = time.monotonic()
    while not stop.is_set():
        await asyncio.to_thread(filler.insert_many, [{} for _ in range(BATCH)])
        due += BATCH / WRITES_A_SECOND
        await asyncio.sleep(max(0.0, due - time.monotonic()))


def first_entry(engine: Engine) -> Timestamp:
    found = engine.first_entry()
    assert found is not None
    return found


async def once(holding: Callable[[], bool]) -> None:
    """Ask, in a thread, until the answer is yes."""
    async with asyncio.timeout(4 * OPLOG_S):
        while True:
            if await asyncio.to_thread(holding):
                return
            await asyncio.sleep(0.25)


async def asked_elsewhere(service: Service, tenant: str, token: str) -> tuple[Frame, list[str]]:
    """How another instance answers, and the reasons of the resyncs that follow at once."""
    async with client_of(service, tenant) as client:
        answer = await client.subscribe("orders", resumeAfter=token, expect="")
        await client.until("live")
        return answer, [frame["reason"] for frame in client.seen if frame["type"] == "resync"]


async def keep_reading(client: Client) -> None:
    while True:
        await client.receive(timeout_s=60)


@pytest.mark.verify
@pytest.mark.timeout(300)
async def test_it_fires_before_a_token_is_lost(
    short_oplog: Engine, fresh_database: str, tmp_path: Path
) -> None:
    keys, engine = token_key(), short_oplog
    settings: dict[str, Any] = {"token_keys": keys, "checkpoint_interval": "3600", "heartbeat_interval": "1"}
    services = [Service(engine.uri, tmp_path, **settings) for _ in range(2)]
    stop = asyncio.Event()
    writing = asyncio.create_task(write(engine, fresh_database, stop))
    try:
        one, two = [await asyncio.to_thread(service.start) for service in services]
        young = first_entry(engine)
        await once(lambda: first_entry(engine) != young)  # from now on it is trimmed as fast as it is written
        async with client_of(one, fresh_database) as client:
            answer = await client.subscribe("orders")
            began = time.monotonic()
            stamp = answer["clusterTime"]["$timestamp"]
            position, token = Timestamp(stamp["t"], stamp["i"]), answer["token"]
            assert not holds("FeedsvcOplogDistance", one.get("/metrics")[1])
            reading = asyncio.create_task(keep_reading(client))

            await once(lambda: holds("FeedsvcOplogDistance", one.get("/metrics")[1]))
            fired_s = time.monotonic() - began
            answer, resyncs = await asked_elsewhere(two, fresh_database, token)
            assert answer["resumed"] is True and resyncs == []
            assert first_entry(engine) <= position
            page = one.get("/metrics")[1]
            print(
                f"\nfired after {fired_s:.1f} s at {figure(page, 'feedsvc_oldest_position_used_ratio'):.0%} of "
                f"{figure(page, 'feedsvc_oplog_window_seconds'):.0f} s of oplog: the token still resumes"
            )

            await once(lambda: first_entry(engine) > position)
            lost_s = time.monotonic() - began
            answer, resyncs = await asked_elsewhere(two, fresh_database, token)
            assert answer["resumed"] is False and resyncs == ["token_expired"]
            print(f"lost after {lost_s:.1f} s, {lost_s - fired_s:.1f} s later: resync token_expired")
            assert not any(frame["type"] in ("checkpoint", "resync", "event") for frame in client.seen)
            reading.cancel()
    finally:
        stop.set()
        await writing
        for service in services:
            service.kill()
