"""Numbered documents: a writer that inserts 0, 1, 2, ... and a client that must see each number once, in order.

Everything random comes from a seed, so a failing run can be repeated: `NUMBERS_SEED=n pytest ...`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pymongo import MongoClient
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, WebSocketException

from tests.support.frames import received
from tests.support.service import Service, make_jwt

COLLECTION = "numbers"
_RETRY_S = 0.05
_SILENT_S = 60.0


def seed() -> int:
    return int(os.environ.get("NUMBERS_SEED", "0")) or random.randrange(1, 1 << 30)


class Writer:
    """A thread that inserts `total` numbered documents, about one in four in a transaction of up to ten.

    `rest_s`: how long it rests after each write.
    """

    def __init__(
        self, uri: str, database: str, total: int, rng: random.Random, *, rest_s: float = 0.0
    ) -> None:
        self.written = 0
        self.error: Exception | None = None
        self.total = total
        self._rest_s = rest_s
        self._rng = rng
        self._stop = threading.Event()
        self._wrote = threading.Condition()
        self._client: MongoClient[dict[str, Any]] = MongoClient(uri)
        self._numbers = self._client[database][COLLECTION]
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        self._client.close()

    def wait_for(self, count: int) -> None:
        """Block until that many are written."""
        with self._wrote:
            assert self._wrote.wait_for(lambda: self.written >= count, timeout=120)

    def _run(self) -> None:
        try:
            while self.written < self.total and not self._stop.is_set():
                count = min(self.total - self.written, self._rng.choice((1, 1, 1, self._rng.randint(2, 10))))
                documents = [{"_id": self.written + offset} for offset in range(count)]
                if count == 1:
                    self._numbers.insert_one(documents[0])
                else:
                    with self._client.start_session() as session, session.start_transaction():
                        for document in documents:
                            self._numbers.insert_one(document, session=session)
                with self._wrote:
                    self.written += count
                    self._wrote.notify_all()
                if self._rest_s:
                    self._stop.wait(self._rest_s)
        except Exception as error:
            self.error = error


@dataclass
class Reader:
    """A client that is cut at random moments and goes on with its token, at the next instance in turn.

    `cut_every`: cut after about that many events, where no number of drops is given. `silent_s`: a socket that says
    nothing for so long is given up. `outages`: whether `source_unavailable` may be told, which is tried again.
    `doubled`: whether a link may say things twice on the way to the service, and so subscribe twice.
    """

    services: Sequence[Service]
    tenant: str
    rng: random.Random
    port_of: Callable[[Service], int] = field(default=lambda service: service.port)
    jwt_of: Callable[[str], str] = make_jwt
    cut_every: int | None = None
    silent_s: float = _SILENT_S
    outages: bool = False
    doubled: bool = False
    topic: Mapping[str, Any] = field(default_factory=lambda: {"collection": COLLECTION})
    total: int = 0
    ends: Counter[int] = field(default_factory=Counter)
    """HTTP status of refused upgrades, and close codes (1006 for none)."""
    got: list[int] = field(default_factory=list)
    seen_ids: set[str] = field(default_factory=set)
    repeated: int = 0
    resyncs: list[dict[str, Any]] = field(default_factory=list)
    drops: int = 0
    refused: int = 0
    token: str | None = None

    async def read(self, total: int, drops: int) -> None:
        """Read until `total` numbers came (it may be lowered meanwhile), with `drops` cuts spread over them."""
        turn = 0
        self.total = total
        while len(self.got) < self.total:
            turn += 1
            try:
                await self._one_connection(self.services[turn % len(self.services)], self._quota(drops))
            except (OSError, WebSocketException, InvalidHandshake) as error:
                self.refused += 1
                self._note_end(error)
                await asyncio.sleep(_RETRY_S)

    def _quota(self, drops: int) -> int:
        """How many events the next connection may bring before it is cut."""
        if self.cut_every is not None:
            return self.rng.randint(0, 2 * self.cut_every)
        left = self.total - len(self.got)
        return left if self.drops >= drops else self.rng.randint(0, max(1, 2 * left // (drops - self.drops)))

    def _note_end(self, error: Exception) -> None:
        if isinstance(error, InvalidStatus):
            self.ends[error.response.status_code] += 1
        elif isinstance(error, ConnectionClosed):
            self.ends[error.rcvd.code if error.rcvd is not None else 1006] += 1

    async def _one_connection(self, service: Service, quota: int) -> None:
        url = f"ws://127.0.0.1:{self.port_of(service)}/v1/ws"
        headers = {"Authorization": f"Bearer {self.jwt_of(self.tenant)}"}
        async with connect(
            url, additional_headers=headers, proxy=None, open_timeout=5, close_timeout=1
        ) as socket:
            request: dict[str, Any] = {"type": "subscribe", "id": "n", "topic": self.topic}
            if self.token is not None:
                request["resumeAfter"] = self.token
            await socket.send(json.dumps(request))
            while len(self.got) < self.total:
                if quota <= 0 and self.token is not None:
                    self.drops += 1
                    socket.transport.abort()
                    return
                frame = received(await asyncio.wait_for(socket.recv(), self.silent_s))
                quota -= self._take(frame)

    def _take(self, frame: dict[str, Any]) -> int:
        match frame["type"]:
            case "event":
                event = frame["event"]
                if event["_id"] in self.seen_ids:
                    self.repeated += 1
                else:
                    self.seen_ids.add(event["_id"])
                    self.got.append(event["documentKey"]["_id"])
                self.token = event["_id"]
                return 1
            case "subscribed" if "token" in frame:
                self.token = frame["token"]
            case "checkpoint":
                (self.token,) = frame["tokens"].values()
            case "error" if self.outages and frame["code"] == "source_unavailable":
                raise ConnectionError(frame["message"])
            case "error" if self.doubled and frame["code"] == "already_subscribed":
                pass
            case "resync" | "error":
                self.resyncs.append(frame)
                raise AssertionError(f"{frame} after {len(self.got)} numbers and {self.drops} drops")
        return 0


@contextlib.asynccontextmanager
async def killed_and_restarted(
    services: Sequence[Service],
    every_s: float,
    rng: random.Random,
    start: Callable[[Service], object] = Service.start,
) -> AsyncIterator[list[int]]:
    """Kills one of the services with -9 every `every_s` or so and starts it again; yields the list of kills."""
    kills: list[int] = []
    stop = asyncio.Event()

    async def run() -> None:
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), every_s * rng.uniform(0.7, 1.3))
                return
            victim = rng.randrange(len(services))
            kills.append(victim)
            await asyncio.to_thread(services[victim].kill)
            await asyncio.to_thread(start, services[victim])

    task = asyncio.create_task(run())
    try:
        yield kills
    finally:
        stop.set()
        await task
