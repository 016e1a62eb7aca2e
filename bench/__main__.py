"""`python -m bench [names] [--rounds N] [--quick] [--json]`: a table on stdout, JSON lines in `bench/results/`."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from bench.registry import BENCHMARKS
from bench.results import QUOTABLE_ROUNDS, Options, Sample, summarise, table, this_run, write_line

RESULTS = Path(__file__).parent / "results"


def main() -> int:
    arguments = _parser().parse_args()
    options = Options(rounds=arguments.rounds, quick=arguments.quick)
    names = arguments.names or list(BENCHMARKS)
    tables = sys.stderr if arguments.json else sys.stdout
    arguments.results.mkdir(parents=True, exist_ok=True)
    path = arguments.results / f"{datetime.now(UTC):%Y%m%dT%H%M%S}.jsonl"
    with path.open("a") as file:
        outputs = (file, sys.stdout) if arguments.json else (file,)
        write_line(this_run(options), *outputs)
        for name in names:
            benchmark = BENCHMARKS[name]
            samples: list[Sample] = []
            for sample in benchmark.run(options):
                samples.append(sample)
                write_line(sample, *outputs)
            summaries = summarise(benchmark, samples)
            for summary in summaries:
                write_line(summary, *outputs)
            print(table(benchmark, summaries), file=tables, flush=True)
    if options.rounds < QUOTABLE_ROUNDS or options.quick:
        print(f"A look, not a figure: it takes {QUOTABLE_ROUNDS} full rounds.", file=tables)
    print(f"Every sample: {path}", file=tables)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure against a floor in the same run."
    )
    parser.add_argument(
        "names", nargs="*", metavar="name", choices=[[], *BENCHMARKS], help=", ".join(BENCHMARKS)
    )
    parser.add_argument(
        "--rounds", type=int, default=QUOTABLE_ROUNDS, help="interleaved rounds (default %(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--json", action="store_true", help="JSON lines on stdout, the table on stderr")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the JSON lines go")
    return parser


if __name__ == "__main__":
    sys.exit(main())
