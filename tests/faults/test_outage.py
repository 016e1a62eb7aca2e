"""An outage of MongoDB (must show 3): clients stay, are told at once, and miss nothing.

`stalled` comes within FEEDSVC_STALL_AFTER + 1 s; once the engine is back, all is as if nothing had been.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from pathlib import Path

import pytest

from feedsvc.runtime.pulse import SETTLES_S
from tests.faults.follower import Follower, service_of
from tests.support.engine import Engine
from tests.support.service import Service

CLIENTS = 50
COLLECTIONS = 5
STALL_AFTER_S = 1.0
BACK_WITHIN_S = 3.0
QUIET_S = SETTLES_S + 3


async def outage(outage_s: float, how: str, tail_scope: str, directory: Path, database: str) -> None:
    """`how` the engine goes: "kill" is a crash, "stop" ends it orderly, "freeze" leaves its connections open."""
    engine = Engine().start()
    try:
        service = Service(engine.uri, directory, tail_scope=tail_scope, stall_after=str(STALL_AFTER_S))
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(service_of(service))
            names = [f"c{number}" for number in range(COLLECTIONS)]
            followers = [
                await stack.enter_async_context(Follower(service, database, names[number % COLLECTIONS]))
                for number in range(CLIENTS)
            ]
            async with asyncio.timeout(30):
                await asyncio.gather(*(follower.live.wait() for follower in followers))

            def write(*numbers: int) -> None:
                for name in names:
                    engine.client[database][name].insert_many([{"_id": number} for number in numbers])

            write(0, 1, 2)
            await asyncio.gather(*(follower.reaches(2, 10) for follower in followers))
            await asyncio.sleep(2 * STALL_AFTER_S)
            assert all(not follower.stalls for follower in followers)
            match how:
                case "kill":
                    engine.kill()
                case "freeze":
                    engine.pause()
                case "stop":
                    await asyncio.to_thread(engine.end)
            began = time.monotonic()
            await asyncio.sleep(outage_s / 2)
            code, body = service.get("/healthz/ready")
            assert (code, json.loads(body)["status"]) == (200, "degraded")
            await asyncio.sleep(began + outage_s - time.monotonic())
            if how == "freeze":
                engine.resume()
            else:
                await asyncio.to_thread(engine.start)
            back = time.monotonic()
            await asyncio.to_thread(write, 3, 4, 5)
            await asyncio.gather(*(follower.reaches(5, 30) for follower in followers))
            recovered_s = time.monotonic() - back
            async with asyncio.timeout(10):
                while any(follower.stalls[-1][1] for follower in followers):  # noqa: ASYNC110 - fifty events
                    await asyncio.sleep(0.05)
    finally:
        engine.stop()
    told_s = [follower.stalls[0][0] - began for follower in followers]
    print(
        f"\n{how} {outage_s:.0f} s, {tail_scope}: stalled after {min(told_s):.2f} to {max(told_s):.2f} s, "
        f"all {CLIENTS} caught up {recovered_s:.2f} s after the engine answered again"
    )
    for follower in followers:
        assert follower.heard == [0, 1, 2, 3, 4, 5]
        assert (follower.closes, follower.refusals) == (0, [])
        assert [stalled for _, stalled in follower.stalls] == [True, False]
    assert max(told_s) <= STALL_AFTER_S + 1
    assert recovered_s <= BACK_WITHIN_S


@pytest.mark.parametrize("how, tail_scope", [("kill", "collection")])
async def test_a_short_outage(how: str, tail_scope: str, tmp_path: Path, fresh_database: str) -> None:
    await outage(6, how, tail_scope, tmp_path, fresh_database)


@pytest.mark.parametrize("noop_heartbeat_s", [0, pytest.param(1, marks=pytest.mark.verify)])
async def test_a_quiet_deployment_is_not_stalled(
    noop_heartbeat_s: int, tmp_path: Path, fresh_database: str
) -> None:
    """Longer than a tail that stands still is borne, also where nothing at all is written and the engine's operation
    time is ahead of its entries, because a second stream was opened."""
    engine = Engine(noop_heartbeat_s=noop_heartbeat_s).start()
    try:
        service = Service(engine.uri, tmp_path, tail_scope="collection", stall_after=str(STALL_AFTER_S))
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(service_of(service))
            followers = []
            for name in ("a", "b", "c"):
                follower = await stack.enter_async_context(Follower(service, fresh_database, name))
                followers.append(follower)
                async with asyncio.timeout(20):
                    await follower.live.wait()
            await asyncio.sleep(QUIET_S)
            engine.client[fresh_database]["a"].insert_one({"_id": 0})
            await followers[0].reaches(0, 10)
            await asyncio.sleep(STALL_AFTER_S)
            code, body = service.get("/healthz/ready")
            assert (code, json.loads(body)["status"]) == (200, "ok")
        assert [follower.stalls for follower in followers] == [[], [], []]
    finally:
        engine.stop()


@pytest.mark.verify
@pytest.mark.parametrize("tail_scope", ["collection", "deployment"])
@pytest.mark.parametrize("how", ["kill", "stop", "freeze"])
async def test_an_outage_of_20_seconds(
    how: str, tail_scope: str, tmp_path: Path, fresh_database: str
) -> None:
    """With VERIFY_SCALE=short 10 seconds."""
    outage_s = 10 if os.environ.get("VERIFY_SCALE") == "short" else 20
    await outage(outage_s, how, tail_scope, tmp_path, fresh_database)
