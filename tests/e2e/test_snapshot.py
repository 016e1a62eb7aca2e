"""Snapshots through the process: whatever happens, who applies pages and events ends with what `find` returns."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from bson.json_util import RELAXED_JSON_OPTIONS, dumps
from pymongo import MongoClient, UpdateOne
from pymongo.collection import Collection
from websockets.asyncio.client import connect

from tests.e2e.conftest import Documents, StartService
from tests.support.engine import Engine
from tests.support.service import Client, Frame, Service, client_of, make_jwt
from tests.support.view import View, key_of

SHORT = os.environ.get("VERIFY_SCALE") == "short"
POLICY = {
    "tenant": {"claim": "tenant", "database": "{tenant}"},
    "collections": {"*": {}, "mine": {"filter": {"owner": "{sub}"}, "allowPartial": True}},
}


@pytest.fixture(scope="module")
def service(start_for_module: StartService) -> Service:
    return start_for_module(policy=POLICY)


def found(rows: Collection[dict[str, Any]]) -> dict[str, Any]:
    """What `find` returns, as a `View` holds it."""
    documents = [json.loads(dumps(document, json_options=RELAXED_JSON_OPTIONS)) for document in rows.find()]
    return {key_of(document["_id"]): document for document in documents}


async def ask(client: Client, view: View, collection: str = "orders", **fields: Any) -> None:
    """Subscribe and apply the answer; a position comes from the view."""
    view.asked(view.token)
    position = {} if view.token is None else {"resumeAfter": view.token}
    await client.send(
        {"type": "subscribe", "id": "s", "topic": {"collection": collection}, **position, **fields}
    )
    view.apply(await client.until(lambda frame: frame["type"] in ("subscribed", "error")))


async def apply(client: Client, view: View, last: str | int) -> list[Frame]:
    """Apply what comes up to a frame of this type, or the event of this `_id`; all of it."""
    applied = []
    while True:
        frame = await client.receive()
        if frame["type"] == "heartbeat":
            continue
        view.apply(frame)
        applied.append(frame)
        if last == frame["type"] or last == frame.get("event", {}).get("documentKey", {}).get("_id"):
            return applied


@contextlib.contextmanager
def writing(rows: Collection[dict[str, Any]], ids: int, inserts: int, every_s: float) -> Iterator[list[int]]:
    """Rounds of inserts, three updates and a delete in the background; the list holds how many writes that were."""
    stop, count, rng = threading.Event(), [0], random.Random(5)

    def write() -> None:
        due = time.monotonic()
        while not stop.is_set():
            rows.insert_many([{"v": rng.random()} for _ in range(inserts)])
            some = [rng.randrange(ids) for _ in range(3)]
            rows.bulk_write([UpdateOne({"_id": number}, {"$set": {"v": rng.random()}}) for number in some])
            rows.delete_one({"_id": rng.randrange(ids)})
            count[0] += inserts + 4
            due = max(due + every_s, time.monotonic() - 1)
            stop.wait(due - time.monotonic())

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield count
    finally:
        stop.set()
        thread.join()


async def test_always_under_writes(service: Service, database: Documents) -> None:
    """RES-01: several pages, a collection that changes all the time, and nothing is missed or kept too long."""
    orders = database["orders"]
    orders.insert_many([{"_id": number, "text": "x" * 400} for number in range(1_500)])
    view = View()
    async with client_of(service, database.name) as client:
        with writing(orders, 1_500, 1, 0.01):
            await ask(client, view, snapshot="always")
            before = await apply(client, view, "live")
            types = [frame["type"] for frame in before]
            assert types == ["snapshot"] * (len(types) - 2) + ["snapshotEnd", "live"]
            assert [frame["page"] for frame in before[:-2]] == list(range(len(types) - 2))
            assert len(types) >= 4
            for _ in range(50):
                await apply(client, view, "event")
        orders.insert_one({"_id": "last"})
        await apply(client, view, "last")
    assert view.documents == found(orders)


async def test_a_token_beside_always_is_ignored(service: Service, database: Documents) -> None:
    """Whatever it is."""
    database["orders"].insert_one({"_id": 1})
    view = View()
    async with client_of(service, database.name) as client:
        await ask(client, view, snapshot="always", resumeAfter="no token at all")
        await apply(client, view, "live")
    assert view.documents == {"1": {"_id": 1}}


async def test_on_resync_with_an_expired_token_cut_in_the_middle(
    start_service: StartService, small_oplog: Engine, fresh_database: str
) -> None:
    """resync and snapshot; who is cut in the middle has the old token still, and is given both again."""
    rows = small_oplog.client[fresh_database]["orders"]
    rows.insert_many([{"_id": number, "text": "x" * 1_000} for number in range(1_000)])
    service = start_service(uri=small_oplog.uri)
    view = View()
    async with client_of(service, fresh_database) as client:
        await ask(client, view, snapshot="always")
        await apply(client, view, "live")
        assert len(view.documents) == 1_000
        view.save()
    rows.delete_many({"_id": {"$lt": 100}})
    small_oplog.roll_oplog(small_oplog.client.admin.command("ping")["operationTime"])
    service.kill()
    service.start()  # the live ring remembered the token
    async with client_of(service, fresh_database) as client:
        await ask(client, view, snapshot="onResync")
        resync, page = await apply(client, view, "snapshot")
        assert (resync["reason"], "token" in resync, page["page"]) == ("token_expired", False, 0)
    view.crash()
    async with client_of(service, fresh_database) as client:
        await ask(client, view, snapshot="onResync")
        assert (await apply(client, view, "live"))[0]["reason"] == "token_expired"
        view.save()
        rows.insert_one({"_id": "last"})
        await apply(client, view, "last")
        assert view.documents == found(rows)
    view.crash()
    async with client_of(service, fresh_database) as client:
        await ask(client, view, snapshot="onResync")
        await apply(client, view, "last")
        assert (view.documents, view.figures["snapshots"]) == (found(rows), 2)


@pytest.mark.parametrize(
    "collection, topic",
    [("orders", {"operations": ["insert"]}), ("mine", {})],
    ids=["not all operations", "deletes cannot be told"],
)
@pytest.mark.parametrize("mode", ["always", "onResync"])
async def test_refusals(
    service: Service, fresh_database: str, collection: str, topic: dict[str, Any], mode: str
) -> None:
    """`snapshot_unavailable`, and the connection goes on."""
    async with client_of(service, fresh_database) as client:
        await client.send(
            {"type": "subscribe", "id": "s", "topic": {"collection": collection, **topic}, "snapshot": mode}
        )
        error = await client.until("error")
        assert (error["code"], error["id"]) == ("snapshot_unavailable", "s")
        await client.subscribe(collection, **topic)


async def test_the_bound_ends_the_subscription(
    start_service: StartService, database: Documents, fresh_database: str
) -> None:
    """FEEDSVC_MAX_SNAPSHOT_BYTES: told once, not to be asked for again."""
    database["orders"].insert_many([{"text": "x" * 1_000} for _ in range(1_000)])
    service = start_service(max_snapshot_bytes="500000")
    async with client_of(service, fresh_database) as client:
        await client.subscribe("orders", snapshot="always", expect="unsubscribed")
        assert (client.seen[-1]["code"], client.seen[-1]["resubscribe"]) == ("snapshot_too_large", False)
        assert sum(frame["type"] == "snapshot" for frame in client.seen) == 1
        await client.subscribe("users", request_id="other")


# -- must show 5 --------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def slow_client_of(service: Service, tenant: str) -> AsyncIterator[Client]:
    """A client that holds one frame, and leaves the others to the network."""
    headers = {"Authorization": f"Bearer {make_jwt(tenant)}"}
    async with connect(
        service.url, additional_headers=headers, max_size=None, max_queue=1, proxy=None
    ) as socket:
        client = Client(socket)
        assert (await client.receive())["type"] == "welcome"
        yield client


class Memory:
    """The resident memory of a process, sampled from a thread."""

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self.first = self.highest = self.now()

    def now(self) -> int:
        """In bytes (proc(5): VmRSS, in kB)."""
        line = next(line for line in self._status.read_text().splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024

    def _sample(self) -> None:
        while not self._stop.wait(0.05):
            self.highest = max(self.highest, self.now())

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.verify
async def test_a_large_snapshot_for_a_slow_client_takes_little_memory(tmp_path: Path) -> None:
    """100,000 documents (20,000 with VERIFY_SCALE=short) at about 1 MB/s while some 1,000 writes a second go on: the
    service grows by less than 32 MiB, and the client ends with what `find` returns."""
    documents, rate_bytes = (20_000, 1 << 20) if SHORT else (100_000, 1 << 20)
    # The service asks for the ends of the oplog each second, and this engine reads all of it to tell.
    engine = Engine(sync_on_commit=False, oplog_max_entries=5_000).start()
    try:
        rows = engine.client["t_large"]["orders"]
        for first in range(0, documents, 5_000):
            rows.insert_many([{"_id": first + more, "text": "x" * 120} for more in range(5_000)])
        engine.client["t_large"]["small"].insert_one({})
        with Service(engine.uri, tmp_path) as service:
            await _large_snapshot(engine, service, documents, rate_bytes)
    finally:
        engine.stop()


async def _warm(client: Client) -> None:
    """A first, small snapshot. An engine that was just filled may take its time to open the stream."""
    ask = {"type": "subscribe", "id": "w", "topic": {"collection": "small"}, "snapshot": "always"}
    answer: Frame = {"type": "error", "retryable": True}
    while answer["type"] == "error":
        assert answer["retryable"]
        await client.send(ask)
        answer = await client.until(lambda frame: frame.get("id") == "w")
    await client.until("live")


async def _large_snapshot(engine: Engine, service: Service, documents: int, rate_bytes: int) -> None:
    view = View()
    rows = engine.client["t_large"]["orders"]
    async with client_of(service, "t_large") as client:
        await _warm(client)
    async with slow_client_of(service, "t_large") as client:
        with Memory(service.pid) as memory, MongoClient[dict[str, Any]](engine.uri) as writer:
            started = time.perf_counter()
            with writing(writer["t_large"]["orders"], documents, 60, 0.06) as writes:
                await ask(client, view, snapshot="always")
                pages = size_bytes = 0
                while not view.live:
                    frame = await client.receive(60)
                    if frame["type"] != "heartbeat":
                        view.apply(frame)
                    pages += frame["type"] == "snapshot"
                    size_bytes += len(client.raw.pop())
                    client.seen.clear()
                    # The pace of its network; nothing waits for this.
                    await asyncio.sleep(max(0.0, started + size_bytes / rate_bytes - time.perf_counter()))
                snapshot_s = time.perf_counter() - started
            rows.insert_one({"_id": "last"})
            await apply(client, view, "last")
    there = found(rows)
    grown = (memory.highest - memory.first) / (1 << 20)
    print(
        f"\nsnapshot: {documents} documents, {pages} pages, {size_bytes / (1 << 20):.1f} MiB in {snapshot_s:.1f} s "
        f"beside {writes[0] / snapshot_s:.0f} writes/s, {view.figures['events']} events behind it; memory of the "
        f"service {memory.first / (1 << 20):.1f} MiB, at the most {grown:.1f} MiB more"
    )
    assert view.documents == there
    assert grown < 32
