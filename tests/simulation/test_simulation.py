"""The simulation: the real rings, logs, tails, hubs and clients under random schedules; see `schedule.py`.

A violation names its seed. To see what happened there, run `SIMULATION_SEED=n pytest tests/simulation -k replay`.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import time

import pytest

from tests.simulation.schedule import run
from tests.simulation.world import Figures

SEEDS = 200
CHUNKS = 2
VERIFIED_FROM = 1_000_000


def schedules(first: int, count: int) -> Figures:
    figures = Figures()
    for seed in range(first, first + count):
        figures.add(run(seed))
    return figures


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_schedules(chunk: int) -> None:
    """No schedule breaks a promise, and the schedules are eventful enough to break one."""
    count = SEEDS // CHUNKS
    figures = schedules(chunk * count, count)
    assert figures.entries > 50 * count
    assert figures.events > 30 * count
    assert figures.resumed > 3 * count
    assert figures.resyncs > count // 2
    assert figures.losses > count // 10
    assert figures.snapshots > count
    assert figures.views > count // 2
    assert figures.switches > count // 10
    assert figures.snapshots_failed > count // 10


def test_replay() -> None:
    """A seed always gives the same schedule, up to the last frame."""
    seed = int(os.environ.get("SIMULATION_SEED", "7"))
    first: list[str] = []
    second: list[str] = []
    run(seed, first)
    run(seed, second)
    assert first == second


@pytest.mark.verify
def test_many_schedules() -> None:
    """20,000 schedules (2,000 with VERIFY_SCALE=short) on all cores, without a violation."""
    wanted = 2_000 if os.environ.get("VERIFY_SCALE") == "short" else 20_000
    workers, size = os.cpu_count() or 1, 100
    figures, started = Figures(), time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        chunks = [pool.submit(schedules, VERIFIED_FROM + first, size) for first in range(0, wanted, size)]
        try:
            for chunk in concurrent.futures.as_completed(chunks):
                figures.add(chunk.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # the first violation is told at once
            raise
    seconds = time.perf_counter() - started
    print(f"\nsimulation: {wanted} schedules in {seconds:.0f} s on {workers} cores: {figures}")
