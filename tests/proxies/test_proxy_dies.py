"""A proxy that is reloaded, or killed, takes every socket with it without a close frame: DEP-10."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.numbers import Writer
from tests.proxies.fronts import FRONTS, Front, HAProxy, Nginx, running
from tests.proxies.visitors import FIRST_WAIT_S, Crowd, Histogram
from tests.support.engine import Engine
from tests.support.service import Service

SHORT = os.environ.get("VERIFY_SCALE") == "short"
SOCKETS, STREAMS, BIN_S = (135, 15, 0.2) if SHORT else (470, 30, 0.1)
LANES = 50
"""Each event goes to a fiftieth of the clients: this process reads for all of them."""
REST_S = 0.02
"""With writes of 2.25 numbers on average some 100 in a second."""
OLD_WORKERS_STAY = {Nginx: {"worker_shutdown_timeout": "1s"}, HAProxy: {"hard-stop-after": "1s"}}


@pytest.mark.verify
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", FRONTS)
async def test_a_proxy_that_takes_all_sockets_along_costs_nobody_an_event(
    kind: type[Front], engine_of_its_own: Engine, fresh_database: str, tmp_path: Path
) -> None:
    """500 clients (150 with VERIFY_SCALE=short) and about 100 events a second: first a reload whose old workers end
    before their clients do, then `kill -9` of all its processes."""
    with Service(engine_of_its_own.uri, tmp_path) as service:
        front = kind(tmp_path, [service], OLD_WORKERS_STAY[kind])
        crowd = Crowd(front, service, fresh_database, sockets=SOCKETS, streams=STREAMS, lanes=LANES)
        writer = Writer(engine_of_its_own.uri, fresh_database, 1 << 30, random.Random(1), rest_s=REST_S)
        with running(front):
            async with crowd:
                with writer:
                    await asyncio.to_thread(writer.wait_for, 200)
                    await cut_by(front.reload, crowd, service)
                    await asyncio.to_thread(writer.wait_for, writer.written + 100)
                    await cut_by(front.kill_and_start, crowd, service)
                    total = await crowd.read_to_the_end(writer)
    assert [line for line in service.log().splitlines() if "Traceback" in line] == []
    print(f"{kind.__name__}: {len(crowd)} clients, {total} numbers, nothing missing or repeated, no resync")


async def cut_by(act: Callable[[], None], crowd: Crowd, service: Service) -> None:
    """Wait until all were cut and are live again; they did not come all at once, and the old sockets are gone."""
    visitors = crowd.visitors
    ended = [len(visitor.ended_at) for visitor in visitors]
    await asyncio.to_thread(act)
    await crowd.all(visitor.ends_again(before) for visitor, before in zip(visitors, ended, strict=True))
    await crowd.all(visitor.live.wait() for visitor in visitors)
    cut_at = min(visitor.ended_at[before] for visitor, before in zip(visitors, ended, strict=True))
    first = [visitor.attempts[before] for visitor, before in zip(visitors, ended, strict=True)]
    last = max(visitor.attempts[-1] for visitor in visitors)
    histogram = Histogram(first, cut_at, FIRST_WAIT_S, BIN_S)
    print(f"\n{act.__name__}: all back within {last - cut_at:.1f} s of the cut; first attempts {histogram}")
    assert histogram.peak < 3 * histogram.mean
    await asyncio.to_thread(service.wait_for, "/metrics", 200, f"\nfeedsvc_connections {len(crowd)}.0\n")
