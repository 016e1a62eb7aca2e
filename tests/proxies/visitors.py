"""Clients behind a front: they read numbers as `tests.faults.numbers` does, and come back as the protocol asks.

Behind a cut with full jitter from the first attempt on (protocol.md section 8), behind a `goaway` once the time that it
tells is over. Nobody comes back at the same time as all others, and the tests look at when they do.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from websockets.exceptions import InvalidHandshake, WebSocketException

from tests.faults.numbers import COLLECTION, Reader, Writer
from tests.faults.test_two_instances_sse import StreamReader
from tests.proxies.fronts import Front
from tests.support.service import Service

FIRST_WAIT_S = 2.0
_LONGEST_WAIT_S = 8.0
_CONNECTS_PER_S = 150
_NO_END = 1 << 60
_WITHIN_S = 200.0
"""Of a machine that has other work, too."""


@dataclass
class Visitor(Reader):
    """By WebSocket. `ended_at` and `attempts`: when connections ended, and when the next one was due, in monotonic
    seconds (the loop of so many clients may be late, and bunch what was not)."""

    ended_at: list[float] = field(default_factory=list)
    attempts: list[float] = field(default_factory=list)
    live: asyncio.Event = field(default_factory=asyncio.Event)
    goaways: list[tuple[float, float]] = field(default_factory=list)
    """When each came, and the seconds that it told."""
    first_within_s: float = FIRST_WAIT_S
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _back_at: float | None = None
    _failures: int = 0

    async def read(self, total: int, drops: int = 0) -> None:
        self.total = total
        await asyncio.sleep(self.rng.uniform(0, self.first_within_s))
        while len(self.got) < self.total:
            try:
                await self._one_connection(self.services[0], _NO_END)
            except (OSError, WebSocketException, InvalidHandshake) as error:
                self.refused += 1
                self._note_end(error)
                self.live.clear()
                self.ended_at.append(time.monotonic())
                self._ended.set()
                wait_s = self._wait_s()
                self.attempts.append(self.ended_at[-1] + wait_s)
                await asyncio.sleep(wait_s)

    async def ends_again(self, before: int) -> None:
        """Wait until more connections have ended than `before`."""
        while len(self.ended_at) <= before:
            self._ended.clear()
            await self._ended.wait()

    def _wait_s(self) -> float:
        if self._back_at is not None:
            told, self._back_at = self._back_at, None
            return max(0.0, told - self.ended_at[-1])
        most_s = min(_LONGEST_WAIT_S, FIRST_WAIT_S * 2.0**self._failures)
        self._failures += 1
        return self.rng.uniform(0, most_s)

    def _take(self, frame: dict[str, Any]) -> int:
        match frame["type"]:
            case "goaway":
                self.goaways.append((time.monotonic(), frame["reconnectAfterMs"] / 1000))
                self._back_at = sum(self.goaways[-1])
            case "live":
                self._failures = 0
                self.live.set()
        return super()._take(frame)


@dataclass
class StreamVisitor(StreamReader, Visitor):
    """By server-sent events."""


class Crowd:
    """Visitors through one front, each of every `lanes`-th number. In context they read, and are live at its begin."""

    def __init__(
        self, front: Front, service: Service, tenant: str, *, sockets: int, streams: int = 0, lanes: int
    ) -> None:
        seeds = random.Random(1)
        self._lanes = lanes
        self._tasks: list[asyncio.Task[None]] = []
        self.visitors = [
            (StreamVisitor if index < streams else Visitor)(
                [service],
                tenant,
                random.Random(seeds.random()),
                port_of=lambda _: front.port,
                first_within_s=max(FIRST_WAIT_S, (sockets + streams) / _CONNECTS_PER_S),
                topic={"collection": COLLECTION, "filter": {"_id": {"$mod": [lanes, index % lanes]}}},
            )
            for index in range(sockets + streams)
        ]

    def __len__(self) -> int:
        return len(self.visitors)

    async def __aenter__(self) -> Crowd:
        self._tasks = [asyncio.create_task(visitor.read(_NO_END)) for visitor in self.visitors]
        await self.all(visitor.live.wait() for visitor in self.visitors)
        return self

    async def __aexit__(self, *_: object) -> None:
        left: set[asyncio.Task[None]] = {task for task in self._tasks if not task.done()}
        while left:  # once may not do: wait_for of Python 3.11 swallows one that comes with a frame
            for task in left:
                task.cancel()
            left = (await asyncio.wait(left, timeout=0.5))[1]

    async def all(self, waiting: Iterable[Any]) -> None:
        """Wait for all of these; a visitor that fails meanwhile fails this."""
        waits: asyncio.Future[Any] = asyncio.gather(*waiting)
        pending: list[asyncio.Future[Any]] = [waits, *self._tasks]
        await asyncio.wait(pending, timeout=_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
        for task in self._tasks:
            if task.done():
                task.result()
        assert waits.done(), Counter(end for visitor in self.visitors for end in visitor.ends)
        await waits

    async def read_to_the_end(self, writer: Writer) -> int:
        """Let the writer come to an end and everybody get there; how many numbers there were.

        Each got each of its own once and in order, however often it was cut, and nobody a `resync`.
        """
        total = writer.total = writer.written + 2 * self._lanes
        for index, visitor in enumerate(self.visitors):
            visitor.total = len(range(index % self._lanes, total, self._lanes))
        async with asyncio.timeout(_WITHIN_S):
            await asyncio.gather(*self._tasks)
        assert writer.error is None
        for index, visitor in enumerate(self.visitors):
            assert visitor.got == list(range(index % self._lanes, total, self._lanes))
            assert (visitor.repeated, visitor.resyncs) == (0, [])
        return total


class Histogram:
    """Times within a window. `bin_s` is as wide as leaves several in each on average."""

    def __init__(self, times: Iterable[float], begin: float, window_s: float, bin_s: float) -> None:
        bins = round(window_s / bin_s)
        offsets = [int((at - begin) / bin_s) for at in times]
        self.counts = [offsets.count(index) for index in range(bins)]
        self.outside = len(offsets) - sum(self.counts)
        self.mean = sum(self.counts) / bins
        self.peak = max(self.counts)
        self._bin_s = bin_s

    def __str__(self) -> str:
        counts = " ".join(map(str, self.counts))
        return f"in each {1000 * self._bin_s:.0f} ms {counts}: mean {self.mean:.1f}, peak {self.peak}"
