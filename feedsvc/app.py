"""The composition root: the only place that wires adapters to the runtime, and the life of one `serve` process.

uvicorn's own signal handling closes every socket with 1012 before anything can be said, so this module owns the
server: SIGTERM turns readiness off, drains the clients (`runtime.lifecycle`), and only then lets the server exit. A
second signal ends the drain at once. Streams are closed last, within one bounded read.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.resources
import os
import random
import resource
import signal
import socket
import time
from collections.abc import Iterator

import uvicorn
import uvloop

from feedsvc import __version__
from feedsvc.adapters.jwt.jwks import JwksVerifier
from feedsvc.adapters.jwt.jwks_fetch import JwksFetch
from feedsvc.adapters.jwt.keys import JwtKey
from feedsvc.adapters.jwt.verifier import JwtVerifier
from feedsvc.adapters.mongo.driver import MongoSource
from feedsvc.adapters.mongo.extjson import encode_json
from feedsvc.adapters.telemetry import logs
from feedsvc.adapters.telemetry.metrics import PrometheusMetrics
from feedsvc.adapters.telemetry.recent_errors import RecentErrors
from feedsvc.adapters.telemetry.tracing import Tracing
from feedsvc.adapters.web.authentication import Authentication
from feedsvc.adapters.web.descriptors import write_each
from feedsvc.adapters.web.explain import ExplainEndpoint
from feedsvc.adapters.web.http import Health, Routes, build_app
from feedsvc.adapters.web.http_protocol import FeedHttpProtocol
from feedsvc.adapters.web.server_protocol import FeedProtocol
from feedsvc.adapters.web.spans import traced
from feedsvc.adapters.web.sse import SseFeed
from feedsvc.adapters.web.status import StatusEndpoint
from feedsvc.adapters.web.status_streams import StatusStreams
from feedsvc.adapters.web.tickets import TicketsEndpoint
from feedsvc.adapters.web.ws import WebSocketFeed
from feedsvc.core.limits import Limits
from feedsvc.core.stream_token import StreamSealer
from feedsvc.core.tickets import TicketSealer
from feedsvc.ports import Metrics, Verifier
from feedsvc.runtime.beats import Beats
from feedsvc.runtime.client_context import ClientContext
from feedsvc.runtime.hub import Hub, HubSettings
from feedsvc.runtime.lifecycle import Lifecycle
from feedsvc.runtime.measure import Measure
from feedsvc.runtime.status import StatusReport
from feedsvc.runtime.tail import Report
from feedsvc.runtime.wheel import Wheel
from feedsvc.settings import Settings

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_REST_OF_SHUTDOWN_S = 3
"""After the drain: what uvicorn may wait for sockets that did not finish their close."""
_CLOSE_STREAMS_S = 3
"""After that: the bounded read of each stream, some rounds of it. A MongoDB that hangs is not waited for longer."""
_CLOSE_SOURCE_S = 3
"""At last: what the source takes at the longest to say goodbye to a MongoDB that hangs (`mongo.clients`)."""


def longest_shutdown_s(limits: Limits) -> float:
    """From the first SIGTERM to the end of the process; a grace period must be longer (docs/rolling-updates.md)."""
    return limits.announce_s + limits.drain_s + _REST_OF_SHUTDOWN_S + _CLOSE_STREAMS_S + _CLOSE_SOURCE_S


class SystemClock:
    """`ports.Clock` of the machine."""

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)


class Probe:
    """The answers of `/healthz/*` (protocol.md section 10)."""

    def __init__(self, hub: Hub, lifecycle: Lifecycle, *, needs_source: bool) -> None:
        self._hub = hub
        self._lifecycle = lifecycle
        self._needs_source = needs_source

    def live(self) -> Health:
        return Health(ok=True, status="ok")

    def startup(self) -> Health:
        """Started once MongoDB has answered for the first time: before that no resume token can be opened."""
        if self._hub.deployment.identified.is_set():
            return Health(ok=True, status="ok")
        return Health(
            ok=False, status="starting", detail=self._hub.deployment.failure or "waiting for MongoDB"
        )

    def ready(self) -> Health:
        if self._lifecycle.leaving:
            return Health(ok=False, status="draining")
        if not self._hub.deployment.identified.is_set():
            return Health(ok=False, status="starting", detail="waiting for the first answer of MongoDB")
        failing = self._hub.stalls.in_use()
        if not failing:
            return Health(ok=True, status="ok")
        detail = f"{len(failing)} change streams do not answer"
        if self._hub.stalls.only_here():
            return Health(ok=False, status="failing", detail=detail)
        return Health(ok=not self._needs_source, status="degraded", detail=detail)


class CannotListen(Exception):
    """The address is taken or not of this machine."""


class FeedServer(uvicorn.Server):
    """uvicorn without its signal handlers, and without its exit of the process where it cannot listen.

    The kernel keeps at most `unsent_bytes` unsent for an accepted socket (TCP_NOTSENT_LOWAT, inherited from the one
    that listens): by itself it takes megabytes, and has no room for minutes on a slow line that is read all the time.
    """

    def __init__(self, config: uvicorn.Config, unsent_bytes: int) -> None:
        super().__init__(config)
        self._unsent_bytes = unsent_bytes

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit:
            raise CannotListen from None
        for listening in self.servers:
            for found in listening.sockets:
                if found.family in (socket.AF_INET, socket.AF_INET6):
                    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, self._unsent_bytes)
                host, port = found.getsockname()[:2]
                logs.report("service.listening", {"host": host, "port": port})

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_verifier(settings: Settings, clock: SystemClock, metrics: Metrics, report: Report) -> Verifier:
    jwt, limits = settings.jwt, settings.limits

    def verifier_of(key: JwtKey) -> JwtVerifier:
        return JwtVerifier(
            key,
            issuer=jwt.issuer,
            audiences=jwt.audiences,
            leeway_s=limits.jwt_leeway_s,
            clock_wall=clock.wall,
            max_bytes=limits.jwt_bytes,
        )

    if jwt.secret is not None:
        return verifier_of(JwtKey.from_secret(jwt.secret.reveal(), jwt.algorithms))
    if jwt.public_key is not None:
        return verifier_of(JwtKey.from_public_key(jwt.public_key.reveal(), jwt.algorithms))
    assert jwt.jwks_url is not None
    return JwksVerifier(
        JwksFetch(jwt.jwks_url, timeout_s=limits.jwks_timeout_s, max_bytes=limits.jwks_bytes),
        verifier_of,
        limits=limits,
        clock_monotonic=clock.monotonic,
        algorithms=jwt.algorithms,
        report=report,
        metrics=metrics,
    )


class Service:
    """One `serve` process: build it in the running loop, then `run`."""

    def __init__(self, settings: Settings) -> None:
        limits = settings.limits
        self._limits = limits
        clock = SystemClock()
        self._source = MongoSource(
            settings.mongodb_uri.reveal(),
            driver=settings.mongo_driver,
            max_streams=limits.max_tails + limits.catch_up_tails,
            # A quiet stream must answer more often than its silence is taken for a stall.
            await_s=min(1.0, limits.stall_after_s / 2),
        )
        errors = RecentErrors(logs.report, clock.wall)
        self._report = errors.report
        self._metrics = PrometheusMetrics(__version__)
        self._tracing = Tracing(os.environ, __version__)
        self._lifecycle = Lifecycle()
        self._hub = Hub(
            HubSettings(
                policy=settings.policy,
                limits=limits,
                level=settings.tail_scope,
                source_epoch=settings.source_epoch,
                token_keys=tuple(key.reveal() for key in settings.token_keys),
                encode_json=encode_json,
                random=random.random,
                write_each=write_each,
            ),
            self._source,
            self._source,
            clock,
            self._metrics,
            self._report,
            self._tracing.tracer,
        )
        self._metrics.on_scrape(Measure(self._hub, self._lifecycle))
        self._verifier = make_verifier(settings, clock, self._metrics, self._report)
        context = ClientContext(
            hub=self._hub,
            verifier=self._verifier,
            clock=clock,
            metrics=self._metrics,
            report=self._report,
            random=random.random,
            server=f"feedsvc/{__version__}",
            tracer=self._tracing.tracer,
            wheel=Wheel(clock),
            beats=Beats(self._hub, clock),
        )
        token_keys = tuple(key.reveal() for key in settings.token_keys)
        tickets = TicketSealer(
            token_keys,
            lifetime_s=limits.ticket_lifetime_s,
            max_chars=limits.ticket_chars,
        )
        authentication = Authentication(
            self._verifier, settings.policy, tickets, clock, settings.allowed_origins
        )
        feed = WebSocketFeed(context, self._lifecycle, authentication, limits.high_water_bytes)
        probe = Probe(self._hub, self._lifecycle, needs_source=settings.ready_needs_source)
        status = StatusReport(
            self._hub, self._lifecycle, clock, self._metrics.totals, errors.latest, __version__
        )
        self._status_streams = StatusStreams(
            status, limits, clock, random.random, self._metrics, self._report
        )
        routes = Routes(
            feed=feed,
            sse=SseFeed(context, self._lifecycle, authentication, StreamSealer(token_keys)),
            probe=probe,
            exposition=self._metrics.render,
            explain=ExplainEndpoint(context, authentication),
            tickets=TicketsEndpoint(authentication, clock, self._metrics, limits.tickets_per_minute),
            status=StatusEndpoint(authentication, self._status_streams, self._metrics),
            openapi=_own_file("openapi.yaml"),
            api_page=_own_file("openapi.html"),
        )
        app = build_app(routes, settings.allowed_origins, self._metrics, self._report)
        server_config = _server_config(settings, limits, traced(app, self._tracing.tracer))
        self._server = FeedServer(server_config, limits.unsent_bytes)

    async def run(self) -> int:
        """Serve until a signal; the exit code."""
        signals: asyncio.Queue[int] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, signals.put_nowait, number)
        await self._source.start()
        self._hub.start()
        if isinstance(self._verifier, JwksVerifier):
            self._verifier.start()
        logs.report("service.started", {"version": __version__})
        serving = loop.create_task(self._server.serve(), name="server")
        stopped = loop.create_task(signals.get(), name="signals")
        try:
            await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                logs.report("service.draining", {"clients": len(self._lifecycle.clients)})
                await self._drain(signals)
                self._status_streams.close()
                self._server.should_exit = True
            await serving
        except CannotListen:
            # Why stands in uvicorn's own line.
            logs.report("service.failed", {"reason": "cannot listen on FEEDSVC_HOST and FEEDSVC_PORT"})
            return 1
        finally:
            stopped.cancel()
            if isinstance(self._verifier, JwksVerifier):
                await self._verifier.aclose()
            self._tracing.close()
            # Reads that hang end with the clients that they belong to.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_STREAMS_S):
                    await self._hub.close()
            await self._source.close()
            logs.report("service.stopped", {})
        return 0

    async def _drain(self, signals: asyncio.Queue[int]) -> None:
        loop = asyncio.get_running_loop()
        again = loop.create_task(signals.get(), name="second-signal")
        drain = loop.create_task(self._lifecycle.leave(self._limits), name="drain")
        await asyncio.wait({again, drain}, return_when=asyncio.FIRST_COMPLETED)
        for task in (again, drain):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def _own_file(name: str) -> bytes:
    """A file of the package."""
    return importlib.resources.files("feedsvc").joinpath(name).read_bytes()


def _server_config(settings: Settings, limits: Limits, app: object) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        host=settings.host,
        port=settings.port,
        loop="none",
        http=FeedHttpProtocol,
        ws=FeedProtocol,
        ws_max_size=limits.frame_bytes,
        ws_ping_interval=limits.peer_timeout_s / 3,
        ws_ping_timeout=limits.peer_timeout_s * 2 / 3,
        ws_per_message_deflate=False,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,  # nothing needs the address of a client, so no header about it is believed
        timeout_graceful_shutdown=_REST_OF_SHUTDOWN_S,
    )


def _raise_file_limit() -> None:
    """Each client is a file descriptor, and the usual soft limit is 1,024: take what the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def serve(settings: Settings) -> int:
    """Run the service until SIGTERM or SIGINT; returns the exit code."""

    async def main() -> int:
        return await Service(settings).run()

    _raise_file_limit()
    return uvloop.run(main())
