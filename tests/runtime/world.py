"""A hub over an in-memory oplog, and clients over in-memory connections: the runtime without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from feedsvc.adapters.mongo.extjson import encode_json
from feedsvc.adapters.telemetry.log_table import LOG_EVENTS
from feedsvc.core.limits import Limits
from feedsvc.core.lockstep import WriteEach
from feedsvc.core.policy import Policy
from feedsvc.ports import NO_TRACER, AuthError, Claims, Clock, NoMetrics, Tracer, Verifier
from feedsvc.runtime.beats import Beats
from feedsvc.runtime.client import Client
from feedsvc.runtime.client_context import ClientContext
from feedsvc.runtime.hub import Hub, HubSettings
from feedsvc.runtime.wheel import Wheel
from feedsvc.testing import START, ManualClock, MemoryConnection, MemoryOplog, MemorySource, MemoryVerifier
from tests.support.frames import CheckedConnection, Frame, received

WALL = float(START >> 32)
DATABASE = "app_acme"
POLICY: Mapping[str, Any] = {
    "tenant": {"claim": "tenant", "database": "app_{tenant}"},
    "collections": {
        "orders": {"scopes": ["orders:read"]},
        "mine": {"filter": {"owner": "{claims.owner}"}, "fields": {"cost": 0}},
        "shared": {"filter": {"owner": "{claims.owner}"}, "allowPartial": True},
        "partly": {"filter": {"owner": "a"}, "allowPartial": True},
        "users": {},
    },
}
WITHIN_S = 10.0


def claims(
    tenant: str = "acme",
    *,
    subject: str = "alice",
    scopes: str = "orders:read",
    left_s: float = 100_000,
    **more: Any,
) -> Claims:
    return Claims(subject, WALL + left_s, frozenset(scopes.split()), {"tenant": tenant, **more})


def verifier() -> MemoryVerifier:
    return MemoryVerifier(
        {
            "alice": claims(owner="a"),
            "alice-later": claims(owner="a", left_s=200_000),
            "alice-without-orders": claims(scopes="", owner="a"),
            "alice-of-b": claims(owner="b"),
            "bob": claims(subject="bob", owner="b"),
            "other-tenant": claims("globex"),
            "no-tenant": Claims("x", WALL + 100, frozenset(), {}),
            "past": Claims("alice", WALL - 1, frozenset(), {"tenant": "acme"}),
            "expired": AuthError("auth_expired", "the JWT has expired"),
            "keys-away": AuthError("source_unavailable", "no keys", retryable=True),
        }
    )


class World:
    def __init__(
        self,
        limits: Limits,
        source: Callable[[MemoryOplog], MemorySource],
        level: Any,
        check: Verifier,
        clock: Any,
        policy: Mapping[str, Any],
        tracer: Tracer,
        write_each: WriteEach,
    ) -> None:
        self.oplog = MemoryOplog()
        self.source = source(self.oplog)
        self.clock = clock
        self.reports: list[tuple[str, Mapping[str, object]]] = []
        self.closed: list[Client] = []
        self.clients: list[Client] = []
        settings = HubSettings(
            policy=Policy.parse(policy),
            limits=limits,
            level=level,
            source_epoch="",
            token_keys=(b"k" * 32,),
            encode_json=encode_json,
            random=lambda: 0.0,
            write_each=write_each,
        )
        self.hub = Hub(settings, self.source, self.source, self.clock, NoMetrics(), self.report, tracer)
        self.context = ClientContext(
            hub=self.hub,
            verifier=check,
            clock=self.clock,
            metrics=NoMetrics(),
            report=self.report,
            random=lambda: 0.0,
            server="feedsvc test",
            tracer=tracer,
            wheel=Wheel(self.clock),
            beats=Beats(self.hub, self.clock),
        )

    def report(self, event: str, fields: Mapping[str, object]) -> None:
        assert fields.keys() <= set(LOG_EVENTS[event].fields), (event, *fields)
        self.reports.append((event, fields))

    def reported(self, event: str) -> bool:
        return any(name == event for name, _ in self.reports)

    def peer(self, *, room: int | None = None, direct: bool = True) -> Peer:
        return Peer(self, CheckedConnection(room=room, direct=direct))

    async def signed_in(self, jwt: str = "alice", *, room: int | None = None, direct: bool = True) -> Peer:
        peer = self.peer(room=room, direct=direct)
        peer.client.start(None)
        peer.say("auth", jwt=jwt)
        await peer.frame("welcome")
        return peer

    async def read_all(self) -> None:
        """Every live tail has read what the oplog holds."""
        await until(
            lambda: all(
                feed.placement.live is not None and feed.placement.live.head.cluster_time >= self.oplog.now
                for feed in self.hub.feeds.values()
            )
        )

    def subscriptions(self) -> int:
        return sum(feed.placement.subscriptions for feed in self.hub.feeds.values())


class Peer:
    """The other end of one connection: says frames, and reads what came, each once."""

    def __init__(self, world: World, connection: CheckedConnection) -> None:
        self.world = world
        self.connection = connection
        self.client = Client(world.context, connection, f"c{len(world.clients)}", world.closed.append)
        world.clients.append(self.client)
        self._read = 0

    def say(self, type: str, **fields: Any) -> None:
        self.client.receive(msgspec.json.encode({"type": type, **fields}))

    def subscribe(self, collection: str = "orders", id: str = "s", **fields: Any) -> None:
        topic = {"collection": collection, **fields.pop("topic", {})}
        self.say("subscribe", id=id, topic=topic, **fields)

    async def subscribed(self, collection: str = "orders", **fields: Any) -> Frame:
        """Subscribe, and wait until the subscription is live."""
        self.subscribe(collection, **fields)
        answer = await self.frame("subscribed")
        await self.frame("live")
        return answer

    def take(self) -> list[Frame]:
        """The frames that were not read yet."""
        frames = [received(frame) for frame in self.connection.frames[self._read :]]
        self._read += len(frames)
        return frames

    def take_one(self) -> Frame | None:
        """The next frame that was not read yet, if there is one."""
        if self._read == len(self.connection.frames):
            return None
        self._read += 1
        return received(self.connection.frames[self._read - 1])

    async def frame(self, type: str) -> Frame:
        """The next frame, which is of this type."""
        await until(lambda: len(self.connection.frames) > self._read or self.connection.closed is not None)
        assert len(self.connection.frames) > self._read, self.connection.closed
        frame = received(self.connection.frames[self._read])
        self._read += 1
        assert frame["type"] == type, frame
        return frame

    async def close(self) -> tuple[int, str]:
        """How the service closed this connection."""
        await until(lambda: self.connection.closed is not None)
        assert self.connection.closed is not None
        return self.connection.closed

    async def later(self, seconds: float) -> None:
        """Let time pass; the answer to a ping shows that what was due has been dealt with."""
        self.world.clock.advance(seconds)
        self.client.due()  # the loop's own clock did not move
        for _ in range(5):
            await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until a condition holds; it is asked once in each round, and nothing is slept."""
    async with asyncio.timeout(WITHIN_S):
        while not condition():  # noqa: ASYNC110 - conditions of many parts have no one event
            await asyncio.sleep(0)


