"""`python -m bench.growth_plots RESULTS [--to docs/plots]`: one SVG for each sweep of `growth`, from its JSON lines."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from bench.fleet import FLOOR
from bench.growth import NAME, SWEEPS, Sweep
from bench.plots import Point, Series, line_plot
from bench.results import QUOTABLE_ROUNDS, Line, Run, Summary

PLOTS = Path(__file__).parent.parent / "docs" / "plots"
_Y_LABEL = "CPU of the server for each delivery, µs"
_TITLES = {
    "subscribers": "Subscribers of one topic",
    "topics": "Topics that 1,000 subscribers see every event through",
    "connections per topic": "Connections to each of 100 topics, of which an event concerns one",
    "document bytes": "Size of the document, 100 subscribers",
}


def plots(summaries: Iterable[Summary]) -> Iterator[tuple[str, str]]:
    """File names and SVGs of the sweeps that were measured."""
    cases = {one.case: one.value for one in summaries if one.benchmark == NAME}
    for sweep in SWEEPS:
        series = [_series("service", {sweep.case(x): x for x in sweep.points}, cases)]
        if sweep.raw:
            series.append(_series(FLOOR, {sweep.floor(x): x for x in sweep.points}, cases))
        if all(one.points for one in series):
            yield _file_name(sweep), line_plot(_TITLES[sweep.name], sweep.name, _Y_LABEL, series)


def _series(label: str, wanted: dict[str, int], cases: dict[str, tuple[float, float, float]]) -> Series:
    return Series(label, [Point(x, *cases[case]) for case, x in wanted.items() if case in cases])


def _file_name(sweep: Sweep) -> str:
    return f"growth-{sweep.name.replace(' ', '-')}.svg"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.growth_plots", description="Draw the growth benchmark."
    )
    parser.add_argument("results", type=Path, help="a file of bench/results")
    parser.add_argument("--to", type=Path, default=PLOTS, help="folder for the plots (default docs/plots)")
    arguments = parser.parse_args()
    decoder = msgspec.json.Decoder(Line)
    lines = [decoder.decode(line) for line in arguments.results.read_bytes().splitlines()]
    if any(isinstance(line, Run) and (line.quick or line.rounds < QUOTABLE_ROUNDS) for line in lines):
        print("A look, not a figure: these plots are not for the documentation.", file=sys.stderr)
    drawn = dict(plots(line for line in lines if isinstance(line, Summary)))
    if not drawn:
        print(
            f"{arguments.results} holds no summary of {NAME}: run `python -m bench {NAME}`", file=sys.stderr
        )
        return 1
    arguments.to.mkdir(parents=True, exist_ok=True)
    for name, svg in drawn.items():
        (arguments.to / name).write_text(svg)
        print(arguments.to / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
