"""The formula of docs/sizing.md, with the numbers that stand in its table."""

from __future__ import annotations

import re

from feedsvc.core.limits import Limits
from tests.k8s.built import ROOT

KIB, MIB, GIB = 1024, 1024**2, 1024**3
_UNITS = {"": 1, "Ki": KIB, "Mi": MIB, "Gi": GIB, "KiB": KIB, "MiB": MIB, "us": 1e-6, "kib": KIB}


def quantity(text: str) -> float:
    """A number with a binary unit, as Kubernetes and as our pages write it."""
    found = re.fullmatch(r"([0-9.]+) ?([A-Za-z]*)", text)
    assert found is not None, text
    return float(found[1]) * _UNITS[found[2]]


def table() -> dict[str, float]:
    """The marked table of docs/sizing.md: what is measured, in bytes or seconds."""
    return {name: quantity(figure) for name, (figure, _) in _rows().items()}


def memory_bytes(limits: Limits, *, clients: int) -> float:
    """What a process may come to hold."""
    figures = table()
    tails = limits.max_tails + limits.catch_up_tails
    of_slow_readers = figures["share of slow readers"] * limits.high_water_bytes
    return (
        figures["process"]
        + clients * (figures["connection"] + figures["topic"] + of_slow_readers)
        + tails * (limits.log_bytes + limits.ring_records * figures["ring record"])
        + (limits.catch_up_tails + limits.snapshots) * figures["reply"]
    )


def sources() -> dict[str, str]:
    """Rows of that table that name a figure of docs/performance.md: name to `section / case / figure`."""
    return {name: source for name, (_, source) in _rows().items() if source.count(" / ") == 2}


def measured(source: str) -> float:
    """The median that docs/performance.md gives for it."""
    section, case, figure = source.split(" / ")
    _, _, figures = (ROOT / "docs" / "performance.md").read_text().partition("\n## Figures\n")
    _, _, rest = figures.partition(f"\n### {section}\n")
    (row,) = (
        cells
        for line in rest.partition("\n### ")[0].splitlines()
        if line.startswith("|")
        and (cells := [cell.strip() for cell in line.strip("|").split("|")])[:2] == [case, figure]
    )
    return float(row[2].split()[0].replace(",", "")) * next(
        _UNITS[part] for part in figure.split("_") if part in _UNITS
    )


def _rows() -> dict[str, tuple[str, str]]:
    page = (ROOT / "docs" / "sizing.md").read_text()
    _, _, rest = page.partition("<!-- figures -->")
    marked, closed, _ = rest.partition("<!-- /figures -->")
    assert closed
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in marked.strip().splitlines()[2:]]
    return {name: (figure, source) for name, figure, source in rows}
