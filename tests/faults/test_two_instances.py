"""Two instances, clients that drop, instances that die: every number once and in order (issue 2, must show 1 and 2)."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.numbers import Reader, Writer, killed_and_restarted, seed
from tests.support.engine import Engine
from tests.support.service import Service, token_key

SHORT = os.environ.get("VERIFY_SCALE") == "short"


@pytest.fixture
def synced_engine() -> Iterator[Engine]:
    """With a short oplog: the engine reads all of it whenever a stream opens, which took most of a long run."""
    engine = Engine(oplog_max_entries=6_000).start()
    yield engine
    engine.stop()


@pytest.fixture
def two_services(synced_engine: Engine, tmp_path: Path) -> Iterator[list[Service]]:
    """Two instances with the same keys on one database."""
    keys = token_key()
    services = [Service(synced_engine.uri, tmp_path, token_keys=keys) for _ in range(2)]
    for service in services:
        service.start()
    yield services
    for service in services:
        service.kill()


async def drop_and_resume(
    engine: Engine,
    services: list[Service],
    database: str,
    *,
    total: int,
    drops: int,
    kill_every_s: float,
    reader_class: type[Reader] = Reader,
) -> None:
    number = seed()
    rng = random.Random(number)
    print(f"\nNUMBERS_SEED={number}")
    reader = reader_class(services, database, random.Random(rng.random()))
    started = time.monotonic()
    with Writer(engine.uri, database, 0, rng):
        pass
    async with killed_and_restarted(services, kill_every_s, random.Random(rng.random())) as kills:
        first = asyncio.create_task(reader.read(total, drops))
        while reader.token is None:
            await asyncio.wait({first}, timeout=0.01)
            assert not first.done(), first.result()
        with Writer(engine.uri, database, total, random.Random(rng.random())) as writer:
            await first
        assert writer.error is None
    assert reader.got == list(range(total))
    assert reader.resyncs == []
    print(
        f"{total} numbers, {reader.drops} drops, {len(kills)} kills, {reader.repeated} repeated, "
        f"{reader.refused} refused connects, {time.monotonic() - started:.1f} s"
    )


async def test_dropping_clients_and_dying_instances_lose_nothing(
    synced_engine: Engine, two_services: list[Service], fresh_database: str
) -> None:
    """Every number exactly once after dropping repeated `_id`s, in order, no resync."""
    await drop_and_resume(
        synced_engine, two_services, fresh_database, total=1_500, drops=30, kill_every_s=2.0
    )


@pytest.mark.verify
async def test_twenty_thousand_numbers_and_two_hundred_drops(
    synced_engine: Engine, two_services: list[Service], fresh_database: str
) -> None:
    """The same at the size that the issue asks for."""
    total = 8_000 if SHORT else 20_000
    await drop_and_resume(
        synced_engine, two_services, fresh_database, total=total, drops=200, kill_every_s=3.0
    )
