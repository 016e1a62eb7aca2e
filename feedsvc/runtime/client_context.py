"""What the clients of a process have in common."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from feedsvc.ports import NO_TRACER, Clock, Metrics, Tracer, Verifier
from feedsvc.runtime.beats import Beats
from feedsvc.runtime.hub import Hub
from feedsvc.runtime.tail import Report
from feedsvc.runtime.wheel import Wheel


class ClientContext(msgspec.Struct, frozen=True):
    """What all clients of a process share. `server` is the name and version told in `welcome`."""

    hub: Hub
    verifier: Verifier
    clock: Clock
    metrics: Metrics
    report: Report
    random: Callable[[], float]
    server: str
    wheel: Wheel
    beats: Beats
    tracer: Tracer = NO_TRACER
