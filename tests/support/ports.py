"""Ports for the processes of tests.

Asking the kernel for any free one is a race: until the process listens, another worker, or an outgoing connection, may
be given the same. These are below the range of outgoing connections, and each worker has its own.
"""

from __future__ import annotations

import itertools
import os
import socket

_FIRST = 20_000
_PER_WORKER = 1_500
_WORKERS = 8
_asked = itertools.count(os.getpid() * 37)


def free_port() -> int:
    """One on which nobody listens; not given again soon. RuntimeError where there is none."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw7").removeprefix("gw")) % _WORKERS
    for _ in range(_PER_WORKER):
        port = _FIRST + worker * _PER_WORKER + next(_asked) % _PER_WORKER
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise RuntimeError("every port of this worker is taken")
