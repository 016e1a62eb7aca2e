"""As PID 1 of a container: SIGTERM leads to a drain and to exit code 0, and nothing is left behind (DEP-05).

The kernel gives a PID 1 no default action for a signal: without a handler of its own, also while it still starts, the
process would ignore SIGTERM and be killed after the whole grace period. `unshare --pid --fork` makes such a process
without a container. Where the right to do so is missing, the same runs as the leader of a session of its own, and the
output says so.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.engine import Engine
from tests.support.processes import (
    UNSHARE,
    catches_sigterm,
    children,
    exists,
    may_unshare,
    number_in_its_namespace,
)
from tests.support.service import Service, client_of

DRAIN_S = 2.0


@pytest.fixture
def isolated() -> bool:
    if may_unshare():
        return True
    print("no right to make a PID namespace: the service runs as the leader of a session, not as PID 1")
    return False


def started(engine: Engine, directory: Path, isolated: bool) -> tuple[Service, int]:
    """The service, and the process id of feedsvc itself as this test sees it."""
    service = Service(engine.uri, directory, drain=str(DRAIN_S), wrapper=UNSHARE if isolated else ())
    service.start()
    if not isolated:
        assert os.getsid(service.pid) == service.pid
        return service, service.pid
    (inner,) = children(service.pid)
    assert number_in_its_namespace(inner) == 1
    return service, inner


async def test_sigterm_at_pid_1_drains_and_leaves_nothing(
    engine: Engine, tmp_path: Path, fresh_database: str, isolated: bool
) -> None:
    service, pid = await asyncio.to_thread(started, engine, tmp_path, isolated)
    try:
        async with client_of(service, fresh_database) as client:
            await client.subscribe("orders")
            assert children(pid) == []
            began = time.monotonic()
            os.kill(pid, signal.SIGTERM)
            await client.until("goaway")
            assert (await client.closed())[0] == 4200
        assert await asyncio.to_thread(service.wait) == 0
        assert time.monotonic() - began < DRAIN_S + 3
        assert not exists(pid)
        log = service.log()
        assert "service.draining" in log and "service.stopped" in log
        assert "Traceback" not in log
    finally:
        service.kill()


def test_sigterm_while_it_starts_is_not_lost(engine: Engine, tmp_path: Path, isolated: bool) -> None:
    """It is caught before anything large is imported, so that a rollout that is taken back at once does not wait."""
    service = Service(engine.uri, tmp_path, wrapper=UNSHARE if isolated else ())
    service.launch()
    try:
        deadline = time.monotonic() + 20
        pids = [] if isolated else [service.pid]
        while not pids or not catches_sigterm(pids[0]):
            assert time.monotonic() < deadline
            pids = pids or children(service.pid)
        os.kill(pids[0], signal.SIGTERM)
        assert service.wait() == 0
        assert "service.started" not in service.log()
    finally:
        service.kill()
