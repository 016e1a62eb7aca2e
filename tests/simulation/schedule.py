"""One schedule: a seed decides the world, what happens in it and in which order. Then the faults stop.

Between two actions the schedule lets the loop run for nothing, a few turns or some virtual time, so that actions fall
into the middle of steps, between the frames of one client, and long after everything is quiet.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from random import Random
from typing import Any
from unittest.mock import patch

from feedsvc.core import fan_out_places, lockstep, resync_pace, ring, tokens, topic_log
from feedsvc.core.changes import ScopeLevel
from feedsvc.core.limits import Limits
from feedsvc.core.placement import Placement, Reached
from feedsvc.core.positions import PositionKind, record_position
from feedsvc.ports import EventUnavailable, PositionLost, SourceUnavailable
from feedsvc.runtime import backoff
from feedsvc.runtime import tail as runtime_tail
from tests.simulation import checks
from tests.simulation.consumer import HISTORY_REASONS, Consumer
from tests.simulation.memory import Memory, at_time
from tests.simulation.model import FILTERS, TopicSpec
from tests.simulation.virtual_time import VirtualLoop
from tests.simulation.world import Figures, Instance, Violation, World
from tests.simulation.writes import Writer

_OPERATIONS = (
    ("insert", "update", "replace", "delete"),
    ("insert", "update", "replace", "delete"),
    ("insert",),
    ("update", "delete"),
)
_SHOWN = 200
_ROUNDS = 5


def run(seed: int, trace: list[str] | None = None) -> Figures:
    """Run one schedule; `trace` receives what happened. Raises `Violation` with the seed and the end of the trace."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    schedule = Schedule(seed)
    try:
        return loop.run_until_complete(schedule.run())
    except Exception as error:
        happened = "\n".join(schedule.world.trace[-_SHOWN:]) if schedule.world else ""
        raise Violation(f"seed {seed}: {type(error).__name__}: {error}\n{happened}") from error
    finally:
        if trace is not None and schedule.world is not None:
            trace.extend(schedule.world.trace)
        _abandon(loop)
        asyncio.set_event_loop(None)
        loop.close()


def _abandon(loop: VirtualLoop) -> None:
    """Cancel what a broken schedule left running, and what that starts on its way out."""
    loop.rewind()
    for _ in range(_ROUNDS):
        left = asyncio.all_tasks(loop)
        if not left:
            return
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.wait(left, timeout=60.0))
        for task in left:
            if task.done() and not task.cancelled():
                task.exception()


