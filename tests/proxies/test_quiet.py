"""Quiet feeds behind proxies with their default time-outs: TRA-09, TRA-10.

A proxy cuts what says nothing for a minute (nginx, `proxy_read_timeout`) or for 50 s (Debian's HAProxy), and nginx
keeps back what a server says slowly. Heartbeats prevent the one, `X-Accel-Buffering` the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.numbers import COLLECTION
from tests.proxies.fronts import FRONTS, Front, HAProxy, Nginx, running
from tests.support.engine import Engine
from tests.support.service import Client, Service, client_of
from tests.support.sse import Stream, arguments, opened

SHORT = os.environ.get("VERIFY_SCALE") == "short"
IDLE_S = 16.0 if SHORT else 300.0
TIMEOUTS: dict[type[Front], dict[str, str]] = {Nginx: {}, HAProxy: {}}
SETTINGS: dict[str, Any] = {}
HEARTBEAT_S = 20.0
if SHORT:
    # All a sixth of what it is: time-outs, heartbeats, checkpoints, pings.
    TIMEOUTS = {
        Nginx: {"proxy_read_timeout": "10s"},
        HAProxy: {"timeout client": "8s", "timeout server": "8s"},
    }
    SETTINGS = {"heartbeat_interval": "3.3", "checkpoint_interval": "2.5", "peer_timeout": "10"}
    HEARTBEAT_S = 3.3
EVENTS = 8
GZIP = {"Accept-Encoding": "gzip"}


class Watched:
    """A feed through a front, WebSocket or stream: when each event of it came, in monotonic seconds."""

    def __init__(self, name: str, feed: Client | Stream) -> None:
        self.name = name
        self.feed = feed
        self.arrivals: dict[int, float] = {}

    async def listen(self) -> None:
        """Until all events came. The end of the connection is an error of this task."""
        while len(self.arrivals) < EVENTS:
            frame = await self.feed.receive(timeout_s=3 * HEARTBEAT_S)
            if frame["type"] == "event":
                self.arrivals[frame["event"]["documentKey"]["_id"]] = time.monotonic()

    def count(self, kind: str) -> int:
        return sum(frame["type"] == kind for frame in self.feed.seen)


@contextlib.asynccontextmanager
async def feeds_through(front: Front, tenant: str) -> AsyncIterator[list[Watched]]:
    """A WebSocket and a stream that have gone live."""
    name = type(front).__name__
    given = arguments(tenant, COLLECTION)
    given["headers"].update(GZIP)
    async with client_of(front, tenant) as client, opened(front, "GET", **given) as stream:
        await client.subscribe(COLLECTION)
        await stream.live()
        yield [Watched(f"{name} WebSocket", client), Watched(f"{name} stream", stream)]


@pytest.mark.verify
@pytest.mark.timeout(600)
async def test_quiet_feeds_stay_up_behind_default_time_outs_and_nothing_is_kept_back(
    engine_of_its_own: Engine, fresh_database: str, tmp_path: Path
) -> None:
    """Five minutes without an event (scaled down with VERIFY_SCALE=short), then one in each second."""
    numbers = engine_of_its_own.client[fresh_database][COLLECTION]
    with Service(engine_of_its_own.uri, tmp_path, **SETTINGS) as service:
        fronts = [kind(tmp_path, [service], TIMEOUTS[kind]) for kind in FRONTS]
        with running(*fronts):
            async with contextlib.AsyncExitStack() as stack:
                watched: list[Watched] = []
                for front in fronts:
                    watched += await stack.enter_async_context(feeds_through(front, fresh_database))
                async with asyncio.TaskGroup() as listening:
                    for each in watched:
                        listening.create_task(each.listen())
                    await asyncio.sleep(IDLE_S)  # the silence itself
                    beats = {each.name: each.count("heartbeat") for each in watched}
                    written = await one_each_second(numbers)
                for each in watched:
                    told(each, beats[each.name], written)
        # The four sockets of the first minute are all that there ever were.
        assert service.log().count('"event":"connection.opened"') == len(watched)
    assert [line for line in service.log().splitlines() if "Traceback" in line] == []


async def one_each_second(numbers: Any) -> list[float]:
    """When each insert began."""
    written = []
    for number in range(EVENTS):
        written.append(time.monotonic())
        await asyncio.to_thread(numbers.insert_one, {"_id": number})
        await asyncio.sleep(max(0.0, written[0] + number + 1 - time.monotonic()))
    return written


def told(each: Watched, beats: int, written: list[float]) -> None:
    assert beats >= IDLE_S / HEARTBEAT_S - 1, (each.name, beats)
    latencies = [each.arrivals[number] - at for number, at in enumerate(written)]
    assert max(latencies) < 0.5, (each.name, latencies)
    print(
        f"\n{each.name}: {beats} heartbeats in {IDLE_S:.0f} s without an event, the same connection; then "
        f"{len(written)} events, the latest after {1000 * max(latencies):.0f} ms"
    )
    if isinstance(each.feed, Stream):
        assert "content-encoding" not in each.feed.response.headers
        assert each.feed.response.headers["cache-control"] == "no-store"
