"""New instances get their share: connections end at their maximum age and land where there are fewest (DEP-07)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.numbers import Writer
from tests.proxies.fronts import HAProxy, running
from tests.proxies.metrics import connections
from tests.proxies.visitors import Crowd
from tests.support.engine import Engine
from tests.support.service import Service, token_key

SHORT = os.environ.get("VERIFY_SCALE") == "short"
CLIENTS, MAX_AGE_S, BEFORE, AFTER = (120, 5.0, 2, 3) if SHORT else (600, 20.0, 3, 5)
AGES = 2


@pytest.mark.verify
@pytest.mark.timeout(400)
async def test_after_two_ages_no_instance_has_twice_the_connections_of_another(
    engine_of_its_own: Engine, fresh_database: str, tmp_path: Path
) -> None:
    """Three instances become five under 600 clients (two, three and 120 with VERIFY_SCALE=short), and nothing is lost
    or repeated by it."""
    keys = token_key()
    services = [
        Service(engine_of_its_own.uri, tmp_path, token_keys=keys, max_age=str(MAX_AGE_S))
        for _ in range(AFTER)
    ]
    front = HAProxy(tmp_path, services)
    crowd = Crowd(front, services[0], fresh_database, sockets=CLIENTS, lanes=5)
    writer = Writer(engine_of_its_own.uri, fresh_database, 1 << 30, random.Random(1), rest_s=0.2)
    with contextlib.ExitStack() as stack:
        for service in services:
            stack.callback(service.kill)
        for service in services[:BEFORE]:
            await asyncio.to_thread(service.start)
        stack.enter_context(running(front))
        async with crowd:
            with writer:
                for service in services[BEFORE:]:
                    await asyncio.to_thread(service.start)
                for index in range(AFTER):
                    await asyncio.to_thread(front.wait_for, index, True, 20)
                at_first = [connections(service) for service in services]
                ages = [len(visitor.ended_at) + AGES - 1 for visitor in crowd.visitors]
                await crowd.all(v.ends_again(n) for v, n in zip(crowd.visitors, ages, strict=True))
                await crowd.all(visitor.live.wait() for visitor in crowd.visitors)
                in_the_end = [connections(service) for service in services]
                total = await crowd.read_to_the_end(writer)
    ends = sum((visitor.ends for visitor in crowd.visitors), Counter[int]())
    assert set(ends) == {4205}
    assert max(in_the_end) < 2 * min(in_the_end), in_the_end
    print(
        f"\n{CLIENTS} clients, maximum age {MAX_AGE_S:.0f} s, new instances at first {at_first}, after {AGES} ages "
        f"{in_the_end}: ratio {max(in_the_end) / min(in_the_end):.2f}; {total} numbers, nothing missing or repeated"
    )
