"""BPR-06 at full size: a storm of events, and one subscriber that takes nothing all the while.

10,000 events a second are asked of the engine; it is said how many it made of them. The others are read by a bare
client, since one that looks into every frame would be the slowest part.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import Documents, StartService, seed
from tests.e2e.test_slow_readers import PATIENT, go_on, kernel_bytes, metric, narrow_client, stop
from tests.support.engine import Engine
from tests.support.service import Client, client_of

EVENTS_A_SECOND = 10_000
SECONDS = 8 if os.environ.get("VERIFY_SCALE") == "short" else 30
BURST = 1_000
LAG_S = 5.0
"""A subscriber that held up the stream would make it lag for as long as it is blocked."""
ROOMY_LOG = str(512 << 20)
SEQ = re.compile(rb'"seq":(\d+)')


@pytest.fixture
def fast_engine() -> Iterator[Engine]:
    # Long enough for a service that is some seconds behind (a cursor that the oplog passed goes on behind the hole in
    # silence), short enough for the question about its newest entry, for which this engine reads all of them.
    engine = Engine(oplog_max_entries=25_000, sync_on_commit=False).start()
    yield engine
    engine.stop()


def storm(database: Documents) -> int:
    """Write bursts on time, or as fast as the engine takes them; returns how many events there were."""
    began, written = time.monotonic(), 0
    while (elapsed_s := time.monotonic() - began) < SECONDS:
        time.sleep(max(0.0, written / EVENTS_A_SECOND - elapsed_s))
        database["orders"].insert_many([{"seq": seq} for seq in range(written, written + BURST)])
        written += BURST
    return written


async def read(client: Client, got: list[int], until: asyncio.Future[int]) -> None:
    """Note the numbers of all events, until there are as many as `until` says. TimeoutError where they do not come."""
    async with asyncio.timeout(SECONDS + 60):
        while not until.done() or len(got) < until.result():
            found = SEQ.search(await client.socket.recv(decode=False))
            if found is not None:
                got.append(int(found[1]))


@pytest.mark.verify
@pytest.mark.timeout(240)
async def test_a_storm_of_events_is_read_and_delivered_while_one_subscriber_is_blocked(
    fast_engine: Engine, start_service: StartService, fresh_database: str
) -> None:
    service = start_service(uri=fast_engine.uri, slow_after=PATIENT, log_bytes=ROOMY_LOG)
    database = fast_engine.client[fresh_database]
    seed(database["orders"], {"_id": "first"})
    got: list[int] = []
    lags: list[float] = []
    async with client_of(service, fresh_database) as other, narrow_client(service, fresh_database) as blocked:
        await other.subscribe("orders")
        await blocked.subscribe("orders")
        stop(blocked)
        written = asyncio.get_running_loop().run_in_executor(None, storm, database)
        reading = asyncio.create_task(read(other, got, written))
        while not reading.done():
            lags.append(await asyncio.to_thread(metric, service, "feedsvc_tail_lag_seconds"))
            await asyncio.wait({reading}, timeout=1)
        await reading
        count = await written
        print(
            f"{count / SECONDS:,.0f} events a second for {SECONDS} s, the stream at most {max(lags):.1f} s behind"
        )
        assert got == list(range(count))
        assert len(lags) >= SECONDS / 2 and max(lags) < LAG_S
        assert kernel_bytes(blocked) < 1_000_000, "the rest is a cursor"
        go_on(blocked)
        late: list[int] = []
        await read(blocked, late, written)
        assert late == list(range(count)), "what it was owed is still there, in order"
