"""The tables of `docs/metrics.md`, metrics and events of the log, which a test holds equal to what is made here.

    python -m feedsvc.adapters.telemetry.metric_page docs/metrics.md

writes them into the file, between its markers.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from feedsvc.adapters.telemetry.log_table import LOG_EVENTS
from feedsvc.adapters.telemetry.metric_kinds import Metric
from feedsvc.adapters.telemetry.metric_table import METRICS

_MARKED = re.compile(r"(<!-- (metrics|log) -->\n).*?(<!-- end -->\n)", re.DOTALL)
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


def log_table() -> str:
    """One row for each event of the log. Ends with a newline."""
    rows = ["| event | level | fields | meaning |", "|---|---|---|---|"]
    for name, event in LOG_EVENTS.items():
        fields = ", ".join(f"`{field}`" for field in event.fields)
        rows.append(
            f"| `{name}` | {logging.getLevelName(event.level).lower()} | {fields} | {event.meaning} |"
        )
    return "\n".join(rows) + "\n"


def with_tables(page: str) -> str:
    """The page with the tables of now between their markers. ValueError where they are not there."""
    tables = {"metrics": metrics_table(), "log": log_table()}
    written, count = _MARKED.subn(lambda found: found[1] + tables[found[2]] + found[3], page)
    if count != len(tables):
        raise ValueError("the page needs <!-- metrics --> and <!-- log -->, each with an <!-- end -->")
    return written


def _label(name: str, values: tuple[str, ...]) -> str:
    if name in _ELSEWHERE and (not values or len(values) > _MOST_VALUES):
        return f"`{name}`: {_ELSEWHERE[name]}"
    return f"`{name}`: " + ", ".join(f"`{value}`" for value in values)


def _unit(metric: Metric) -> str:
    return "0 to 1" if metric.unit == "ratio" else metric.unit


def _write(path: Path) -> None:
    path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    _write(Path(sys.argv[1]))
