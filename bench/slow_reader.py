"""What one reader that stops costs the others: 1,000 subscribers, steady events, from insert to arrival.

Both cases use the same service and the same clients, one after the other and in turns which is first. The reader that
stops has small socket buffers, and before its case is measured it is owed more than they and the service's take, so
that it is only a cursor by then. When it reads again it must get everything; a run in which it does not fails.

`from_send` counts from the insert to each arrival at the other 999. `server_growth_mib` is the server's memory after
the case less that before it. That a reader which never comes back is closed and resumes, and what becomes of one that
falls off the log, is tested (tests/e2e/test_slow_readers.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.fleet import Counts, Load, apart, rss_bytes
from bench.results import Benchmark, Options, Sample
from bench.rig import Rig, cpu_s, rig
from bench.subscribers import served, subscribers
from tests.support.service import Service

NAME = "slow_reader"
SUBSCRIBERS = 1_000
EVENTS = 800
_INTERVAL_S = 0.04
"""25,000 deliveries a second: more would keep the load client's core busy on a slow machine, and show its queue."""
_BACKLOG = 1_000
_BACKLOG_BURST = 100
_PADDING = "x" * 600
_FOR_EVER_S = "3600"
_OPLOG_ENTRIES = 400
"""The pulse asks for the newest entry, for which SecantusDB reads all of them: 40 us each, in which no insert
is answered. It must hold what the service has not read yet: the backlog is written burst by burst."""
ALL_READ = "all read"
ONE_STOPPED = f"one of {SUBSCRIBERS:,} stopped"


def run(options: Options) -> Iterator[Sample]:
    events = EVENTS // 10 if options.quick else EVENTS
    for round_number in range(1, options.rounds + 1):
        cases = (ALL_READ, ONE_STOPPED) if round_number % 2 else (ONE_STOPPED, ALL_READ)
        with (
            apart(),
            rig(_OPLOG_ENTRIES) as made,
            served(made, slow_after=_FOR_EVER_S) as service,
            subscribers(made, service, SUBSCRIBERS - 1) as others,
            subscribers(made, service, 1, first=SUBSCRIBERS, small=True) as one,
        ):
            others.ready()
            one.ready()
            _write(made, others, _BACKLOG_BURST, _BACKLOG_BURST, 0.0)  # what is made at the first use
            one.arrived(_BACKLOG_BURST)
            for case in cases:
                before = rss_bytes(service.pid)
                figures = _measure(made, service, others, one, events, stops=case == ONE_STOPPED)
                figures["server_growth_mib"] = (rss_bytes(service.pid) - before) / (1 << 20)
                one.ask("go 0")
                one.arrived(_BACKLOG + events)
                yield Sample(NAME, case, round_number, figures)


def _measure(
    made: Rig, service: Service, others: Load, one: Load, events: int, *, stops: bool
) -> dict[str, float]:
    """What the others say of the steady events behind a backlog, and how busy the two were."""
    one.ask("reset")
    if stops:
        one.ask("stop 0")
    for _ in range(_BACKLOG // _BACKLOG_BURST):
        _write(made, others, _BACKLOG_BURST, _BACKLOG_BURST, 0.0)
    start, used_s = others.ask("say"), cpu_s(service.pid)
    said = _write(made, others, events, 1, _INTERVAL_S)
    wall_us, used_s = said.at_us - start.at_us, cpu_s(service.pid) - used_s
    if stops and one.ask("say").events:
        raise RuntimeError("the reader has not stopped")
    return {
        "from_send_p50_ms": said.p50_us / 1000,
        "from_send_p99_ms": said.p99_us / 1000,
        "from_send_max_ms": said.max_us / 1000,
        "core": used_s * 1e6 / wall_us,
        "load_core": (said.cpu_us - start.cpu_us) / wall_us,
    }


def _write(made: Rig, others: Load, events: int, burst: int, interval_s: float) -> Counts:
    """Insert so many documents, `burst` with each command, on time whatever arrives; wait until the others have all."""
    others.ask("reset")
    due = time.monotonic()
    for at in range(0, events, burst):
        made.documents.insert_many(
            {"seq": seq, "sent": time.monotonic_ns() // 1000, "padding": _PADDING}
            for seq in range(at, at + burst)
        )
        due += interval_s
        time.sleep(max(0.0, due - time.monotonic()))
    return others.arrived(events * (SUBSCRIBERS - 1))


BENCHMARK = Benchmark(
    NAME,
    f"one of {SUBSCRIBERS:,} subscribers stops reading: the latency of the others, the memory of the server",
    {ONE_STOPPED: ALL_READ},
    run,
)
