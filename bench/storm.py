"""5,000 clients come back at once after a restart, each with a token of its own: 50 topics, 100 positions in each.

The time until all are live again is compared with what cannot be avoided: the time until as many authenticated
connections to a service that was restarted likewise have their `welcome`, and ask for nothing. A run fails in which
one of them got a resync or an error, or not every event that it was owed. `catch_up_streams` is counted on the wire, by
a proxy between service and engine, and left out on a replica set that the environment names.

The oplog holds the changes of the whole run: at an engine that reads all of it for each stream that is opened, so does
its length. Replayed are 50 events to each client in the mean.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Iterator

from websockets.asyncio.client import connect

from bench.fleet import Counts, apart, need_files
from bench.results import Benchmark, Options, Sample
from bench.rig import COLLECTION, Rig, cpu_s, rig
from bench.subscribers import connected, restart, served, subscribers
from tests.support.engine import URI_VARIABLE
from tests.support.proxy import EngineProxy
from tests.support.service import Service, make_jwt

NAME = "storm"
TOPICS = 50
POSITIONS = 100
ACCEPTED = "accepted, welcome"
LIVE = "resumed, live"


def run(options: Options) -> Iterator[Sample]:
    positions = POSITIONS // 10 if options.quick else POSITIONS
    clients = TOPICS * positions
    need_files(clients)
    for round_number in range(1, options.rounds + 1):
        with (
            apart(),
            rig() as made,
            _counted(made.uri) as proxy,
            served(made, proxy.uri if proxy else "") as service,
        ):
            tokens = asyncio.run(_tokens(made, service, positions))
            restart(service)
            before_s = cpu_s(service.pid)
            with connected(made, service, clients) as load:
                said, used_s = load.welcome(), cpu_s(service.pid) - before_s
            yield Sample(NAME, ACCEPTED, round_number, _figures(said, used_s))
            restart(service)
            before_s, opened = cpu_s(service.pid), len(proxy.opened) if proxy else 0
            with subscribers(made, service, clients, _topics(), resume=tokens) as load:
                said, used_s = load.ready(), cpu_s(service.pid) - before_s
                load.arrived(TOPICS * positions * (positions - 1) // 2)
            figures = _figures(said, used_s)
            if proxy:
                figures["catch_up_streams"] = len(proxy.opened) - opened - 1
            yield Sample(NAME, LIVE, round_number, figures)


def _figures(said: Counts, used_s: float) -> dict[str, float]:
    return {"seconds": (said.at_us - said.started_us) / 1e6, "server_cpu_seconds": used_s}


def _topics() -> list[dict[str, object]]:
    return [{"filter": {"zone": zone}} for zone in range(TOPICS)]


@contextlib.contextmanager
def _counted(uri: str) -> Iterator[EngineProxy | None]:
    """A proxy to the embedded engine at `uri`."""
    if os.environ.get(URI_VARIABLE):
        yield None
        return
    port = int(uri.split(":")[-1].split("/")[0])
    with EngineProxy(port) as proxy:
        yield proxy


async def _tokens(made: Rig, service: Service, positions: int) -> list[str]:
    """Write the history and read it: one token for each event, those of connection i at i (its topic is i % topics)."""
    headers = {"Authorization": f"Bearer {make_jwt(made.database)}"}
    tokens: list[str] = []
    async with connect(service.url, additional_headers=headers, max_size=None, proxy=None) as socket:
        for number, topic in enumerate(_topics()):
            subscribe = {"type": "subscribe", "id": f"{number}", "topic": {"collection": COLLECTION, **topic}}
            await socket.send(json.dumps(subscribe))
            while json.loads(await socket.recv())["type"] != "live":
                pass
        for position in range(positions):
            made.documents.insert_many({"seq": position, "zone": zone} for zone in range(TOPICS))
            there = 0
            while there < TOPICS:
                frame = json.loads(await socket.recv())
                if frame["type"] == "event":
                    if frame["event"]["fullDocument"]["zone"] != there:
                        raise RuntimeError("events of one command came in another order")
                    tokens.append(frame["event"]["_id"])
                    there += 1
    return tokens


BENCHMARK = Benchmark(
    NAME,
    f"{TOPICS * POSITIONS:,} clients resume at once after a restart, against accepting as many",
    {LIVE: ACCEPTED},
    run,
)