@asynccontextmanager
async def running(
    limits: Limits | None = None,
    *,
    source: Callable[[MemoryOplog], MemorySource] = MemorySource,
    level: str = "deployment",
    check: Verifier | None = None,
    clock: Clock | None = None,
    policy: Mapping[str, Any] = POLICY,
    tracer: Tracer = NO_TRACER,
    write_each: WriteEach = MemoryConnection.write_each,
) -> AsyncIterator[World]:
    """A started world. At its end all clients go, and nothing of them may be left: no topic, no task."""
    before = asyncio.all_tasks()
    world = World(
        limits or Limits(),
        source,
        level,
        check or verifier(),
        clock or ManualClock(),
        policy,
        tracer,
        write_each,
    )
    world.hub.start()
    try:
        yield world
        for client in world.clients:
            client.transport_closed()
        await until(lambda: world.subscriptions() == 0)
        assert (
            world.hub.admission.connections == world.hub.admission.topics == world.hub.admission.waiting == 0
        )
        assert sorted(map(id, world.closed)) == sorted(map(id, world.clients))
    finally:
        closing = asyncio.ensure_future(world.hub.close())
        while not closing.done():
            world.oplog.wake()
            await asyncio.sleep(0)
        await closing
    assert asyncio.all_tasks() <= before
