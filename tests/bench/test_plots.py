"""Plots: where a value stands on logarithmic axes, and what a reader finds beside the line."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.growth import SWEEPS
from bench.growth_plots import plots
from bench.plots import Point, Series, line_plot
from bench.results import Summary

SVG = "{http://www.w3.org/2000/svg}"


def point(x: float, y: float) -> Point:
    return Point(x, y, y * 0.9, y * 1.1)


def drawn(*series: Series) -> ElementTree.Element:
    return ElementTree.fromstring(line_plot("Title", "x", "y", series))


def texts(plot: ElementTree.Element) -> dict[str | None, tuple[float, float]]:
    return {text.text: (float(text.attrib["x"]), float(text.attrib["y"])) for text in plot.iter(f"{SVG}text")}


def test_ten_times_as_much_is_as_far_everywhere_on_both_axes() -> None:
    plot = drawn(Series("line", [point(1, 1), point(10, 10), point(100, 100)]))
    dots = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in plot.iter(f"{SVG}circle")]
    steps = [(after[0] - before[0], after[1] - before[1]) for before, after in itertools.pairwise(dots)]
    assert steps[0] == pytest.approx(steps[1], abs=0.2)
    assert steps[0][0] > 50 > -50 > steps[0][1]


def test_a_dot_stands_at_its_ticks_and_its_bar_from_the_least_to_the_greatest() -> None:
    plot = drawn(Series("line", [Point(10, 100, 50, 200), Point(1_000, 100, 100, 100)]))
    at = texts(plot)
    dot = next(plot.iter(f"{SVG}circle"))
    assert float(dot.attrib["cx"]) == pytest.approx(at["10"][0], abs=0.2)
    assert float(dot.attrib["cy"]) == pytest.approx(at["100"][1] - 4, abs=0.2)
    bar = next(line for line in plot.iter(f"{SVG}line") if line.attrib["class"].startswith("bar"))
    assert [float(bar.attrib[name]) for name in ("y1", "y2")] == pytest.approx(
        [at["50"][1] - 4, at["200"][1] - 4], abs=0.2
    )


def test_labels_of_lines_that_end_alike_do_not_hide_each_other() -> None:
    ends = texts(drawn(*(Series(label, [point(1, 5), point(9, 5)]) for label in ("a", "b", "c"))))
    heights = sorted(ends[label][1] for label in ("a", "b", "c"))
    assert all(below - above >= 13 for above, below in itertools.pairwise(heights))


def test_a_label_is_text_whatever_it_holds() -> None:
    assert "<&>" in texts(drawn(Series("<&>", [point(1, 1)])))


@pytest.mark.parametrize(
    "series", [[], [Series("zero", [Point(0, 1, 1, 1)])], [Series("below", [Point(1, 1, 0, 1)])]]
)
def test_what_has_no_logarithm_is_refused(series: list[Series]) -> None:
    with pytest.raises(ValueError, match="above zero"):
        line_plot("Title", "x", "y", series)


def test_each_sweep_of_growth_has_a_plot_and_its_floor_a_line_where_it_has_one_of_its_own() -> None:
    cases = {case for sweep in SWEEPS for x in sweep.points for case in (sweep.case(x), sweep.floor(x))}
    made = dict(
        plots(Summary("growth", case, "cpu_us_per_delivery", 5, (2.0, 1.0, 3.0)) for case in sorted(cases))
    )
    assert set(made) == {
        "growth-subscribers.svg",
        "growth-topics.svg",
        "growth-connections-per-topic.svg",
        "growth-document-bytes.svg",
    }
    lines = {name: svg.count("<polyline") for name, svg in made.items()}
    assert sorted(lines.values()) == [1, 1, 2, 2]
    assert lines["growth-subscribers.svg"] == lines["growth-document-bytes.svg"] == 2


def test_the_documentation_shows_the_plots_that_are_there() -> None:
    """No broken picture, and none that nobody shows."""
    docs = Path(__file__).parents[2] / "docs"
    shown = re.findall(r"\(plots/(.+?)\)", (docs / "performance.md").read_text())
    assert sorted(shown) == sorted(path.name for path in docs.glob("plots/*.svg"))


def test_a_sweep_that_was_not_measured_has_no_plot() -> None:
    assert not list(plots([]))
