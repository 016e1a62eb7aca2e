"""CPU of the server process (user + system) for each delivered event: 1,000 subscribers of one topic.

The server runs on one core of its own while the load client and the engine have the others. The floor is uvloop's
`transport.write` of one ready frame at a time, in the rows of bursts too, where the 10 or 100 changes of a burst come
with one `insert_many`. `deliveries_per_write` counts the server's write(2): 1 says that events were written one by one.

Two rows show that the load client is not the bottleneck: what it takes itself, over the server beside it, and how much
of a core each of the two needs while the floor writes as fast as it can (`core`: near 1 is what is waited for).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import msgspec

from bench.delivery import Cost, Shape, of_peer, of_service
from bench.fleet import FLOOR, PEERS, apart, peers
from bench.results import Benchmark, Options, Sample
from bench.rig import rig

NAME = "fanout"
SUBSCRIBERS = 1_000
EVENTS = 400
BURSTS = 20
_INTERVAL_S = 0.025
_BURST_INTERVAL_S = 0.2
SERVICE = "service"
SERVICE_DEFLATES = "service, clients that compress"
SERVICE_TENS = "service, bursts of 10"
SERVICE_HUNDREDS = "service, bursts of 100"
FLOOR_HUNDREDS = f"{FLOOR}, bursts of 100"
UNPACED = f"{FLOOR}, without a pause"
LOAD = "load client beside it"
LOAD_HUNDREDS = "load client beside service, bursts of 100"


def run(options: Options) -> Iterator[Sample]:
    less = 10 if options.quick else 1
    one = Shape(SUBSCRIBERS, EVENTS // less, interval_s=_INTERVAL_S)
    deflating = msgspec.structs.replace(one, deflate=True)
    tens = Shape(SUBSCRIBERS, BURSTS // less * 10, burst=10, interval_s=_BURST_INTERVAL_S)
    hundreds = Shape(SUBSCRIBERS, BURSTS // less * 100, burst=100, interval_s=_BURST_INTERVAL_S)
    unpaced = Shape(SUBSCRIBERS, EVENTS // less)
    for number in range(1, options.rounds + 1):
        sample = partial(_sample, number)
        with apart(), rig() as made:
            service = of_service(made, one)
            yield sample(SERVICE, service)
            floor = of_peer(FLOOR, one, service.frame_bytes)
            yield sample(FLOOR, floor)
            yield Sample(NAME, LOAD, number, {"cpu_us_per_delivery": floor.load_cpu_us_per_delivery})
            for name in peers():
                if name != FLOOR:
                    yield sample(name, of_peer(name, one, service.frame_bytes))
            yield sample(SERVICE_DEFLATES, of_service(made, deflating))
            yield sample(SERVICE_TENS, of_service(made, tens))
            service = of_service(made, hundreds)
            yield sample(SERVICE_HUNDREDS, service)
            load_us = service.load_cpu_us_per_delivery
            yield Sample(NAME, LOAD_HUNDREDS, number, {"cpu_us_per_delivery": load_us})
            yield sample(FLOOR_HUNDREDS, of_peer(FLOOR, hundreds, service.frame_bytes))
            fast = of_peer(FLOOR, unpaced, service.frame_bytes)
        yield Sample(NAME, UNPACED, number, {"core": fast.core, "load_core": fast.load_core})


def _sample(number: int, case: str, cost: Cost) -> Sample:
    figures = {
        "cpu_us_per_delivery": cost.cpu_us_per_delivery,
        "deliveries_per_write": cost.deliveries_per_write,
    }
    if case == SERVICE_HUNDREDS:
        figures["deliveries_per_cpu_s"] = 1e6 / cost.cpu_us_per_delivery
    return Sample(NAME, case, number, figures)


BENCHMARK = Benchmark(
    NAME,
    f"{SUBSCRIBERS:,} subscribers of one topic, CPU of the server for each delivery",
    {
        **{name: FLOOR for name in PEERS if name != FLOOR},
        **dict.fromkeys(
            (SERVICE, SERVICE_DEFLATES, SERVICE_TENS, SERVICE_HUNDREDS, FLOOR_HUNDREDS, LOAD), FLOOR
        ),
        LOAD_HUNDREDS: SERVICE_HUNDREDS,
    },
    run,
)