class Schedule:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.world: World | None = None
        self.consumers: list[Consumer] = []
        self._faults = True

    async def run(self) -> Figures:
        rng = self.rng
        level: ScopeLevel = rng.choice(("collection", "database", "deployment"))
        with ExitStack() as tuned:
            # A schedule fails more often in a minute than the waits between opens, which add up, are made for.
            tuned.enter_context(patch.object(backoff, "WAITS_S", (0.1, 0.3, 0.6)))
            tuned.enter_context(patch.object(resync_pace, "_LONGEST_RETRY_MS", 1_000))
            # Now and then every resume token is too long and takes the digest form, and lists are compacted early.
            if rng.random() < 0.15:
                tuned.enter_context(patch.object(tokens, "_MAX_PAYLOAD_BYTES", 0))
            if rng.random() < 0.5:
                tuned.enter_context(patch.object(ring, "_COMPACT_AT", 4))
                tuned.enter_context(patch.object(topic_log, "_COMPACT_AT", 2))
            # Half of the time others run in the middle of a step, behind every write.
            if rng.random() < 0.5:
                tuned.enter_context(patch.object(lockstep, "_YIELD_EVERY", 1))
                tuned.enter_context(patch.object(fan_out_places, "_YIELD_EVERY", 1))
                tuned.enter_context(patch.object(runtime_tail, "SLICE_S", -1.0))
                tuned.enter_context(patch.object(Placement, "batch", self._disturbed(Placement.batch)))
            world = self.world = World(
                rng, level, self._limits(), rng.random() < 0.7, rng.choice((0, 0, 0.1, 0.5))
            )
            self._settle(world)
            for _ in range(rng.choice((60, 120, 240))):
                await self._pause()
                self._act(world)
                self._check(world)
            await self._end(world)
        return world.figures

    # -- the beginning ------------------------------------------------------------------------------------

    def _limits(self) -> Limits:
        rng = self.rng
        return Limits(
            ring_records=rng.choice((3, 5, 8, 15, 30)),
            log_bytes=rng.choice((700, 2_000, 5_000, 50_000)),
            high_water_bytes=rng.choice((1, 1_000, 64_000)),
            catch_up_tails=rng.choice((1, 1, 2, 3)),
            catch_up_window_s=rng.choice((0.0, 0.01, 0.2)),
            step_aside_after_s=rng.choice((0.2, 1.0, 5.0)),
            catch_up_turn_s=rng.choice((0.5, 5.0, 30.0)),
            max_replay_bytes=3_000 if rng.random() < 0.1 else 1 << 30,
            checkpoint_interval_s=rng.choice((0.2, 1.0, 4.0)),
            slow_after_s=rng.choice((1.0, 5.0, 30.0)),
            snapshots=rng.choice((1, 2, 4)),
            snapshots_per_tenant=rng.choice((1, 2)),
            snapshot_page_bytes=rng.choice((1, 1, 120, 10_000)),
            tail_linger_s=rng.choice((0.5, 3.0)),
            stall_after_s=rng.choice((0.5, 5.0)),
        )

    def _settle(self, world: World) -> None:
        rng = self.rng
        tenants = ("a", "b")[: rng.choice((1, 1, 2))]
        collections = ("x", "y", "z")[: rng.choice((1, 2, 3))]
        topics = [
            TopicSpec(
                rng.choice(tenants),
                rng.choice(collections),
                rng.randrange(len(FILTERS)),
                rng.choice(_OPERATIONS),
            )
            for _ in range(rng.choice((2, 3, 4, 6)))
        ]
        self.writer = Writer(world, tenants, collections)
        for _ in range(rng.randrange(6)):
            self.writer.write()
        for _ in range(rng.choice((2, 2, 3))):
            world.start_instance()
        for number in range(rng.choice((2, 3, 4, 6))):
            tenant = rng.choice(topics).tenant
            mine = list({topic for topic in topics if topic.tenant == tenant})
            mine.sort(key=topics.index)
            rng.shuffle(mine)
            mine = mine[: rng.choice((1, 1, 2, 3))]
            self.consumers.append(Consumer(world, f"c{number}", tenant, mine, rng.random() < 0.5))
        self.trims = rng.random() < 0.6
        self.lags = rng.random() < 0.6
        self.fails = rng.random() < 0.6
        self.loses = rng.random() < 0.35
        self.spoils = rng.random() < 0.3
        self.drops = rng.random() < 0.6
        self.actions: list[tuple[Callable[[World], None], int]] = [
            (self._write, 30),
            (self._transaction, 8),
            (self._tick, 8),
            (self._connect, 10),
            (self._read, 25),
            (self._cut, 10),
            (self._resubscribe, 3),
            (self._stall, 3),
            (self._forget, 4),
            (self._replace_instance, 1),
            (self._trim, 4 if self.trims else 0),
            (self._lag, 10 if self.lags else 0),
            (self._delay, 6 if self.lags else 0),
            (self._unavailable, 6 if self.fails else 0),
            (self._fail_a_find, 8 if self.fails else 0),
            (self._lose, 3 if self.loses else 0),
            (self._refused, 4 if self.spoils else 0),
            (self._drop, 4 if self.drops else 0),
        ]
        self._weights = [weight for _, weight in self.actions]

    async def _pause(self) -> None:
        chosen = self.rng.random()
        if chosen < 0.25:
            return
        if chosen < 0.6:
            for _ in range(self.rng.choice((1, 2, 3, 8))):
                await asyncio.sleep(0)
        elif chosen < 0.95:
            await asyncio.sleep(self.rng.choice((0.001, 0.02, 0.1, 0.4)))
        else:
            await asyncio.sleep(2.0)

    def _act(self, world: World) -> None:
        action = self.rng.choices([action for action, _ in self.actions], self._weights)[0]
        world.note(action.__name__[1:])
        action(world)

    def _disturbed(
        self, batch: Callable[..., Iterator[Reached | None]]
    ) -> Callable[..., Iterator[Reached | None]]:
        def disturbed(*arguments: Any) -> Iterator[Reached | None]:
            for reached in batch(*arguments):
                if self.rng.random() < 0.3:
                    self._disturb()
                yield reached

        return disturbed

    def _disturb(self) -> None:
        """A connection ends, as long as there are faults, or is full for a moment."""
        consumer = self.rng.choice(self.consumers)
        if consumer.connection is None:
            return
        if self._faults and self.rng.random() < 0.1:
            consumer.cut()
            return

        consumer.fill_for_a_moment()

    def _check(self, world: World) -> None:
        if world.broken is not None:
            raise Violation(world.broken)
        checks.bounds(world)

    # -- the database -------------------------------------------------------------------------------------

    def _write(self, world: World) -> None:
        self.writer.write()

    def _transaction(self, world: World) -> None:
        self.writer.transaction(self.rng.choice((2, 3, 5, 10, 40)))

    def _tick(self, world: World) -> None:
        world.oplog.tick()

    def _drop(self, world: World) -> None:
        self.writer.drop()

    def _trim(self, world: World) -> None:
        world.trim(self.rng.choice((1, 5, 20, 100)))

    # -- instances ----------------------------------------------------------------------------------------

    def _lag(self, world: World) -> None:
        """An instance sees less than there is, but never less than it has seen."""
        source = self.rng.choice(world.instances).source
        if self.rng.random() < 0.4:
            source.see_only(None)
        else:
            source.see_only(source.visible + self.rng.choice((0, 1, 2, 5)))

    def _delay(self, world: World) -> None:
        self.rng.choice(world.instances).source.delay_a_stream(self.rng.choice((0.1, 1.0, 4.0)))

    def _unavailable(self, world: World) -> None:
        source = self.rng.choice(world.instances).source
        fail = self.rng.choice((source.fail_a_stream, source.fail_next_open, source.fail_next_question))
        for _ in range(self.rng.choice((1, 1, 3))):
            fail(SourceUnavailable("the primary stepped down", 189))

    def _fail_a_find(self, world: World) -> None:
        source = self.rng.choice(world.instances).source
        if self.rng.random() < 0.9:
            source.fail_a_find(SourceUnavailable("the cursor was killed", 43))
        else:
            source.fail_a_find(EventUnavailable("a document that cannot be decoded"))

    def _lose(self, world: World) -> None:
        error = self.rng.choice(
            (
                PositionLost("rolled over", 286, history=True),
                PositionLost("not in the stream", 280),
                PositionLost("rolled over under the cursor", 136),
                EventUnavailable("larger than 16 MiB", 10334),
            )
        )
        # Where a snapshot is read, if anywhere: that is seldom, and what a loss means there is of interest.
        reading = [instance for instance in world.instances if instance.source.open_finds]
        source = self.rng.choice(reading or world.instances).source
        self.rng.choice(
            (source.fail_a_stream, source.fail_a_stream, source.fail_next_read, source.fail_next_open)
        )(error)

    def _replace_instance(self, world: World) -> None:
        instance = self.rng.choice(world.instances)
        for consumer in self.consumers:
            if consumer.instance is instance:
                consumer.cut()
        world.end_instance(instance)
        world.start_instance()

    # -- consumers ----------------------------------------------------------------------------------------

    def _connect(self, world: World) -> None:
        away = [consumer for consumer in self.consumers if consumer.client is None]
        if away:
            self._connect_to(self.rng.choice(away), self.rng.choice(world.instances))

    def _connect_to(self, consumer: Consumer, instance: Instance) -> None:
        consumer.connect(instance, self.rng.choice((None, None, 3, 6, 12)))

    def _read(self, world: World) -> None:
        for consumer in self.consumers:
            if not consumer.stalled and self.rng.random() < 0.7:
                consumer.read(self.rng.choice((1, 2, 5, None, None)))

    def _cut(self, world: World) -> None:
        there = [consumer for consumer in self.consumers if consumer.client is not None]
        if there:
            self.rng.choice(there).cut()

    def _stall(self, world: World) -> None:
        consumer = self.rng.choice(self.consumers)
        consumer.stalled = not consumer.stalled

    def _resubscribe(self, world: World) -> None:
        consumer = self.rng.choice(self.consumers)
        stream = self.rng.choice(consumer.streams)
        if consumer.client is None:
            return
        if stream.state in ("unasked", "left"):
            consumer.ask(stream)
        else:
            consumer.leave(stream)

    def _forget(self, world: World) -> None:
        """A consumer comes back with an older token, with a time, or with nothing."""
        consumer = self.rng.choice(self.consumers)
        consumer.cut()
        for stream in consumer.streams:
            chosen = self.rng.random()
            if chosen < 0.5 and stream.older:
                stream.memory = self.rng.choice(stream.older)
            elif chosen < 0.8:
                entries = world.history.entries
                stream.memory = at_time(world, self.rng.choice(entries[-30:]).cluster_time)
            else:
                stream.memory = None
                stream.older.clear()

    def _refused(self, world: World) -> None:
        """A consumer comes with a token that nothing can be resumed from."""
        consumer = self.rng.choice(self.consumers)
        consumer.cut()
        stream = self.rng.choice(consumer.streams)
        memory = stream.memory
        if memory is not None and memory.resume_token is not None and not memory.refused:
            stream.memory = self._spoilt(world, consumer, memory.resume_token)

    def _spoilt(self, world: World, consumer: Consumer, resume_token: str) -> Memory:
        """The token as that of another topic, of another deployment, or of a record that was rolled back."""
        tenant, opened = consumer.tenant, world.sealer.open(consumer.tenant, resume_token)
        binding, source, position = opened.binding, opened.source, opened.position
        reasons: tuple[str, ...]
        chosen = self.rng.random()
        if chosen < 0.15:
            binding, reasons = bytes(16), ("topic_changed",)
        elif chosen < 0.3:
            source, reasons = bytes(8), ("source_changed",)
        else:
            entry = self.rng.choice(world.history.entries[-self.rng.choice((2, 5, 20)) :])
            ghost = world.oplog.token("e", self.rng.randrange(1 << 40, 1 << 41))
            position, reasons = (
                record_position(PositionKind.EVENT, entry.cluster_time, ghost),
                HISTORY_REASONS,
            )
        mark = (bisect_left(world.history.times, position.cluster_time), 0)
        return Memory(world.sealer.seal(tenant, binding, source, position), position, mark, refused=reasons)

    # -- the end ------------------------------------------------------------------------------------------

    async def _end(self, world: World) -> None:
        """Nothing fails any more: everybody must become live, get everything, and leave nothing behind."""
        world.note("the end begins")
        self._faults = False
        for instance in world.instances:
            instance.source.heal()
        for consumer in self.consumers:
            if consumer.client is None:
                self._connect_to(consumer, self.rng.choice(world.instances))
            consumer.unlimited()
        await checks.progress(world, self.consumers, lambda: self._check(world))
        for consumer in self.consumers:
            consumer.cut()
        await checks.nothing_left(world)
        world.figures.entries = len(world.history.entries)
