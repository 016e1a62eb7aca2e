"""From an acknowledged insert to its arrival: a client of the service against a bare `try_next()` loop.

Each round measures the two alone, one after the other, in an order that alternates; the ratio is taken of these two.
Side by side they would share two cores and one engine, and each would be measured with the other's cost. A third
phase does run both, for what only it can tell: how much later the client has the same insert than the loop has it.

Every reader is a process of its own; the writer inserts one document, notes the time and pauses.

Where an engine syncs its journal or waits for a majority before it acknowledges, its readers may have the change
first: `from_ack` is then near zero or below for the bare loop, and `summarise` gives no ratio to such a floor. Counted
from the sending of the insert the time is always above zero, but most of it is the insert itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import msgspec

from bench.results import Benchmark, Options, Sample, percentile
from bench.rig import Reader, Rig, rig

NAME = "latency"
INSERTS = 600
PAUSE_S = 0.003
WARM_UP = 60
"""The first inserts of a phase are not counted: connections, caches and the pace settle."""


class Written(msgspec.Struct):
    """Monotonic seconds before each insert was sent and after it was acknowledged."""

    sent: list[float]
    acknowledged: list[float]


def run(options: Options) -> Iterator[Sample]:
    count = WARM_UP + (INSERTS // 10 if options.quick else INSERTS)
    with rig() as made:
        for number in range(1, options.rounds + 1):
            phases = [("bare", _bare), ("service", _service)]
            for case, phase in phases if number % 2 else reversed(phases):
                yield Sample(NAME, case, number, phase(made, count))
            yield Sample(NAME, "client behind loop, both reading", number, _both(made, count))


def _bare(made: Rig, count: int) -> dict[str, float]:
    with made.reader("bare", count) as bare:
        return _latencies(_write(made, count), bare)


def _service(made: Rig, count: int) -> dict[str, float]:
    with made.service() as service, made.subscriber(service, count) as client:
        return _latencies(_write(made, count), client)


def _latencies(written: Written, reader: Reader) -> dict[str, float]:
    arrivals = _arrivals(reader, len(written.sent))
    return _percentiles("from_ack", written.acknowledged, arrivals) | _percentiles(
        "from_send", written.sent, arrivals
    )


def _both(made: Rig, count: int) -> dict[str, float]:
    with (
        made.service() as service,
        made.subscriber(service, count) as client,
        made.reader("bare", count) as bare,
    ):
        _write(made, count)
        return _percentiles("later", _arrivals(bare, count), _arrivals(client, count))


def _write(made: Rig, count: int) -> Written:
    written = Written([], [])
    for seq in range(count):
        document = {"seq": seq, "status": "open", "total": 12.5, "customer": "c-1047"}
        written.sent.append(time.monotonic())
        made.documents.insert_one(document)
        written.acknowledged.append(time.monotonic())
        time.sleep(PAUSE_S)
    return written


def _arrivals(reader: Reader, count: int) -> list[float]:
    """One writer and an ordered stream: the nth arrival is the nth insert, which the last `seq` confirms."""
    reader.finish(count)
    return reader.arrivals()


def _percentiles(name: str, begun: Sequence[float], ended: Sequence[float]) -> dict[str, float]:
    pairs = zip(begun, ended, strict=True)
    taken_ms = [(end - begin) * 1000 for begin, end in pairs][WARM_UP:]
    return {f"{name}_p50_ms": percentile(taken_ms, 50), f"{name}_p99_ms": percentile(taken_ms, 99)}


BENCHMARK = Benchmark(
    name=NAME,
    about="insert to arrival",
    floors={"service": "bare"},
    run=run,
)
