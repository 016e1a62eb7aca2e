"""One client of one topic, and a writer of numbered documents: what was heard, in which order, and without a gap."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from pymongo import MongoClient
from websockets.exceptions import ConnectionClosed

from tests.support.service import Client, Frame, Service, client_of

WRITE_EVERY_S = 0.1


class Follower:
    """Subscribes, keeps the newest resume token, and comes back with it after a close or a refusal for now.

    `heard`: numbers and resync reasons in the order in which they came. Times are monotonic seconds.
    """

    def __init__(self, service: Service, tenant: str, collection: str) -> None:
        self.collection = collection
        self.resume_token: str | None = None
        self.heard: list[int | str] = []
        self.events_at: list[float] = []
        self.stalls: list[tuple[float, bool]] = []
        """When heartbeats began, and ceased, to call the topic stalled."""
        self.closes = 0
        self.refusals: list[str] = []
        self.live = asyncio.Event()
        self._service = service
        self._tenant = tenant
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Follower:
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        task = self._task
        assert task is not None
        while not task.done():
            task.cancel()  # once may not do: wait_for of Python 3.11 swallows one that comes with a frame
            await asyncio.wait({task}, timeout=0.5)
        if not task.cancelled():
            task.result()

    @property
    def last(self) -> int:
        """The newest number; -1 before the first."""
        return next((entry for entry in reversed(self.heard) if isinstance(entry, int)), -1)

    @property
    def resyncs(self) -> list[str]:
        return [entry for entry in self.heard if isinstance(entry, str)]

    async def reaches(self, number: int, within_s: float) -> None:
        """Wait until a number, or a later one, has come."""
        deadline = time.monotonic() + within_s
        while self.last < number:
            task = self._task
            assert task is not None
            if task.done():
                task.result()
            late = f"{self.collection}: {number} did not come within {within_s} s, {self.heard[-5:]}"
            assert time.monotonic() < deadline, late
            await asyncio.sleep(0.02)

    def assert_without_gap(self) -> None:
        """Numbers follow one another, but for a jump forward behind a resync."""
        expected: int | None = None
        may_jump = False
        for entry in self.heard:
            if isinstance(entry, str):
                may_jump = True
                continue
            fits = expected is None or entry == expected or (may_jump and entry > expected)
            assert fits, f"{self.collection}: {entry} instead of {expected}"
            expected, may_jump = entry + 1, False

    def longest_silence_s(self, since: float, until: float) -> float:
        """The longest time without an event between two times."""
        times = [since, *(at for at in self.events_at if since < at < until), until]
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    async def _follow(self) -> None:
        while True:
            with contextlib.suppress(ConnectionClosed, OSError, EOFError):
                async with client_of(self._service, self._tenant) as client:
                    await self._listen(client)
            self.closes += 1
            await asyncio.sleep(0.2)

    async def _subscribe(self, client: Client) -> None:
        resume = {} if self.resume_token is None else {"resumeAfter": self.resume_token}
        topic = {"collection": self.collection}
        await client.send({"type": "subscribe", "id": "s", "topic": topic, **resume})

    async def _listen(self, client: Client) -> None:
        await self._subscribe(client)
        while True:
            frame = await client.receive(timeout_s=60)
            if frame["type"] == "error":
                assert frame["code"] == "source_unavailable", frame
                self.refusals.append(frame["code"])
                await asyncio.sleep(0.2)
                await self._subscribe(client)
            else:
                self._note(client, frame)

    def _note(self, client: Client, frame: Frame) -> None:
        match frame["type"]:
            case "event":
                self.heard.append(frame["event"]["documentKey"]["_id"])
                self.events_at.append(time.monotonic())
            case "resync":
                self.heard.append(frame["reason"])
            case "live":
                self.live.set()
            case "heartbeat":
                stalled = bool(frame["stalled"])
                if stalled != (bool(self.stalls) and self.stalls[-1][1]):
                    self.stalls.append((time.monotonic(), stalled))
        for token in client.tokens.values():
            self.resume_token = token


class Writer:
    """Inserts 0, 1, 2, ... into each of some collections, over and over, in a thread for each round."""

    def __init__(
        self, mongodb: MongoClient[dict[str, Any]], database: str, collections: Iterable[str]
    ) -> None:
        self.next = 0
        self._collections = [mongodb[database][name] for name in collections]

    def write_once(self) -> None:
        for collection in self._collections:
            collection.insert_one({"_id": self.next})
        self.next += 1

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        async def write() -> None:
            while not done.is_set():
                await asyncio.to_thread(self.write_once)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(WRITE_EVERY_S):
                        await done.wait()

        done = asyncio.Event()
        task = asyncio.create_task(write())
        try:
            yield
        finally:
            done.set()
            await task


def assert_never_hot(what: str, times: list[float], most: int = 3) -> None:
    """At most three opens in ten seconds."""
    for first, next_after in zip(times, times[most:], strict=False):
        assert next_after - first > 10, f"{what}: {[round(at - times[0], 1) for at in times]}"


@contextlib.contextmanager
def service_of(service: Service) -> Iterator[Service]:
    """Start it, and kill it at the end."""
    try:
        yield service.start()
    finally:
        service.kill()
