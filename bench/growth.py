"""How the CPU for each delivery grows: with subscribers, topics, connections to a topic, and the size of an event.

One event at a time, and the next when all have it. Each sweep varies one thing:

- `subscribers`: of one topic. The floor is raw writes of the same frame to as many.
- `topics`: each of 1,000 subscribers gets every event, through so many topics that all match it (and differ). Nothing
  but the number of frames that have to be made grows; the floor is one topic.
- `connections per topic`: 100 topics told apart by one field; an event goes to one of them. What an event costs
  before it is delivered is shared by few or by many; the floor is one connection to each.
- `document bytes`: to 100 subscribers, from a small document to one just below the limit of an event. The floor is
  raw writes of a frame of that size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from bench.delivery import Shape, of_peer, of_service
from bench.fleet import FLOOR, apart, need_files
from bench.results import Benchmark, Options, Sample
from bench.rig import Rig, rig

NAME = "growth"
SUBSCRIBERS = 1_000
_DELIVERIES = 50_000
_LARGEST_EVENTS = 200
_LEAST_EVENTS = 10
_SENT_BYTES = 500 << 20
_ZONES = 100
_INTERVAL_S = 0.005


class Sweep(msgspec.Struct, frozen=True):
    """`points`: what is varied, to the shape that is measured. `raw`: each point has a floor of its own."""

    name: str
    points: Mapping[int, Shape]
    raw: bool

    def case(self, point: int) -> str:
        return f"{point:,} {self.name}"

    def floor(self, point: int) -> str:
        return f"{FLOOR}, {self.case(point)}" if self.raw else self.case(min(self.points))


def _shape(subscribers: int, *, reached: int = 0, **more: object) -> Shape:
    events = max(_LEAST_EVENTS, min(_LARGEST_EVENTS, _DELIVERIES // (reached or subscribers)))
    shape = Shape(subscribers, events, interval_s=_INTERVAL_S, reached=reached)
    return msgspec.structs.replace(shape, **more)


def _sized(document_bytes: int) -> Shape:
    shape = _shape(100, document_bytes=document_bytes)
    events = min(shape.events, max(_LEAST_EVENTS, _SENT_BYTES // document_bytes // 100))
    return msgspec.structs.replace(shape, events=events)


SWEEPS = (
    Sweep("subscribers", {count: _shape(count) for count in (10, 100, 1_000, 10_000)}, raw=True),
    Sweep(
        "topics",
        {
            count: _shape(SUBSCRIBERS, topics=[{"filter": {"seq": {"$gte": -n}}} for n in range(count)])
            for count in (1, 10, 100, 1_000)
        },
        raw=False,
    ),
    Sweep(
        "connections per topic",
        {
            count: _shape(
                count * _ZONES,
                reached=count,
                topics=[{"filter": {"zone": n}} for n in range(_ZONES)],
                zones=_ZONES,
            )
            for count in (1, 10, 100)
        },
        raw=False,
    ),
    Sweep(
        "document bytes",
        {size: _sized(size) for size in (100, 1_000, 10_000, 100_000, 1_000_000)},
        raw=True,
    ),
)


def run(options: Options) -> Iterator[Sample]:
    need_files(max(shape.subscribers for sweep in SWEEPS for shape in sweep.points.values()))
    for number in range(1, options.rounds + 1):
        for sweep in SWEEPS:
            points = _quick(sweep.points) if options.quick else sweep.points
            with apart(), rig() as made:
                for point, shape in points.items():
                    for case, cost_us in _point(made, sweep, point, shape):
                        yield Sample(NAME, case, number, {"cpu_us_per_delivery": cost_us})


def _point(made: Rig, sweep: Sweep, point: int, shape: Shape) -> Iterator[tuple[str, float]]:
    cost = of_service(made, shape)
    yield sweep.case(point), cost.cpu_us_per_delivery
    if sweep.raw:
        yield sweep.floor(point), of_peer(FLOOR, shape, cost.frame_bytes).cpu_us_per_delivery


def _quick(points: Mapping[int, Shape]) -> dict[int, Shape]:
    """The first and the last point, a tenth of the subscribers where there are many, and a few events."""
    fewer = {}
    for point in (min(points), max(points)):
        shape = points[point]
        less = 10 if shape.subscribers > _ZONES else 1
        fewer[point] = msgspec.structs.replace(
            shape,
            subscribers=shape.subscribers // less,
            reached=-(-shape.reached // less),
            events=max(2, shape.events // 20),
        )
    return fewer


BENCHMARK = Benchmark(
    NAME,
    "CPU of the server for each delivery against what grows",
    {
        sweep.case(point): sweep.floor(point)
        for sweep in SWEEPS
        for point in sweep.points
        if sweep.floor(point) != sweep.case(point)
    },
    run,
)
