"""What must hold beside the frames: bounds all the time, progress at the end, and nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from feedsvc.core.tail import Tail
from tests.simulation.consumer import Consumer
from tests.simulation.model import FILTERS
from tests.simulation.world import Instance, Violation, World

_FRAME_BYTES = 1_000
"""More than any frame of a schedule costs in a log."""
_PATIENCE_S = 60.0
_NOBODY_LEFT_S = 5.0


def bounds(world: World) -> None:
    """Rings and logs hold their limit and one batch, catch-up tails their slots."""
    for instance in world.instances:
        catch_ups = 0
        for feed in instance.hub.feeds.values():
            placement = feed.placement
            catch_ups += len(placement.catch_ups)
            for tail in (
                placement.catch_ups if placement.live is None else (placement.live, *placement.catch_ups)
            ):
                _tail_bounds(world, instance, tail)
        if catch_ups > world.limits.catch_up_tails:
            raise Violation(f"{catch_ups} catch-up tails in {world.limits.catch_up_tails} slots")
        most = len(instance.hub.feeds) + len(instance.hub._ending) + world.limits.catch_up_tails
        most_finds = world.limits.snapshots
        if max(instance.hub.snapshots.running, instance.source.open_finds) > most_finds:
            raise Violation(f"{instance.source.open_finds} finds are open in {most_finds} slots")
        if instance.source.open_streams > most:
            raise Violation(f"{instance.source.open_streams} streams are open, at most {most} are of use")


def _tail_bounds(world: World, instance: Instance, tail: Tail) -> None:
    # At scope `collection` a batch that ends with a drop is joined with the one that brings its invalidate; elsewhere
    # a drop at its end brings one record more.
    batch = min(2 * instance.source.max_records + 2, 60 if instance.source.max_records > 100 else 1_000)
    if instance.source.max_records > 100:
        batch = len(world.history.entries) * 2
    if len(tail.ring) > world.limits.ring_records + batch:
        raise Violation(f"{len(tail.ring)} records in a ring of {world.limits.ring_records}")
    most = world.limits.log_bytes + batch * _FRAME_BYTES * max(1, len(tail.topics))
    if tail.space.size_bytes > most:
        raise Violation(f"{tail.space.size_bytes} bytes in logs of {world.limits.log_bytes}")
    if tail.space.size_bytes != sum(logged.log.size_bytes for logged in tail.topics.values()):
        raise Violation("the bytes of the logs do not add up")


async def progress(world: World, consumers: list[Consumer], check: Callable[[], None]) -> None:
    """With idle ticks and nobody failing, every stream becomes live, in the mode of its collection's images, gets
    everything, and is checkpointed."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _PATIENCE_S
    target = world.oplog.tick()
    while loop.time() < deadline:
        await asyncio.sleep(0.4)
        world.oplog.tick()
        for consumer in consumers:
            consumer.read()
            if consumer.client is None:
                consumer.connect(world.rng.choice(world.instances), None)
            for stream in consumer.streams:
                if stream.state in ("unasked", "left"):
                    consumer.ask(stream)
        check()
        if not _behind(world, consumers, target):
            views(world, consumers)
            return
    raise Violation(f"no progress: {_behind(world, consumers, target)}")


def views(world: World, consumers: list[Consumer]) -> None:
    """Who took a snapshot and applied what followed holds what the database holds."""
    for consumer in consumers:
        for stream in consumer.streams:
            topic, held = stream.topic, stream.view
            if held is None:
                continue
            documents = world.oplog._documents.get((topic.database, topic.collection), {})
            matches = FILTERS[topic.filter][1]
            there = {key: document for key, document in documents.items() if matches(document)}
            if held != there:
                raise Violation(f"{consumer.name} {topic} holds {held} instead of {there}")
            world.figures.views += 1


def _behind(world: World, consumers: list[Consumer], target: int) -> list[str]:
    behind = []
    for consumer in consumers:
        for stream in consumer.streams:
            memory = stream.memory
            there = stream.state == "live" and memory is not None and memory.position.cluster_time >= target
            database, collection = stream.topic.database, stream.topic.collection
            images = world.oplog.images(database, collection)
            if not there or (world.oplog.exists(database, collection) and images != stream.exact):
                at = None if memory is None else memory.mark
                behind.append(f"{consumer.name} {stream.topic} {stream.state} at {at}")
    return behind


async def nothing_left(world: World) -> None:
    """All clients have left: no subscription, topic or catch-up tail stays, then no feed, then no task or stream."""
    await asyncio.sleep(_NOBODY_LEFT_S)
    for instance in world.instances:
        for feed in instance.hub.feeds.values():
            _empty(feed.placement.subscriptions, "subscriptions")
            _empty(len(feed.placement.catch_ups), "catch-up tails")
            _empty(feed.placement.next_opening() is not None, "queue")
            if feed.placement.live is not None:
                _empty(len(feed.placement.live.topics), "topics")
        _empty(instance.hub.admission.connections, "connections")
        _empty(instance.hub.snapshots.waiting, "snapshots")
        _empty(instance.hub.snapshots.running, "snapshots under way")
        _empty(instance.source.open_finds, "finds")
    await asyncio.sleep(world.limits.tail_linger_s + 1.0)
    for instance in world.instances:
        _empty(len(instance.hub.feeds), "feeds")
    async with asyncio.timeout(20.0):
        await world.close()
    await asyncio.sleep(0)
    left = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    if left:
        raise Violation(f"tasks are left: {left}")
    if world.oplog._listeners:
        raise Violation(f"{len(world.oplog._listeners)} streams are left open")


def _empty(count: int, what: str) -> None:
    if count:
        raise Violation(f"{count} {what} left behind")
