"""Three instances behind HAProxy that are restarted one by one under their clients: DEP-01, DEP-02, DEP-08."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from feedsvc.app import longest_shutdown_s
from feedsvc.core.limits import Limits
from tests.faults.numbers import Writer
from tests.proxies.fronts import HAProxy, running
from tests.proxies.metrics import connections, figure
from tests.proxies.visitors import Crowd, Histogram
from tests.support.engine import Engine
from tests.support.service import Address, Service, client_of, token_key

SHORT = os.environ.get("VERIFY_SCALE") == "short"
CLIENTS, BIN_S = (150, 0.25) if SHORT else (1_000, 0.1)
LIMITS = Limits(announce_s=4.0, drain_s=2.5 if SHORT else 6.0)
"""Announced for longer than the page's health check takes to fail."""
SPREAD_S = LIMITS.drain_s * 0.8
REST_S = 0.5
"""With writes of 2.25 numbers on average some 4 in a second."""


@pytest.mark.verify
@pytest.mark.timeout(900)
async def test_instances_are_restarted_one_by_one_and_no_client_misses_or_repeats_anything(
    engine_of_its_own: Engine, fresh_database: str, tmp_path: Path
) -> None:
    """1,000 clients (150 with VERIFY_SCALE=short) and a steady writer."""
    keys = token_key()
    services = [
        Service(
            engine_of_its_own.uri,
            tmp_path,
            token_keys=keys,
            announce=str(LIMITS.announce_s),
            drain=str(LIMITS.drain_s),
        )
        for _ in range(3)
    ]
    front = HAProxy(tmp_path, services)
    crowd = Crowd(front, services[0], fresh_database, sockets=CLIENTS, lanes=10)
    writer = Writer(engine_of_its_own.uri, fresh_database, 1 << 30, random.Random(1), rest_s=REST_S)
    with contextlib.ExitStack() as stack:
        for service in services:
            stack.callback(service.kill)
            await asyncio.to_thread(service.start)
        stack.enter_context(running(front))
        async with crowd:
            print(f"\n{CLIENTS} clients, on each instance {[connections(each) for each in services]}")
            with writer:
                async with newcomers(front, fresh_database) as welcomed:
                    for index in range(len(services)):
                        await restart(services, index, front, crowd)
                held = [connections(each) for each in services]
                total = await crowd.read_to_the_end(writer)
    ends = sum((visitor.ends for visitor in crowd.visitors), Counter[int]())
    assert set(ends) == {4200}
    assert ends[4200] >= CLIENTS
    assert welcomed
    print(
        f"{total} numbers, nothing missing or repeated, no resync; {ends[4200]} closes, all 4200; {len(welcomed)} "
        f"newcomers, the slowest after {1000 * max(welcomed):.0f} ms; on each instance now {held}"
    )


async def restart(services: list[Service], index: int, front: HAProxy, crowd: Crowd) -> None:
    service = services[index]
    had = connections(service)
    others = [other for other in services if other is not service]
    opened = sum(figure(other, "feedsvc_catch_ups_opened_total") for other in others)
    before = [len(visitor.goaways) for visitor in crowd.visitors]
    began = time.monotonic()
    end = asyncio.create_task(asyncio.to_thread(service.stop))
    await leaves(service, front, index, began)
    assert await end == 0
    took_s = time.monotonic() - began
    assert took_s < longest_shutdown_s(LIMITS)
    await crowd.all(visitor.live.wait() for visitor in crowd.visitors)
    back_s = time.monotonic() - began
    told = [each for visitor, n in zip(crowd.visitors, before, strict=True) for each in visitor.goaways[n:]]
    opened = sum(figure(other, "feedsvc_catch_ups_opened_total") for other in others) - opened
    # All were told at once: who heard it later than the first was only late in reading.
    first = min(heard_at for heard_at, _ in told)
    histogram = Histogram((first + after_s for _, after_s in told), first, SPREAD_S, BIN_S)
    print(
        f"instance {index}: {had} clients, out after {took_s:.1f} s, all live elsewhere after {back_s:.1f} s; told to "
        f"come {histogram}; for all that resumed the others opened {opened} streams"
    )
    assert len(told) >= had - 1, "one may have been a newcomer"
    assert histogram.outside == 0
    assert first - began >= LIMITS.announce_s
    assert histogram.peak < 3 * histogram.mean
    await asyncio.to_thread(service.start)
    await asyncio.to_thread(front.wait_for, index, True, 20)


async def leaves(service: Service, front: HAProxy, index: int, began: float) -> None:
    """Not ready at once, accepting all the same, taken out by the proxy, and only then refusing."""
    await asyncio.to_thread(service.wait_for, "/healthz/ready", 503, "draining")
    unready_s = time.monotonic() - began
    await asyncio.sleep(began + 0.5 - time.monotonic())
    tenant = "newcomer"
    async with client_of(service, tenant) as late:
        await late.subscribe("orders")
        assert [frame for frame in late.seen if frame["type"] == "goaway"] == []
        await asyncio.to_thread(front.wait_for, index, False, LIMITS.announce_s)
        down_s = time.monotonic() - began
        await late.until("goaway")
        assert time.monotonic() - began > LIMITS.announce_s
    with pytest.raises(InvalidStatus) as refused:
        async with client_of(service, tenant):
            pass
    answer = refused.value.response
    assert (answer.status_code, "Retry-After" in answer.headers) == (503, True)
    print(f"instance {index}: not ready after {1000 * unready_s:.0f} ms, out of HAProxy after {down_s:.1f} s")


@contextlib.asynccontextmanager
async def newcomers(front: Address, tenant: str) -> AsyncIterator[list[float]]:
    """Somebody comes through the proxy a few times in each second and is let in; yields how long it took each time."""
    took_s: list[float] = []
    stop = asyncio.Event()

    async def come() -> None:
        while not stop.is_set():
            began = time.monotonic()
            async with client_of(front, tenant):
                took_s.append(time.monotonic() - began)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 0.2)

    task = asyncio.create_task(come())
    try:
        yield took_s
    finally:
        stop.set()
        await task
