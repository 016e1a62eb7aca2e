"""`feedsvc serve` on the server's core, and load clients that are its authenticated subscribers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.fleet import Load, load, pin_server
from bench.rig import COLLECTION, Rig
from tests.support.service import Service, make_jwt

_JWT_LIFETIME_S = 3600


@contextlib.contextmanager
def served(made: Rig, uri: str = "", **environment: str) -> Iterator[Service]:
    with made.service(uri, **environment) as service:
        pin_server(service.pid)
        yield service


def restart(service: Service) -> None:
    """Kill it and wait until it is ready again."""
    service.kill()
    service.start()
    pin_server(service.pid)


@contextlib.contextmanager
def connected(made: Rig, service: Service, count: int, *, first: int = 0) -> Iterator[Load]:
    """Connections without a subscription, each with a JWT of its own; `first` is the number of the first subject."""
    with (
        _files(made, count, first) as (headers, _),
        load(service.port, "/v1/ws", count, "-H", headers) as clients,
    ):
        yield clients


@contextlib.contextmanager
def subscribers(
    made: Rig,
    service: Service,
    count: int,
    topics: Sequence[Mapping[str, Any]] = ({},),
    *,
    resume: Sequence[str] = (),
    first: int = 0,
    small: bool = False,
    deflate: bool = False,
) -> Iterator[Load]:
    """The same with one subscription each: connection i asks for topic i % topics, after token i if there are any.

    `small`: little room in the sockets, so that one which is not read is full soon. `deflate`: they offer compression,
    as browsers do; their frames must be too small for it.
    """
    with _files(made, count, first) as (headers, frames):
        with Path(frames).open("w") as lines:
            for number in range(count):
                subscribe: dict[str, Any] = {"type": "subscribe", "id": "1"}
                subscribe["topic"] = {"collection": COLLECTION, **topics[number % len(topics)]}
                if resume:
                    subscribe["resumeAfter"] = resume[number]
                print(json.dumps(subscribe), file=lines)
        options = ("-H", headers, "-F", frames, *(["-s"] if small else []), *(["-z"] if deflate else []))
        with load(service.port, "/v1/ws", count, *options) as clients:
            yield clients


@contextlib.contextmanager
def _files(made: Rig, count: int, first: int) -> Iterator[tuple[str, str]]:
    """Paths of a file of headers and of one for frames."""
    with TemporaryDirectory(prefix="feedsvc-bench-") as directory:
        headers = Path(directory, "headers")
        with headers.open("w") as lines:
            for number in range(first, first + count):
                jwt = make_jwt(made.database, sub=f"user-{number}", ttl_s=_JWT_LIFETIME_S)
                print(f"Authorization: Bearer {jwt}", file=lines)
        yield str(headers), str(Path(directory, "frames"))
