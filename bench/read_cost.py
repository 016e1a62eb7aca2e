"""CPU for each change read: bare drivers, this project's stream, and the whole service.

The process that reads is stopped while the changes are written, so that every case reads the same backlog in batches
as large as it asks for, and the writer does not compete with it. What is counted is the CPU clock of that process
alone, from its release until the last change has arrived. Each case has an engine of its own, since SecantusDB
gets slower as its oplog grows, and again when it trims it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from bench.results import Benchmark, Options, Sample
from bench.rig import Reader, Rig, cpu_s, frozen, rig

NAME = "read_cost"
CHANGES = 20_000
_INSERTED_AT_ONCE = 1_000

FLOOR = "bare, default decoding"


def run(options: Options) -> Iterator[Sample]:
    count = CHANGES // 10 if options.quick else CHANGES
    for number in range(1, options.rounds + 1):
        for case, measure in CASES.items():
            with rig(oplog_max_entries=2 * CHANGES) as made:
                figure = measure(made, count) / count * 1e6
            yield Sample(NAME, case, number, {"cpu_us_per_change": figure})


def _reader(kind: str, *arguments: str) -> Callable[[Rig, int], float]:
    def measure(made: Rig, count: int) -> float:
        with made.reader(kind, count, *arguments) as reader:
            return _cpu_of_backlog(made, reader.pid, reader, count)

    return measure


def _service_unmatched(made: Rig, count: int) -> float:
    """The topic's filter is asked about every change and wants the last one only, which tells the end."""
    with (
        made.service() as service,
        made.subscriber(service, 1, filter={"seq": count - 1}) as client,
    ):
        return _cpu_of_backlog(made, service.pid, client, count)


def _service_one_subscriber(made: Rig, count: int) -> float:
    with made.service() as service, made.subscriber(service, count) as client:
        return _cpu_of_backlog(made, service.pid, client, count)


def _cpu_of_backlog(made: Rig, pid: int, reader: Reader, count: int) -> float:
    """CPU seconds of process `pid` for `count` changes; `reader` is where the last of them arrives."""
    with frozen(pid):
        for first in range(0, count, _INSERTED_AT_ONCE):
            made.documents.insert_many(
                [_document(seq) for seq in range(first, min(first + _INSERTED_AT_ONCE, count))]
            )
        before = cpu_s(pid)
    reader.finish(count)
    return cpu_s(pid) - before


def _document(seq: int) -> dict[str, Any]:
    return {
        "seq": seq,
        "status": "open" if seq % 2 else "closed",
        "customer": {"id": f"c-{seq % 500}", "name": "Jane Example", "city": "Tromsø"},
        "lines": [{"sku": f"sku-{n}", "quantity": n, "price": 12.5} for n in range(3)],
        "total": 75.0,
        "note": "leave it at the door",
    }


CASES: dict[str, Callable[[Rig, int], float]] = {
    FLOOR: _reader("bare"),
    "bare, RawBSONDocument": _reader("raw"),
    "bare Motor, default decoding": _reader("motor"),
    "MongoSource stream": _reader("source", "pymongo"),
    "MongoSource stream on Motor": _reader("source", "motor"),
    "service, no topic matches": _service_unmatched,
    "service, one subscriber": _service_one_subscriber,
}

BENCHMARK = Benchmark(
    name=NAME,
    about="CPU of the reading process for each change, of a backlog",
    floors={case: FLOOR for case in CASES if case != FLOOR},
    run=run,
)
