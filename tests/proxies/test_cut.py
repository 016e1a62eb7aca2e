"""A proxy that cuts sooner than a heartbeat comes: no feed stays up, and nothing is lost (TRA-10)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.numbers import Reader, Writer
from tests.faults.test_two_instances_sse import StreamReader
from tests.proxies.fronts import FRONTS, Front, HAProxy, Nginx, running
from tests.support.engine import Engine
from tests.support.service import Service

TOTAL = 12
TOO_SHORT = {
    Nginx: {"proxy_read_timeout": "1s"},
    HAProxy: {"timeout client": "1s", "timeout server": "1s"},
}


def port_of(front: Front) -> Callable[[Service], int]:
    return lambda _: front.port


@pytest.mark.verify
async def test_a_time_out_below_the_heartbeat_cuts_and_every_cut_is_resumed_without_loss(
    engine_of_its_own: Engine, fresh_database: str, tmp_path: Path
) -> None:
    """Both transports behind both proxies, with a write in less than every second silence."""
    with Service(engine_of_its_own.uri, tmp_path) as service:
        fronts = [kind(tmp_path, [service], TOO_SHORT[kind]) for kind in FRONTS]
        readers = {
            f"{type(front).__name__} {name}": kind(
                [service], fresh_database, random.Random(1), port_of=port_of(front)
            )
            for front in fronts
            for name, kind in (("WebSocket", Reader), ("stream", StreamReader))
        }
        with running(*fronts):
            tasks = [asyncio.create_task(reader.read(TOTAL, 0)) for reader in readers.values()]
            while any(reader.token is None for reader in readers.values()):
                await asyncio.wait(tasks, timeout=0.01)
            with Writer(engine_of_its_own.uri, fresh_database, TOTAL, random.Random(1), rest_s=2.2) as writer:
                await asyncio.gather(*tasks)
            assert writer.error is None
    for name, reader in readers.items():
        assert reader.got == list(range(TOTAL)), name
        assert reader.resyncs == [], name
        assert reader.refused > 1, name
        print(f"\n{name}: {TOTAL} numbers, each once and in order, over {reader.refused} cuts")
