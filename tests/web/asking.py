"""The whole application over a world, asked as a client asks it, without sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from feedsvc.adapters.telemetry.metrics import PrometheusMetrics
from feedsvc.adapters.telemetry.recent_errors import RecentErrors
from feedsvc.adapters.web.authentication import Authentication
from feedsvc.adapters.web.descriptors import write_each
from feedsvc.adapters.web.explain import ExplainEndpoint
from feedsvc.adapters.web.http import Health, Routes, build_app
from feedsvc.adapters.web.sse import SseFeed
from feedsvc.adapters.web.status import StatusEndpoint
from feedsvc.adapters.web.status_streams import StatusStreams
from feedsvc.adapters.web.tickets import TicketsEndpoint
from feedsvc.adapters.web.ws import WebSocketFeed
from feedsvc.core.limits import Limits
from feedsvc.core.stream_token import StreamSealer
from feedsvc.core.tickets import TicketSealer
from feedsvc.runtime.lifecycle import Lifecycle
from feedsvc.runtime.status import StatusReport
from tests.runtime.world import World, running

KEY = b"k" * 32
ORIGIN = "https://app.example"


class Fine:
    """A probe of a healthy process."""

    def live(self) -> Health:
        return Health(ok=True, status="ok")

    startup = ready = live


def sealer(world: World, *keys: bytes) -> TicketSealer:
    limits = world.hub.limits
    return TicketSealer(keys or (KEY,), lifetime_s=limits.ticket_lifetime_s, max_chars=limits.ticket_chars)


def authentication(world: World, *origins: str, keys: tuple[bytes, ...] = ()) -> Authentication:
    return Authentication(
        world.context.verifier, world.hub.policy, sealer(world, *keys), world.clock, frozenset(origins)
    )


class Application:
    """One instance's application. `status` may be replaced to see what a failure of ours becomes."""

    def __init__(self, world: World, *, keys: tuple[bytes, ...] = ()) -> None:
        self.world = world
        self.metrics = PrometheusMetrics("1.2.3", strict=True)
        self.lifecycle = Lifecycle()
        self.authentication = authentication(world, ORIGIN, keys=keys)
        self.errors = RecentErrors(world.report, world.clock.wall)
        self.status = StatusReport(
            world.hub, self.lifecycle, world.clock, self.metrics.totals, self.errors.latest, "1.2.3"
        )
        context, limits = world.context, world.hub.limits
        self.status_streams = StatusStreams(
            lambda: self.status(), limits, world.clock, lambda: 0.0, self.metrics, world.report
        )
        routes = Routes(
            feed=WebSocketFeed(context, self.lifecycle, self.authentication, limits.high_water_bytes),
            sse=SseFeed(context, self.lifecycle, self.authentication, StreamSealer((KEY,))),
            probe=Fine(),
            exposition=self.metrics.render,
            explain=ExplainEndpoint(context, self.authentication),
            tickets=TicketsEndpoint(
                self.authentication, world.clock, self.metrics, limits.tickets_per_minute
            ),
            status=StatusEndpoint(self.authentication, self.status_streams, self.metrics),
            openapi=b"openapi: 3.1.0\n",
            api_page=b"<!doctype html><style>p {}</style><p>feedsvc",
        )
        self.app = build_app(routes, frozenset({ORIGIN}), self.metrics, world.report)
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://feedsvc")

    async def request(
        self, method: str, path: str, *, jwt: str | None = "alice", headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """`jwt` None: none is sent."""
        credentials = {} if jwt is None else {"Authorization": f"Bearer {jwt}"}
        return await self.client.request(method, path, headers={**credentials, **(headers or {})})

    def counted(self, name: str, **labels: str) -> float:
        """The value of a counter on the page of metrics."""
        series = name + "".join(f'{{{label}="{value}"}}' for label, value in labels.items())
        page = self.metrics.render()[0].decode().splitlines()
        (line,) = [line for line in page if line.startswith(f"{series} ")]
        return float(line.rpartition(" ")[2])


@asynccontextmanager
async def application(limits: Limits | None = None, **arguments: Any) -> AsyncIterator[Application]:
    async with running(limits, write_each=write_each, **arguments) as world:
        asked = Application(world)
        async with asked.client:
            yield asked


def code(response: httpx.Response) -> str:
    """The code of a problem document, which it is."""
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["cache-control"] == "no-store"
    assert response.json()["status"] == response.status_code
    found: str = response.json()["code"]
    return found
