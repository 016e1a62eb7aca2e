"""What a connection costs that only waits: resident memory of the server, CPU and punctual heartbeats.

Every connection of the service has a JWT of its own and one subscription to a topic that all share; the peers accept
and do nothing else. Memory is what the process has grown by since it had ten, over the number of connections; the
kernel's part of a socket is nobody's and left out. Then all wait for a while, with the default intervals: each hears a
heartbeat within 20 s and a checkpoint within 15 s.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

from bench.fleet import NODE, STARLETTE, Load, apart, load, need_files, peer, peers, rss_bytes
from bench.results import Benchmark, Options, Sample
from bench.rig import Rig, cpu_s, rig
from bench.subscribers import served, subscribers

NAME = "idle"
CONNECTIONS = (1_000, 5_000, 10_000)
WATCH_S = 45.0
"""Two heartbeats of each connection."""

_QUICK_WATCH_S = 5.0
_QUICK_HEARTBEAT = {"heartbeat_interval": "2"}

_FIRST = 10
"""The first ones load modules and open the tail: what that takes is not a connection's."""

Connect = Callable[[int], AbstractContextManager[Load]]


def run(options: Options) -> Iterator[Sample]:
    numbers = [number // 10 for number in CONNECTIONS] if options.quick else list(CONNECTIONS)
    need_files(numbers[-1])
    for round_number in range(1, options.rounds + 1):
        with apart():
            for name in sorted({STARLETTE, NODE} & set(peers())):
                with peer(name) as server, contextlib.ExitStack() as stack:
                    connect = partial(load, server.port, "/")
                    for number, kib in _grown(server.pid, numbers, connect, stack, []):
                        yield Sample(NAME, _case(name, number), round_number, {"kib_per_connection": kib})
            with rig() as made:
                yield from _of_service(made, numbers, round_number, quick=options.quick)


def _case(name: str, connections: int) -> str:
    return f"{name}, {connections:,} connections"


def _of_service(made: Rig, numbers: list[int], round_number: int, *, quick: bool) -> Iterator[Sample]:
    with served(made, **(_QUICK_HEARTBEAT if quick else {})) as service, contextlib.ExitStack() as stack:
        loads: list[Load] = []
        connect = partial(subscribers, made, service)
        for number, kib in _grown(service.pid, numbers, connect, stack, loads):
            yield Sample(NAME, _case("service", number), round_number, {"kib_per_connection": kib})
        for clients in loads:
            clients.ask("reset")
        before, began = cpu_s(service.pid), time.monotonic()
        time.sleep(_QUICK_WATCH_S if quick else WATCH_S)
        used_s, waited_s = cpu_s(service.pid) - before, time.monotonic() - began
        said = [clients.ask("say") for clients in loads]
        if any(one.closed or one.resync or one.error for one in said):
            raise RuntimeError(f"something happened to clients that waited: {said}")
        figures = {
            "core_percent": 100 * used_s / waited_s,
            "heartbeat_gap_max_s": max(one.beat_gap_us for one in said) / 1e6,
        }
        yield Sample(NAME, _case("service", numbers[-1]) + ", idle", round_number, figures)


def _grown(
    pid: int, numbers: list[int], connect: Connect, stack: contextlib.ExitStack, loads: list[Load]
) -> Iterator[tuple[int, float]]:
    """Add connections, kept by `stack` and noted in `loads`, until there are so many; KiB of the server for each."""

    def add(count: int) -> None:
        loads.append(stack.enter_context(connect(count)))
        loads[-1].ready()

    add(_FIRST)
    before, there = rss_bytes(pid), 0
    for number in numbers:
        add(number - there)
        there = number
        yield number, (rss_bytes(pid) - before) / 1024 / number


def _floors() -> dict[str, str]:
    every = {number // less for number in CONNECTIONS for less in (1, 10)}
    return {_case("service", number): _case(STARLETTE, number) for number in every}


BENCHMARK = Benchmark(NAME, "server memory and CPU for each connection that waits", _floors(), run)
