"""A dead tail shows in heartbeat, readiness, metrics and status within 10 s. Its recovery shows once it is read again,
which a stream that failed for long waits for (`runtime.backoff`).

Dead in two ways: the change stream fails again and again while MongoDB answers everything else, which is this process's
fault as far as anybody can tell; and MongoDB is frozen, with all its connections open.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.ops.holding import holds
from tests.support.engine import Engine
from tests.support.proxy import EngineProxy, Fault
from tests.support.service import Client, Service, client_of, make_jwt

WITHIN_S = 10.0
"""The promise, with FEEDSVC_STALL_AFTER as it is by default."""
CURSOR_NOT_FOUND = 43


class Watched:
    """One service with one subscriber, and the four places where an operator or a client looks."""

    def __init__(self, service: Service, client: Client, tenant: str) -> None:
        self._service = service
        self._client = client
        self._headers = {"Authorization": f"Bearer {make_jwt(tenant, scope='feedsvc:admin')}"}
        self.shown_s: dict[str, float] = {}

    def ready(self) -> tuple[int, str]:
        code, body = self._service.get("/healthz/ready")
        return code, json.loads(body)["status"]

    def page(self) -> str:
        return self._service.get("/metrics")[1]

    def status(self) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._service.port}/v1/status"
        found: dict[str, Any] = (
            httpx.get(url, headers=self._headers, trust_env=False).raise_for_status().json()
        )
        return found

    async def heartbeat(self, *, stalled: bool) -> None:
        """The next heartbeat that says so."""
        await self._client.until(
            lambda frame: frame["type"] == "heartbeat" and bool(frame["stalled"]) is stalled, 2 * WITHIN_S
        )

    async def all_show(self, *places: tuple[str, Callable[[], bool]], stalled: bool) -> None:
        """Every place, and the heartbeat; what is dead, within the time. `shown_s` says when each did."""
        began = time.monotonic()

        async def shows(name: str, condition: Callable[[], bool]) -> None:
            while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - it is asked over HTTP
                await asyncio.sleep(0.1)
            self.shown_s[name] = time.monotonic() - began

        async def beats() -> None:
            await self.heartbeat(stalled=stalled)
            self.shown_s["heartbeat"] = time.monotonic() - began

        self.shown_s.clear()
        async with asyncio.timeout(3 * WITHIN_S):
            await asyncio.gather(beats(), *(shows(name, condition) for name, condition in places))
        print(", ".join(f"{name} {after_s:.1f} s" for name, after_s in self.shown_s.items()))
        assert not stalled or max(self.shown_s.values()) <= WITHIN_S


@contextlib.contextmanager
def served(uri: str, directory: Path, **settings: Any) -> Iterator[Service]:
    service = Service(uri, directory, tail_scope="collection", **settings)
    try:
        yield service.start()
    finally:
        service.kill()


async def failing_stream(engine: Engine, directory: Path, tenant: str, **settings: Any) -> None:
    with EngineProxy(engine.port) as proxy, served(proxy.uri, directory, **settings) as service:
        async with client_of(service, tenant) as client:
            await client.subscribe("orders")
            watched = Watched(service, client, tenant)
            assert watched.ready() == (200, "ok")
            proxy.faults = [
                Fault(command, CURSOR_NOT_FOUND, collection="orders") for command in ("getMore", "aggregate")
            ]

            def in_status() -> bool:
                found = watched.status()
                (tail,) = found["tails"]
                errors = [error for error in found["recentErrors"] if error["event"] == "tail.failed"]
                return (
                    tail["stalled"]
                    and tail["error"] == "SourceUnavailable"
                    and bool(errors)
                    and errors[0]["scope"]["collection"] == "orders"
                    and found["tailErrors"]["SourceUnavailable"] > 0
                )

            await watched.all_show(
                ("readiness", lambda: watched.ready() == (503, "failing")),
                ("metrics", lambda: holds("FeedsvcTailStalled", watched.page())),
                ("status", in_status),
                stalled=True,
            )
            assert not holds("FeedsvcSourceUnavailable", watched.page())
            proxy.faults = []
            await watched.all_show(
                ("readiness", lambda: watched.ready() == (200, "ok")),
                ("metrics", lambda: not holds("FeedsvcTailStalled", watched.page())),
                ("status", lambda: not watched.status()["tails"][0]["stalled"]),
                stalled=False,
            )


async def frozen_mongodb(directory: Path, tenant: str, **settings: Any) -> None:
    engine = Engine().start()
    try:
        with served(engine.uri, directory, **settings) as service:
            async with client_of(service, tenant) as client:
                await client.subscribe("orders")
                watched = Watched(service, client, tenant)
                assert watched.ready() == (200, "ok")
                engine.pause()
                await watched.all_show(
                    ("readiness", lambda: watched.ready() == (200, "degraded")),
                    ("metrics", lambda: holds("FeedsvcTailStalled", watched.page())),
                    ("source_up", lambda: holds("FeedsvcSourceUnavailable", watched.page())),
                    (
                        "status",
                        lambda: (
                            watched.status()["sourceError"] is not None
                            and watched.status()["tails"][0]["stalled"]
                        ),
                    ),
                    stalled=True,
                )
                engine.resume()
                await watched.heartbeat(stalled=False)
    finally:
        with contextlib.suppress(RuntimeError, ProcessLookupError):
            engine.resume()
        engine.stop()


@pytest.mark.verify
async def test_a_failing_stream_shows_within_10_seconds(
    engine: Engine, fresh_database: str, tmp_path: Path
) -> None:
    await failing_stream(engine, tmp_path, fresh_database)


@pytest.mark.verify
async def test_a_frozen_mongodb_shows_within_10_seconds(fresh_database: str, tmp_path: Path) -> None:
    await frozen_mongodb(tmp_path, fresh_database)
