"""The tables of `docs/metrics.md`, which a test holds equal to what is made here.

    python -m feedsvc.adapters.telemetry.metric_page docs/metrics.md

writes them into the file, between its markers.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from feedsvc.adapters.telemetry.metric_kinds import Metric
from feedsvc.adapters.telemetry.metric_table import METRICS

_MARKED = re.compile(r"(<!-- metrics -->\n).*?(<!-- end -->\n)", re.DOTALL)
_MOST_VALUES = 8
_ELSEWHERE: Mapping[str, str] = {
    "code": "codes of [errors.md](errors.md)",
    "tenant": "tenants, `(others)`",
}


def metrics_table() -> str:
    """One row for each metric, in the table's order. Ends with a newline."""
    rows = ["| metric | type | labels | unit | meaning | what to do |", "|---|---|---|---|---|---|"]
    for metric in METRICS.values():
        labels = "<br>".join(_label(name, values) for name, values in metric.labels.items())
        rows.append(
            f"| `{metric.page_name}` | {metric.kind} | {labels} | {_unit(metric)} | {metric.help} | {metric.advice} |"
        )
    return "\n".join(rows) + "\n"


def with_table(page: str) -> str:
    """The page with the table of now between its markers. ValueError where it has none."""
    written, count = _MARKED.subn(lambda found: found[1] + metrics_table() + found[2], page)
    if count != 1:
        raise ValueError("the page needs one <!-- metrics --> and one <!-- end -->")
    return written


def _label(name: str, values: tuple[str, ...]) -> str:
    if name in _ELSEWHERE and (not values or len(values) > _MOST_VALUES):
        return f"`{name}`: {_ELSEWHERE[name]}"
    return f"`{name}`: " + ", ".join(f"`{value}`" for value in values)


def _unit(metric: Metric) -> str:
    return "0 to 1" if metric.unit == "ratio" else metric.unit


def _write(path: Path) -> None:
    path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    _write(Path(sys.argv[1]))
