"""Every benchmark by name; a new one is a module with a `BENCHMARK` and a line here."""

from __future__ import annotations

from bench import append_cost, fanout, growth, idle, latency, match, read_cost, refusal, slow_reader, storm
from bench.results import Benchmark

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        append_cost.BENCHMARK,
        match.BENCHMARK,
        refusal.BENCHMARK,
        read_cost.BENCHMARK,
        latency.BENCHMARK,
        fanout.BENCHMARK,
        growth.BENCHMARK,
        idle.BENCHMARK,
        slow_reader.BENCHMARK,
        storm.BENCHMARK,
    )
}
