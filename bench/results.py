"""What a benchmark yields, the ratios that are made of it, and how both are written.

A benchmark yields one `Sample` for each case and round. A ratio is taken within a round, between a case and its floor
that ran next to each other, and then the median of all rounds with the least and the greatest: on a machine whose
speed changes from minute to minute, figures of different rounds say nothing about each other.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import TextIO

import msgspec
import pymongo

QUOTABLE_ROUNDS = 5
"""A ratio of fewer rounds is a look, not a figure."""


class Options(msgspec.Struct, frozen=True):
    """`rounds`: how often each case is measured. `quick`: a tenth of the work, to see that everything runs."""

    rounds: int = QUOTABLE_ROUNDS
    quick: bool = False


class Run(msgspec.Struct, frozen=True, tag="run", tag_field="kind"):
    """Where and when. `load` is the load average over a minute before the run: others were using the machine."""

    started: str
    machine: str
    cores: int
    load: float
    python: str
    pymongo: str
    rounds: int
    quick: bool


class Sample(msgspec.Struct, frozen=True, tag="sample", tag_field="kind"):
    """The figures of one case in one round; a figure's name ends in its unit."""

    benchmark: str
    case: str
    round: int
    figures: dict[str, float]


class Summary(msgspec.Struct, frozen=True, tag="summary", tag_field="kind"):
    """One figure of one case over all rounds, and its ratio to the floor: median, least and greatest of each."""

    benchmark: str
    case: str
    figure: str
    rounds: int
    value: tuple[float, float, float]
    floor: str | None = None
    ratio: tuple[float, float, float] | None = None


Line = Run | Sample | Summary


class Benchmark(msgspec.Struct, frozen=True):
    """`floors`: which case each case is divided by. `run` yields the samples in the order in which they are taken."""

    name: str
    about: str
    floors: Mapping[str, str]
    run: Callable[[Options], Iterator[Sample]]


def this_run(options: Options) -> Run:
    return Run(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=f"{platform.system()} {platform.release()} {platform.machine()}",
        cores=os.cpu_count() or 0,
        load=round(os.getloadavg()[0], 2),
        python=sys.version.split()[0],
        pymongo=pymongo.version,
        rounds=options.rounds,
        quick=options.quick,
    )


def summarise(benchmark: Benchmark, samples: Sequence[Sample]) -> list[Summary]:
    """One summary for each case and figure, in the order of the samples.

    There is no ratio to a floor that was zero or below in any round.
    """
    figures: dict[tuple[str, str], dict[int, float]] = {}
    for sample in samples:
        for figure, value in sample.figures.items():
            figures.setdefault((sample.case, figure), {})[sample.round] = value
    summaries = []
    for (case, figure), by_round in figures.items():
        floor = benchmark.floors.get(case)
        of_floor = {} if floor is None else figures.get((floor, figure), {})
        ratios: list[float] = []
        if min(of_floor.values(), default=0) > 0:
            ratios = [value / of_floor[number] for number, value in by_round.items() if number in of_floor]
        summaries.append(
            Summary(
                benchmark=benchmark.name,
                case=case,
                figure=figure,
                rounds=len(by_round),
                value=_spread(by_round.values()),
                floor=floor if ratios else None,
                ratio=_spread(ratios) if ratios else None,
            )
        )
    return summaries


def _spread(values: Iterable[float]) -> tuple[float, float, float]:
    known = list(values)
    return median(known), min(known), max(known)


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile; ValueError without values."""
    if not values:
        raise ValueError("no values")
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * percent / 100))]


def write_line(line: Line, *files: TextIO) -> None:
    """One JSON object and a line feed into each file, flushed: a run that is cut short keeps what it measured."""
    text = msgspec.json.encode(line).decode()
    for file in files:
        print(text, file=file, flush=True)


def table(benchmark: Benchmark, summaries: Iterable[Summary]) -> str:
    """Markdown, so that docs/performance.md can take it as it is."""
    rows = [
        (
            summary.case,
            summary.figure,
            _three(summary.value),
            "" if summary.ratio is None else f"{_three(summary.ratio)} of {summary.floor}",
        )
        for summary in summaries
    ]
    heads = ("case", "figure", "median (least to greatest)", "ratio, median (least to greatest)")
    widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
    rules = tuple("-" * width for width in widths)
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in (heads, rules, *rows)
    ]
    return f"## {benchmark.name}: {benchmark.about}\n\n" + "\n".join(lines) + "\n"


def _three(values: tuple[float, float, float]) -> str:
    middle, least, greatest = (f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}" for value in values)
    return f"{middle} ({least} to {greatest})"
