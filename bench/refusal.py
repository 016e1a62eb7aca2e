"""The CPU time that a hostile filter takes before it is refused, through `effective_topic`: whoever sends one gets an
error, and no more of the loop than that.

The filters are those of tests/core/hostile_filters.py, as parsed JSON. A frame has at most 64 KiB, so most of them
cannot come by WebSocket at all. What is shown is the slowest one, by its fastest of a few tries in a round: the rest is
the machine. Which one it is stands on stderr.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from typing import Any

from bench.results import Benchmark, Options, Sample
from feedsvc.core.errors import Refusal
from feedsvc.core.messages import TopicRequest
from feedsvc.core.policy import Grant
from feedsvc.core.topics import effective_topic
from tests.core.hostile_filters import hostile_filters

NAME = "refusal"
_GRANT = Grant("bench", "bench", "orders", {}, {}, False)
_TRIES = 5


def run(options: Options) -> Iterator[Sample]:
    hostile = hostile_filters()
    for round_number in range(1, options.rounds + 1):
        times_ms = {one.name: _refusal_ms(one.filter) for one in hostile}
        slowest = max(times_ms, key=lambda name: times_ms[name])
        print(f"slowest refusal: {slowest}", file=sys.stderr)
        yield Sample(
            NAME,
            f"the slowest of {len(hostile)} hostile filters",
            round_number,
            {"cpu_ms_per_refusal": times_ms[slowest]},
        )


def _refusal_ms(filter: dict[str, Any]) -> float:
    request = TopicRequest("orders", filter=filter)
    tries = []
    gc.disable()
    for _ in range(_TRIES):
        before = time.process_time()
        try:
            effective_topic(_GRANT, request, images=True)
        except Refusal:
            tries.append(time.process_time() - before)
        else:
            raise RuntimeError("a hostile filter was not refused")
    gc.enable()
    return min(tries) * 1e3


BENCHMARK = Benchmark(name=NAME, about="CPU of the slowest refusal of a hostile filter", floors={}, run=run)
