"""The world of a schedule: one oplog, two or three instances of the real hub over it, and what may go wrong there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random

import msgspec

from feedsvc.core.changes import ScopeLevel
from feedsvc.core.extjson import to_json
from feedsvc.core.limits import Limits
from feedsvc.core.policy import Policy
from feedsvc.core.positions import Position
from feedsvc.core.tokens import TokenSealer
from feedsvc.ports import Claims, NoMetrics
from feedsvc.runtime.beats import Beats
from feedsvc.runtime.client_context import ClientContext
from feedsvc.runtime.hub import Hub, HubSettings
from feedsvc.runtime.wheel import Wheel
from feedsvc.testing import MemoryConnection, MemoryOplog, MemoryVerifier
from tests.simulation.faults import FaultySource
from tests.simulation.model import History
from tests.simulation.virtual_time import WorkingClock

TENANTS = ("a", "b")
KEYS = (bytes(range(32)),)
_POLICY = Policy.parse({"tenant": {"claim": "tenant", "database": "app_{tenant}"}, "collections": {"*": {}}})
_TURN_S = 0.01
CLAIMS = {name: Claims(name, 1e12, frozenset(), {"tenant": name}) for name in TENANTS}


class Violation(AssertionError):
    """A promise was broken."""


class Figures(msgspec.Struct):
    """What schedules went through, so that a test can see that they were worth running."""

    entries: int = 0
    events: int = 0
    """Processed by a consumer."""
    resumed: int = 0
    resyncs: int = 0
    streams: int = 0
    """Opened upstream."""
    snapshots: int = 0
    """Read to their end by a consumer."""
    views: int = 0
    """Compared with the database at the end."""
    switches: int = 0
    """Topics that ended because their collection's images were switched, and were asked for in the other mode."""
    snapshots_failed: int = 0
    """Attempts that the source ended."""
    snapshots_anew: int = 0
    """Begun again with page 0 behind a page of such an attempt that a consumer had processed."""
    snapshots_lost: int = 0
    """Ended by a resync."""
    losses: int = 0
    """Faults that lost a position."""

    def add(self, other: Figures) -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Instance:
    """One process of the service."""

    def __init__(self, world: World, max_records: int, pace_s: float) -> None:
        self.source = FaultySource(world.oplog, world.rng, max_records, pace_s)
        self.clock = WorkingClock(asyncio.get_running_loop(), world.rng, world.laziness)
        settings = HubSettings(
            policy=_POLICY,
            limits=world.limits,
            level=world.level,
            source_epoch="1",
            token_keys=KEYS,
            encode_json=lambda tree: msgspec.json.encode(to_json(tree)),
            random=world.rng.random,
            write_each=MemoryConnection.write_each,
        )
        self.hub = Hub(settings, self.source, self.source, self.clock, NoMetrics(), world.report)
        self.context = ClientContext(
            self.hub,
            MemoryVerifier(),
            self.clock,
            NoMetrics(),
            world.report,
            world.rng.random,
            "simulation",
            Wheel(self.clock),
            Beats(self.hub, self.clock),
        )
        self.hub.start()

    @property
    def losses_over(self) -> int:
        """The losses so far that newcomers do not meet any more.

        A live tail loses them until it is open again; a catch-up tail until its reader has had its turn.
        """
        pending = any(feed.live._lost is not None for feed in self.hub.feeds.values())
        just_now = asyncio.get_running_loop().time() - self.source.last_loss < _TURN_S
        return self.source.losses - (pending or just_now)


class World:
    """Owns the oplog and the instances. `limits` are small, so that everything overflows."""

    def __init__(self, rng: Random, level: ScopeLevel, limits: Limits, images: bool, laziness: float) -> None:
        self.rng = rng
        self.level: ScopeLevel = level
        self.limits = limits
        self.laziness = laziness
        self.oplog = MemoryOplog(seed=rng.getrandbits(60), images=images)
        self.history = History(self.oplog)
        self.sealer = TokenSealer(KEYS)
        self.instances: list[Instance] = []
        self.closing: list[asyncio.Task[None]] = []
        self.trace: list[str] = []
        self.broken: str | None = None
        self.figures = Figures()
        self.event_ids: dict[tuple[object, ...], str] = {}
        self._reads = asyncio.get_running_loop().create_task(self._end_reads(), name="reads")

    def report(self, event: str, fields: Mapping[str, object]) -> None:
        """What the service would log. What it did not foresee is a violation wherever it happens."""
        self.note(f"{event} {dict(fields)}")
        self.figures.snapshots_failed += event == "snapshot.failed"
        error = str(fields.get("error", ""))
        unforeseen = (
            event in ("catch_up.broken", "client.failed", "event.failed")
            or (event == "tail.failed" and not error.startswith(_FORESEEN))
            or (event == "snapshot.given_up" and not error.startswith("EventUnavailable"))
        )
        if unforeseen:
            self.broken = f"{event}: {error}"

    def note(self, text: str) -> None:
        self.trace.append(f"{asyncio.get_running_loop().time():8.3f} {text}")

    def start_instance(self) -> Instance:
        instance = Instance(
            self, self.rng.choice((1, 1, 2, 3, 5, 8, 1000)), self.rng.choice((0.0, 0.02, 0.2, 0.5))
        )
        self.instances.append(instance)
        return instance

    def end_instance(self, instance: Instance) -> None:
        """Its clients must be cut before."""
        self.instances.remove(instance)
        self.figures.streams += len(instance.source.opened)
        self.figures.losses += instance.source.losses
        self.closing.append(asyncio.get_running_loop().create_task(instance.hub.close(), name="end"))

    def trim(self, count: int) -> None:
        """The oplog forgets; an instance sees at least the oldest entry that is left."""
        self.oplog.trim(count)
        for instance in self.instances:
            if instance.source.visible <= self.oplog.first:
                instance.source.see_only(self.oplog.first + 1)

    def position(self, tenant: str, resume_token: str) -> Position:
        return self.sealer.open(tenant, resume_token).position

    async def close(self) -> None:
        for instance in list(self.instances):
            self.end_instance(instance)
        await asyncio.gather(*self.closing)
        self._reads.cancel()
        self.history.stop()

    async def _end_reads(self) -> None:
        """A read of an idle stream returns within about a second."""
        while True:
            await asyncio.sleep(0.7)
            self.oplog.wake()


_FORESEEN = ("SourceUnavailable", "PositionLost", "EventUnavailable", "SourceRefused")
