"""CPU of the server process (user + system) for each delivered event: 1,000 subscribers of one topic.

The service is measured whole: real inserts, the engine, its change stream, filter, frame, write. The peers only write
frames of the same size that are ready. All run on one core of their own while the load client and the engine have
the others. The floor is uvloop's `transport.write` of single frames; in the rows of bursts too, where the 100 changes
of a burst come with one `insert_many`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.fleet import PEERS, Load, load, peer, pin_load, pin_server
from bench.results import Benchmark, Options, Sample
from bench.rig import COLLECTION, Rig, cpu_s, rig
from tests.support.service import make_jwt

NAME = "fanout"
SUBSCRIBERS = 1_000
EVENTS = 200
BURSTS = 20
BURST = 100
_INTERVAL_S = 0.02
_BURST_INTERVAL_S = 0.3
FLOOR = "uvloop transport.write"
SERVICE = "service"
SERVICE_BURSTS = f"service, bursts of {BURST}"
_PADDING = "x" * 24


def run(options: Options) -> Iterator[Sample]:
    events = EVENTS // 10 if options.quick else EVENTS
    bursts = BURSTS // 10 if options.quick else BURSTS
    pin_load()
    for number in range(1, options.rounds + 1):
        with rig() as made:
            single, size_bytes = of_service(made, SUBSCRIBERS, events, 1, _INTERVAL_S)
            burst, _ = of_service(made, SUBSCRIBERS, bursts * BURST, BURST, _BURST_INTERVAL_S)
        for name in PEERS:
            figure = of_peer(name, SUBSCRIBERS, events, 1, _INTERVAL_S, size_bytes)
            yield Sample(NAME, name, number, {"cpu_us_per_delivery": figure})
        yield Sample(NAME, SERVICE, number, {"cpu_us_per_delivery": single})
        yield Sample(NAME, SERVICE_BURSTS, number, {"cpu_us_per_delivery": burst})


def of_peer(
    name: str, subscribers: int, events: int, burst: int, interval_s: float, size_bytes: int
) -> float:
    """CPU microseconds for each delivery."""
    with peer(name) as server, load(server.port, "/", subscribers) as clients:
        clients.ready()
        server.tell(f"send {burst} {burst} 0 {size_bytes}")  # what is made at the first use
        _arrived(clients, subscribers * burst)
        server.answer()
        clients.ask("reset")
        before = cpu_s(server.pid)
        server.tell(f"send {events} {burst} {int(interval_s * 1e6)} {size_bytes}")
        _arrived(clients, subscribers * events)
        return (cpu_s(server.pid) - before) * 1e6 / (subscribers * events)


def of_service(made: Rig, subscribers: int, events: int, burst: int, interval_s: float) -> tuple[float, int]:
    """CPU microseconds for each delivery, and the size of a frame in bytes."""
    with TemporaryDirectory() as directory, made.service() as service:
        pin_server(service.pid)
        headers, frames = Path(directory, "headers"), Path(directory, "frames")
        headers.write_text(f"Authorization: Bearer {make_jwt(made.database)}\n")
        subscribe = {"type": "subscribe", "id": "1", "topic": {"collection": COLLECTION}}
        frames.write_text(json.dumps(subscribe) + "\n")
        with load(service.port, "/v1/ws", subscribers, headers, frames) as clients:
            clients.ready()
            write(made, burst, 0, 1, 0.0)
            _arrived(clients, subscribers * burst)
            start = clients.ask("reset")
            before = cpu_s(service.pid)
            write(made, events, burst, burst, interval_s)
            end = _arrived(clients, subscribers * events)
            used_s = cpu_s(service.pid) - before
            size_bytes = (end["bytes"] - start["bytes"]) // (subscribers * events) - 4
            return used_s * 1e6 / (subscribers * events), size_bytes


def write(made: Rig, events: int, first: int, burst: int, interval_s: float) -> None:
    """Insert so many documents, `burst` with each command, one command each interval."""
    due = time.monotonic()
    for at in range(first, first + events, burst):
        documents: list[dict[str, Any]] = [
            {"seq": seq, "padding": _PADDING, "sent": time.monotonic_ns() // 1000}
            for seq in range(at, at + burst)
        ]
        made.documents.insert_many(documents)
        due += interval_s
        time.sleep(max(0.0, due - time.monotonic()))


def _arrived(clients: Load, count: int) -> dict[str, Any]:
    said = clients.ask(f"events {count}")
    if said["events"] != count or said["closed"]:
        raise RuntimeError(f"{count} events were sent to clients that say {said}")
    return said


BENCHMARK = Benchmark(
    NAME,
    f"{SUBSCRIBERS:,} subscribers of one topic, CPU of the server for each delivery",
    {name: FLOOR for name in (*PEERS, SERVICE, SERVICE_BURSTS) if name != FLOOR},
    run,
)
