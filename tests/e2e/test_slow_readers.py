"""A reader that stops: its cursor stays, nobody else notices, and nothing piles up for it (BPR-01, BPR-02, BPR-06).

It has small socket buffers and small segments, so that some 100 KB fill all there is between it and the service. What
it costs the others in time is measured, not tested: `python -m bench slow_reader`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from bson import Timestamp
from websockets.asyncio.client import connect

from tests.e2e.conftest import Documents, StartService, seed
from tests.support.engine import Engine
from tests.support.narrow_socket import narrow_socket
from tests.support.proxy import EngineProxy
from tests.support.service import Client, Frame, Service, client_of, make_jwt, token_key

MIB = 1 << 20
SMALL_LOG = str(3 * MIB)
PATIENT = "600"
EVENT_BYTES = 10_000
WARM_BYTES = 60_000_000
"""What passes through the service before: it fills the log and whatever the reading itself takes."""
OWED_BYTES = (60 if os.environ.get("VERIFY_SCALE") == "short" else 200) * 1_000_000


@pytest.fixture(scope="module")
def proxy(engine: Engine) -> Iterator[EngineProxy]:
    with EngineProxy(engine.port) as proxy:
        yield proxy


@contextlib.asynccontextmanager
async def narrow_client(service: Service, tenant: str, *, compress: bool = False) -> AsyncIterator[Client]:
    """A client that a little fills up once it stops (`stop`), and that never asks whether the server is there."""
    narrow = await narrow_socket(service.port, narrow_segments=True)
    async with connect(
        service.url,
        sock=narrow,
        additional_headers={"Authorization": f"Bearer {make_jwt(tenant)}"},
        max_queue=1,
        max_size=None,
        compression="deflate" if compress else None,
        ping_interval=None,
        proxy=None,
    ) as connection:
        client = Client(connection)
        assert (await client.receive())["type"] == "welcome"
        try:
            yield client
        finally:
            connection.transport.abort()


def stop(client: Client) -> None:
    client.socket.transport.pause_reading()


def go_on(client: Client) -> None:
    client.socket.transport.resume_reading()


def text_of(number: int, size_bytes: int) -> str:
    """Half of it is left where it is compressed."""
    return Random(number).randbytes(size_bytes // 2).hex()


def easy_text(number: int, size_bytes: int) -> str:
    """Nothing is left of it where it is compressed, as by `client_of`."""
    return "x" * size_bytes


async def insert(
    documents: Documents,
    first: int,
    count: int,
    size_bytes: int = EVENT_BYTES,
    text: Callable[[int, int], str] = easy_text,
) -> None:
    """Into `orders`, some hundred kilobytes with each command."""
    rows = [{"_id": number, "text": text(number, size_bytes)} for number in range(first, first + count)]
    many = max(1, 200_000 // size_bytes)
    for at in range(0, count, many):
        await asyncio.to_thread(documents["orders"].insert_many, rows[at : at + many])


def keys(events: Sequence[Frame]) -> list[Any]:
    return [event["documentKey"]["_id"] for event in events]


def kernel_bytes(client: Client) -> int:
    """What waits in the kernel on both sides of a connection: the queues that /proc/net/tcp shows for its two ports."""
    (_, mine), (_, theirs) = client.socket.local_address[:2], client.socket.remote_address[:2]
    waiting = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        if {int(end.split(":")[1], 16) for end in (local, remote)} == {mine, theirs}:
            waiting += sum(int(queue, 16) for queue in queues.split(":"))
    return waiting


def metric(service: Service, name: str) -> float:
    match = re.search(rf"^{re.escape(name)} (\S+)$", service.get("/metrics")[1], re.MULTILINE)
    return float(match[1]) if match else 0.0


def rss_bytes(service: Service) -> int:
    return int(Path(f"/proc/{service.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def patient(proxy: EngineProxy, start_for_module: StartService) -> Service:
    """Closes nobody as slow, and remembers three megabytes."""
    return start_for_module(uri=proxy.uri, slow_after=PATIENT, log_bytes=SMALL_LOG)


async def test_the_cursor_of_a_stopped_reader_stays_in_the_log_and_the_others_get_everything_meanwhile(
    patient: Service, proxy: EngineProxy, database: Documents, fresh_database: str
) -> None:
    seed(database["orders"], {"_id": "first"})
    async with contextlib.AsyncExitStack() as stack:
        others = [await stack.enter_async_context(client_of(patient, fresh_database)) for _ in range(10)]
        stopped = await stack.enter_async_context(narrow_client(patient, fresh_database))
        for client in (*others, stopped):
            await client.subscribe("orders")
        stop(stopped)
        opened = len(proxy.opened)
        await insert(database, 0, 200)
        for client in others:
            assert keys(await client.events(200)) == list(range(200))
        assert kernel_bytes(stopped) < 100 * EVENT_BYTES, "the rest is a cursor"
        go_on(stopped)
        events = await stopped.events(200)
        assert keys(events) == list(range(200))
        assert [event["_id"] for event in events] == [
            frame["event"]["_id"] for frame in others[0].seen if frame["type"] == "event"
        ]
        assert len(proxy.opened) == opened, "the log served it"


async def test_many_that_read_by_fits_get_every_event_whole_and_in_order(
    patient: Service, database: Documents, fresh_database: str
) -> None:
    """One event at a time, which all get by one loop of writes, or two where some of them compress: the last that a
    socket takes is taken in part."""
    seed(database["orders"], {"_id": "first"})
    sizes = [40_000, 200, 60_000, 9_000, 50_000] * 2
    async with contextlib.AsyncExitStack() as stack:
        other = await stack.enter_async_context(client_of(patient, fresh_database))
        clients = [
            await stack.enter_async_context(narrow_client(patient, fresh_database, compress=number % 2 == 0))
            for number in range(12)
        ]
        for client in (other, *clients):
            await client.subscribe("orders")
        for first in range(0, 5 * len(sizes), len(sizes)):
            for client in clients:
                stop(client)
            for number, size_bytes in enumerate(sizes, first):
                await insert(database, number, 1, size_bytes, text_of)
                assert keys(await other.events(1)) == [number]
            for client in clients:
                go_on(client)
            for client in clients:
                assert keys(await client.events(len(sizes))) == list(range(first, first + len(sizes)))
    told = {frame["type"] for client in clients for frame in client.seen}
    assert told <= {"welcome", "subscribed", "live", "event", "heartbeat", "checkpoint"}


async def test_one_that_fell_off_the_log_is_served_from_the_oplog_without_a_resync(
    patient: Service, proxy: EngineProxy, database: Documents, fresh_database: str
) -> None:
    seed(database["orders"], {"_id": "first"})
    async with client_of(patient, fresh_database) as other, narrow_client(patient, fresh_database) as stopped:
        await other.subscribe("orders")
        await stopped.subscribe("orders")
        stop(stopped)
        opened = len(proxy.opened)
        await insert(database, 0, 500)
        assert keys(await other.events(500)) == list(range(500))
        go_on(stopped)
        assert keys(await stopped.events(500)) == list(range(500))
        await insert(database, 500, 10)
        assert keys(await stopped.events(10)) == list(range(500, 510))
        assert "resync" not in {frame["type"] for frame in stopped.seen}
        assert 0 < len(proxy.opened) - opened <= 4


async def test_one_that_takes_nothing_is_closed_and_resumes_on_another_instance_without_loss(
    start_service: StartService, database: Documents, fresh_database: str
) -> None:
    """4201 after FEEDSVC_SLOW_AFTER. Of what it was owed only a little was ever handed to its socket."""
    keyring = token_key()
    one = start_service(slow_after="1", token_keys=keyring)
    two = start_service(token_keys=keyring)
    seed(database["orders"], {"_id": "first"})
    async with client_of(one, fresh_database) as other, narrow_client(one, fresh_database) as stopped:
        await other.subscribe("orders")
        topic = (await stopped.subscribe("orders"))["topic"]
        await insert(database, 0, 5)
        got = keys(await stopped.events(5))
        stop(stopped)
        await insert(database, 5, 400)
        await asyncio.to_thread(one.wait_for, "/metrics", 200, 'feedsvc_closes_total{code="4201"} 1.0')
        # The other one was handed everything, at the most.
        handed_bytes, owed_bytes = metric(one, "feedsvc_sent_bytes_total"), 400 * EVENT_BYTES
        assert 0 < handed_bytes < owed_bytes * 1.5
        assert keys(await other.events(405)) == list(range(405))
    async with client_of(two, fresh_database) as again:
        answer = await again.subscribe("orders", resumeAfter=stopped.tokens[topic], expect="")
        assert answer["resumed"] is True
        got += keys(await again.replayed(400))
        assert got == list(range(405))
        await insert(database, 405, 1)
        assert keys(await again.events(1)) == [405]
    assert "resync" not in {frame["type"] for frame in again.seen}


async def test_what_neither_log_nor_oplog_can_serve_is_a_resync_of_that_topic_alone(
    small_oplog: Engine, start_service: StartService, fresh_database: str
) -> None:
    service = start_service(uri=small_oplog.uri, slow_after=PATIENT, log_bytes=SMALL_LOG)
    database = small_oplog.client[fresh_database]
    seed(database["orders"], {"_id": "first"})
    seed(database["quiet"], {"_id": "first"})
    async with client_of(service, fresh_database) as other, narrow_client(service, fresh_database) as stopped:
        await other.subscribe("orders")
        busy = (await stopped.subscribe("orders"))["topic"]
        quiet = (await stopped.subscribe("quiet", request_id="q"))["topic"]
        stop(stopped)
        await insert(database, 0, 200)
        last = (await other.events(200))[-1]["clusterTime"]["$timestamp"]
        await asyncio.to_thread(small_oplog.roll_oplog, Timestamp(last["t"], last["i"]))
        await insert(database, 200, 300)  # only now it falls off the log
        assert keys(await other.events(300)) == list(range(200, 500))
        go_on(stopped)
        resync = await stopped.until("resync")
        assert (resync["topic"], resync["reason"]) == (busy, "overflow")
        before = [frame["event"] for frame in stopped.seen if frame["type"] == "event"]
        assert keys(before) == list(range(len(before)))
        assert len(before) < 200
        database["quiet"].insert_one({"_id": 1})
        database["orders"].insert_one({"_id": 500})
        frames = [await stopped.until("event") for _ in range(2)]
        assert {(frame["topic"], frame["event"]["documentKey"]["_id"]) for frame in frames} == {
            (quiet, 1),
            (busy, 500),
        }
        assert [frame["type"] for frame in stopped.seen].count("resync") == 1


@pytest.mark.verify
@pytest.mark.timeout(300)
async def test_memory_does_not_grow_with_what_a_stopped_reader_is_owed(
    patient: Service, database: Documents, fresh_database: str
) -> None:
    """BPR-01: from before it is owed anything. It is a cursor, and what is behind that stays in the oplog."""
    size_bytes, tens = 500_000, 10 * 500_000
    seed(database["orders"], {"_id": "first"})
    async with client_of(patient, fresh_database) as other, narrow_client(patient, fresh_database) as stopped:
        await other.subscribe("orders")

        async def pass_on(first: int, rounds: int) -> int:
            for at in range(first, first + 10 * rounds, 10):
                await insert(database, at, 10, size_bytes)
                assert keys(await other.events(10)) == list(range(at, at + 10))
                other.seen.clear()
                other.raw.clear()
            return rss_bytes(patient)

        before = await pass_on(0, WARM_BYTES // tens)
        await stopped.subscribe("orders")
        stop(stopped)
        grown = await pass_on(WARM_BYTES // size_bytes, OWED_BYTES // tens) - before
        assert metric(patient, "feedsvc_connections") == 2
        print(f"{grown / MIB:.1f} MiB for a reader that is owed {OWED_BYTES / MIB:.0f} MiB")
        assert grown < 16 * MIB
