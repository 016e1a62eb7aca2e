"""Line plots as SVG text: logarithmic axes, one label at the end of each line, no library.

Colours follow the reader's light or dark scheme (a media query works inside an image, too) and the ground stays
transparent. A point has a median and a bar from the least to the greatest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

import msgspec

_WIDTH, _HEIGHT = 720, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 190, 44, 52
_LABEL_ROOM = 17
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #333 }
.title { font-size: 15px; font-weight: 600 }
.grid { stroke: #8884; stroke-width: 1 }
.line { fill: none; stroke-width: 2 }
.bar { stroke-width: 1.5 }
.s0 { stroke: #1d5fd1; color: #1d5fd1 }
.s1 { stroke: #b3590a; color: #b3590a }
.s2 { stroke: #2b7a3b; color: #2b7a3b }
circle, text.s0, text.s1, text.s2 { fill: currentColor; stroke: none }
@media (prefers-color-scheme: dark) {
  text { fill: #ddd }
  .s0 { stroke: #7db0ff; color: #7db0ff }
  .s1 { stroke: #ffb265; color: #ffb265 }
  .s2 { stroke: #86d796; color: #86d796 }
}
"""


class Point(msgspec.Struct, frozen=True):
    x: float
    median: float
    least: float
    greatest: float


class Series(msgspec.Struct, frozen=True):
    label: str
    points: Sequence[Point]


class _Axis(msgspec.Struct, frozen=True):
    """Values from `low` to `high` on pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        part = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self) -> Iterator[float]:
        steps = (1, 2, 5) if self.high / self.low < 200 else (1,)
        decade = math.floor(math.log10(self.low))
        while 10**decade <= self.high * 1.001:
            yield from (
                step * 10.0**decade
                for step in steps
                if self.low * 0.999 <= step * 10.0**decade <= self.high * 1.001
            )
            decade += 1


def line_plot(title: str, x_label: str, y_label: str, series: Sequence[Series]) -> str:
    """At most three series, each with a point at least; values above zero. ValueError otherwise."""
    points = [point for one in series for point in one.points]
    if not 0 < len(series) <= 3 or any(min(point.x, point.least) <= 0 for point in points):
        raise ValueError("one to three series of values above zero, please")
    xs = [point.x for point in points]
    x = _Axis(min(xs), max(max(xs), min(xs) * 10), _LEFT, _WIDTH - _RIGHT)
    low, high = _rounded(min(point.least for point in points), max(point.greatest for point in points))
    y = _Axis(low, high, _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        _text(_LEFT, 22, title, "title"),
        _text((x.start + x.end) / 2, _HEIGHT - 10, x_label, anchor="middle"),
        f'<g transform="rotate(-90 16 {(y.start + y.end) / 2:.0f})">'
        + _text(16, (y.start + y.end) / 2, y_label, anchor="middle")
        + "</g>",
        *_grid(x, y),
        *(line for number, one in enumerate(series) for line in _drawn(one, number, x, y)),
        *_labels(series, x, y),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _rounded(low: float, high: float) -> tuple[float, float]:
    """Outwards to a step of 1, 2 or 5, so that the axis begins and ends at a tick."""
    steps = [step * 10.0**decade for decade in range(-6, 10) for step in (1, 2, 5)]
    below = [step for step in steps if step <= low * 1.001]
    above = [step for step in steps if step >= high * 0.999]
    least = below[-1] if below else low
    return least, max(above[0] if above else high, least * 10)


def _grid(x: _Axis, y: _Axis) -> Iterator[str]:
    for value in x.ticks():
        yield _line(x.at(value), y.start, x.at(value), y.end, "grid")
        yield _text(x.at(value), y.start + 18, f"{value:,.10g}", anchor="middle")
    for value in y.ticks():
        yield _line(x.start, y.at(value), x.end, y.at(value), "grid")
        yield _text(x.start - 8, y.at(value) + 4, f"{value:,.10g}", anchor="end")


def _drawn(one: Series, number: int, x: _Axis, y: _Axis) -> Iterator[str]:
    path = " ".join(f"{x.at(point.x):.1f},{y.at(point.median):.1f}" for point in one.points)
    yield f'<polyline class="line s{number}" points="{path}"/>'
    for point in one.points:
        yield _line(x.at(point.x), y.at(point.least), x.at(point.x), y.at(point.greatest), f"bar s{number}")
        yield f'<circle class="s{number}" cx="{x.at(point.x):.1f}" cy="{y.at(point.median):.1f}" r="3.5"/>'


def _labels(series: Sequence[Series], x: _Axis, y: _Axis) -> Iterator[str]:
    """Beside the last point of each line, moved down where the one above would be hit."""
    ends = sorted((y.at(one.points[-1].median), number, one) for number, one in enumerate(series))
    above = 0.0
    for at, number, one in ends:
        above = max(at, above + _LABEL_ROOM)
        yield _text(x.at(one.points[-1].x) + 10, above + 4, one.label, f"s{number}")


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
