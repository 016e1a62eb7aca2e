"""How long a step takes: to match, to pump, and until its last write; told once for each batch of changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from feedsvc.adapters.telemetry.metrics import PrometheusMetrics
from feedsvc.core.burst import Burst
from feedsvc.core.changes import Change, ChangeBody, Namespace, TailScope
from feedsvc.core.placement import Placement
from feedsvc.core.places import PlacementLimits
from feedsvc.core.positions import PositionKind, boundary, record_position
from feedsvc.core.subscription import Subscription, TopicKey
from feedsvc.ports import Batch
from feedsvc.runtime.tail import Readers
from feedsvc.testing import ManualClock, MemoryConnection, MemoryOplog, MemorySource

THERE = Namespace("app", "orders")
MATCH_S, PUMP_S, LOCKED_S = 0.25, 0.5, 3.0
CLIENTS = 3


class Topic(msgspec.Struct, frozen=True):
    namespace: Namespace = THERE


class Outlet:
    """A client that takes everything, and `work` seconds for each burst."""

    writable = True
    direct = None

    def __init__(self, work: Callable[[float], None]) -> None:
        self._work = work

    def frames(self, burst: Burst) -> None:
        self._work(PUMP_S)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


class Rig:
    """One live tail with clients on one topic, on a clock that only work moves."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.metrics = PrometheusMetrics("1", strict=True)
        placement = Placement(PlacementLimits(), self._build, MemoryConnection.write_each)
        source = MemorySource(MemoryOplog())
        scope = TailScope("deployment")
        self.readers = Readers(
            scope, source, placement, self.clock, self.metrics, lambda *_: None, lambda: 0.0, 30
        )
        placement.live_opened(boundary(1))
        for _ in range(CLIENTS):
            outlet: Any = Outlet(self.clock.advance)
            placement.attach(Subscription(Topic(), outlet, None))

    def _build(self, topic: TopicKey, change: Change) -> bytes:
        self.clock.advance(MATCH_S)
        return b"{}"

    async def step(self, *times: int) -> None:
        changes = [
            Change(record_position(PositionKind.EVENT, time, str(time)), "insert", THERE, ChangeBody)
            for time in times
        ]
        live = self.readers.placement.live
        assert live is not None
        await self.readers.step(live, Batch(changes, boundary(100)))

    def told(self, name: str) -> tuple[float, float]:
        """Sum and count of a histogram of live tails."""
        page = self.metrics.render()[0].decode().splitlines()
        values = dict(line.rsplit(" ", 1) for line in page)
        series = f'feedsvc_{name}_{{}}{{{{tail="live"}}}}'
        return float(values[series.format("sum")]), float(values[series.format("count")])


async def test_matching_and_pumping_are_told_apart() -> None:
    rig = Rig()
    await rig.step(2, 3)
    assert rig.told("match_seconds") == (2 * MATCH_S, 1)
    assert rig.told("pump_seconds") == (CLIENTS * PUMP_S, 1)
    assert rig.told("pump_delay_seconds") == (2 * MATCH_S + CLIENTS * PUMP_S, 1)


async def test_the_delay_counts_what_a_batch_waits_for_and_the_work_does_not() -> None:
    rig = Rig()
    async with rig.readers.lock:
        step = asyncio.ensure_future(rig.step(2))
        await asyncio.sleep(0)
        rig.clock.advance(LOCKED_S)
    await step
    work_s = MATCH_S + CLIENTS * PUMP_S
    assert rig.told("match_seconds")[0] + rig.told("pump_seconds")[0] == work_s
    assert rig.told("pump_delay_seconds") == (LOCKED_S + work_s, 1)


async def test_an_idle_batch_is_not_counted() -> None:
    rig = Rig()
    await rig.step()
    assert rig.told("pump_delay_seconds") == (0, 0)
