"""A running world on virtual time whose source fails as told, so that a minute of waits takes no time and each wait is
the real one. The oplog is in memory and gets an entry each second, as MongoDB's does."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from feedsvc.core.changes import TailScope
from feedsvc.core.limits import Limits
from feedsvc.core.positions import Position
from feedsvc.ports import Batch, ChangeStream, OplogWindow
from feedsvc.testing import MemoryOplog, MemorySource
from feedsvc.testing.stream import MemoryStream
from tests.runtime.world import DATABASE, Peer, World, running
from tests.simulation.virtual_time import VirtualLoop, WorkingClock
from tests.support.frames import Frame

STALL_AFTER_S = Limits().stall_after_s


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        loop = VirtualLoop()
        try:
            loop.run_until_complete(test(*arguments, **named))
        finally:
            loop.close()

    return run


class Opening:
    """One `open`: when, and where."""

    def __init__(self, scope: TailScope, position: Position) -> None:
        self.at_s = asyncio.get_running_loop().time()
        self.scope = scope
        self.position = position


class ScriptedSource(MemorySource):
    """`on_open` and `on_read` may raise, or change, what happens; by default nothing goes wrong.

    `ahead` is what the operation time says beyond the newest entry; `frozen` streams see nothing new, though the
    oplog goes on.
    """

    def __init__(self, oplog: MemoryOplog) -> None:
        super().__init__(oplog)
        self.openings: list[Opening] = []
        self.on_open: Callable[[Opening], Position | None] = lambda _: None
        self.on_read: Callable[[Opening], None] = lambda _: None
        self.ahead = 0
        self.readable_oplog = True

    async def open(  # type: ignore[override]
        self, scope: TailScope, position: Position, *, await_s: float | None = None
    ) -> ChangeStream:
        opening = Opening(scope, position)
        self.openings.append(opening)
        return ScriptedStream(self, opening, self.open_now(scope, self.on_open(opening) or position))

    async def operation_time(self) -> int:
        return self.oplog.now + self.ahead

    async def oplog_window(self, *, first_age_s: float = 0.0) -> OplogWindow | None:
        if not self.readable_oplog:
            return None
        return OplogWindow(self.oplog.entry(self.oplog.first).cluster_time, self.oplog.now)

    def opened_at(self, scope: TailScope | None = None) -> list[float]:
        return [opening.at_s for opening in self.openings if scope in (None, opening.scope)]


class ScriptedStream:
    def __init__(self, source: ScriptedSource, opening: Opening, inner: MemoryStream) -> None:
        self._source = source
        self._opening = opening
        self._inner = inner

    async def read(self) -> Batch:
        self._source.on_read(self._opening)
        batch = await self._inner.read()
        self._source.on_read(self._opening)
        return batch

    async def close(self) -> None:
        await self._inner.close()


class Fails:
    """Raise an error, `times` times if given. Use as `on_open` or `on_read`."""

    def __init__(self, error: Exception, times: int | None = None) -> None:
        self._error = error
        self._times = times

    def __call__(self, _: Opening) -> None:
        if self._times is None or self._times > 0:
            self._times = self._times and self._times - 1
            raise self._error


def healthy(_: Opening) -> None:
    """Nothing fails any more."""


@asynccontextmanager
async def beating(level: str = "deployment") -> AsyncIterator[tuple[World, ScriptedSource]]:
    """A running world whose oplog gets a no-op each second.

    The collections exist: one that a write creates is a switch of images, which ends its subscriptions.
    """
    loop = asyncio.get_running_loop()
    async with running(source=ScriptedSource, level=level, clock=WorkingClock(loop, Random(0), 0.0)) as world:
        source = world.source
        assert isinstance(source, ScriptedSource)
        for collection in ("orders", "users"):
            world.oplog.create(DATABASE, collection)

        async def beat() -> None:
            while True:
                await asyncio.sleep(1)
                world.oplog.tick()

        beats = asyncio.ensure_future(beat())
        try:
            yield world, source
        finally:
            beats.cancel()
            await asyncio.wait({beats})


async def heard(peer: Peer, type: str, within_s: float = 60, before: tuple[str, ...] = ()) -> Frame:
    """The next frame of a type, with nothing but heartbeats, checkpoints and those of `before` before it."""
    async with asyncio.timeout(within_s):
        while True:
            for frame in iter(peer.take_one, None):
                if frame["type"] == type:
                    return frame
                assert frame["type"] in ("heartbeat", "checkpoint", *before), frame
            await asyncio.sleep(0.05)


async def subscribed(world: World, collection: str = "orders", **fields: Any) -> Peer:
    peer = await world.signed_in()
    peer.subscribe(collection, **fields)
    await heard(peer, "subscribed")
    await heard(peer, "live")
    return peer


def insert(world: World, number: int, collection: str = "orders") -> None:
    world.oplog.insert(DATABASE, collection, {"_id": number})


async def event(peer: Peer) -> int:
    number: int = (await heard(peer, "event"))["event"]["documentKey"]["_id"]
    return number


def assert_never_hot(times: list[float]) -> None:
    """At most three opens in ten seconds."""
    assert all(fourth - first > 10 for first, fourth in zip(times, times[3:], strict=False)), times
