"""What it costs a server to deliver: CPU of its process for each event on each connection.

The service is measured whole: real inserts, the engine, its change stream, filter, frame, write. A peer only writes
frames of the same size that are ready. The next burst of inserts is made when every subscriber has the last one, so
that the service never finds two of them waiting: on a busy machine it would join them and look better than it is.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import bson
import msgspec

from bench.fleet import Counts, Load, Peer, load, peer, writes
from bench.rig import Rig, cpu_s
from bench.subscribers import served, subscribers
from tests.support.service import Service


class Shape(msgspec.Struct, frozen=True):
    """`events` in bursts of `burst`, one burst each `interval_s` at the earliest, to `subscribers` connections.

    Connection i has topic i % `topics`. An event is a document of `document_bytes` and belongs to one of `zones` in
    turn; it reaches `reached` of the connections, 0 for all of them. `deflate`: see `subscribers`.
    """

    subscribers: int
    events: int
    burst: int = 1
    interval_s: float = 0.0
    topics: Sequence[Mapping[str, Any]] = ({},)
    zones: int = 1
    reached: int = 0
    document_bytes: int = 100
    deflate: bool = False

    @property
    def deliveries_per_event(self) -> int:
        return self.reached or self.subscribers

    @property
    def deliveries(self) -> int:
        return self.events * self.deliveries_per_event


class Cost(msgspec.Struct, frozen=True):
    """`frame_bytes`: the payload of one frame. `core` and `load_core`: shares of a core while events were delivered."""

    cpu_us_per_delivery: float
    load_cpu_us_per_delivery: float
    deliveries_per_write: float
    deliveries_per_read: float
    core: float
    load_core: float
    frame_bytes: int


def of_peer(name: str, shape: Shape, frame_bytes: int) -> Cost:
    with peer(name) as server, load(server.port, "/", shape.subscribers) as clients:
        clients.ready()
        clients.ask("reset")
        _send(server, clients, shape, shape.burst, frame_bytes)  # what is made at the first use
        start = clients.ask("reset")
        before, writes_before = cpu_s(server.pid), writes(server.pid)
        end = _send(server, clients, shape, shape.events, frame_bytes)
        used_s, written = cpu_s(server.pid) - before, writes(server.pid) - writes_before
    return _cost(shape, used_s, written, start, end, frame_bytes)


def _send(server: Peer, clients: Load, shape: Shape, events: int, frame_bytes: int) -> Counts:
    server.tell(f"send {events} {shape.burst} {int(shape.interval_s * 1e6)} {frame_bytes}")
    said = clients.arrived(events * shape.subscribers)
    server.answer()
    return said


def of_service(made: Rig, shape: Shape, **environment: str) -> Cost:
    with (
        served(made, **environment) as service,
        subscribers(made, service, shape.subscribers, shape.topics, deflate=shape.deflate) as clients,
    ):
        clients.ready()
        return of_subscribers(made, service, clients, shape)


def of_subscribers(made: Rig, service: Service, clients: Load, shape: Shape) -> Cost:
    """The same with subscribers that are there."""
    clients.ask("reset")
    warm = _insert(made, clients, shape, 0, shape.burst)
    size = warm.bytes // (shape.burst * shape.deliveries_per_event)
    start = clients.ask("reset")
    before, writes_before = cpu_s(service.pid), writes(service.pid)
    end = _insert(made, clients, shape, shape.burst, shape.events)
    used_s, written = cpu_s(service.pid) - before, writes(service.pid) - writes_before
    return _cost(shape, used_s, written, start, end, size - _header_bytes(size))


def _insert(made: Rig, clients: Load, shape: Shape, first: int, events: int) -> Counts:
    """Insert so many documents, `burst` with each command, and wait for each burst."""
    empty = {"_id": bson.ObjectId(), "seq": 0, "zone": 0, "sent": bson.Int64(0), "padding": ""}
    padding = "x" * (shape.document_bytes - len(bson.encode(empty)))
    due = time.monotonic()
    end = clients.ask("say")
    for at in range(first, first + events, shape.burst):
        made.documents.insert_many(
            {"seq": seq, "zone": seq % shape.zones, "sent": time.monotonic_ns() // 1000, "padding": padding}
            for seq in range(at, at + shape.burst)
        )
        end = clients.arrived((at - first + shape.burst) * shape.deliveries_per_event)
        due += shape.interval_s
        time.sleep(max(0.0, due - time.monotonic()))
    return end


def _header_bytes(size: int) -> int:
    return 2 if size < 128 else 4 if size < (1 << 16) + 4 else 10


def _cost(shape: Shape, used_s: float, written: int, start: Counts, end: Counts, frame_bytes: int) -> Cost:
    load_us, wall_us = end.cpu_us - start.cpu_us, end.at_us - start.at_us
    return Cost(
        cpu_us_per_delivery=used_s * 1e6 / shape.deliveries,
        load_cpu_us_per_delivery=load_us / shape.deliveries,
        deliveries_per_write=shape.deliveries / written,
        deliveries_per_read=shape.deliveries / end.reads,
        core=used_s * 1e6 / wall_us,
        load_core=load_us / wall_us,
        frame_bytes=frame_bytes,
    )
