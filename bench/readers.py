"""`python -m bench.readers KIND URI DATABASE COLLECTION COUNT ...`: one process that reads COUNT changes.

The loop of each kind is the least that its name promises. All kinds run on uvloop, as the service does, so that a
ratio compares the reading and not the loops. Output, a line each: `{}` once the stream or subscription is open; the
`seq` of the last document as delivered, which proves that none is missing; the arrival times (monotonic seconds).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop
from bson.raw_bson import RawBSONDocument
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import AsyncMongoClient
from websockets.asyncio.client import connect

from feedsvc.adapters.mongo import MongoSource
from feedsvc.adapters.mongo.clients import Driver
from feedsvc.core.changes import TailScope
from feedsvc.core.positions import boundary

GIVE_UP_S = 90.0


async def bare(uri: str, database: str, collection: str, count: int) -> list[float]:
    """PyMongo's async API with default decoding: the floor."""
    async with AsyncMongoClient[dict[str, Any]](uri) as client:
        return await _driver_loop(await client[database][collection].watch(), count)


async def raw(uri: str, database: str, collection: str, count: int) -> list[float]:
    """The same without decoding."""
    async with AsyncMongoClient(uri, document_class=RawBSONDocument) as client:
        return await _driver_loop(await client[database][collection].watch(), count)


async def motor(uri: str, database: str, collection: str, count: int) -> list[float]:
    """Motor with default decoding."""
    client: Any = AsyncIOMotorClient(uri)
    return await _driver_loop(client[database][collection].watch(), count)


async def _driver_loop(change_stream: Any, count: int) -> list[float]:
    times = []
    async with change_stream as stream:
        say({})
        while True:
            event = await stream.try_next()
            if event is not None:
                times.append(time.monotonic())
                if len(times) == count:
                    say({"last_seq": event["fullDocument"]["seq"]})
                    return times


async def source(
    uri: str, database: str, collection: str, count: int, driver: Driver = "pymongo"
) -> list[float]:
    """The stream of this project: the envelope of each change decoded, its body not asked for."""
    mongo = MongoSource(uri, driver=driver, max_streams=1)
    await mongo.start()
    start = boundary(await mongo.operation_time())
    stream = await mongo.open(TailScope("collection", database, collection), start)
    say({})
    times: list[float] = []
    # The position is inclusive of its time, at which the last document before this run was written.
    while True:
        for change in (await stream.read()).changes:
            if change.position.cluster_time > start.cluster_time:
                times.append(time.monotonic())
                if len(times) == count:
                    document = change.body().full_document
                    assert document is not None
                    say({"last_seq": document["seq"]})
                    return times


async def subscriber(
    uri: str, database: str, collection: str, count: int, url: str, jwt: str, topic: str
) -> list[float]:
    """A client of the service, which notes when a frame arrives and does not look into it."""
    times: list[float] = []
    headers = {"Authorization": f"Bearer {jwt}"}
    async with connect(
        url, additional_headers=headers, max_size=None, compression=None, proxy=None
    ) as socket:
        await socket.send(json.dumps({"type": "subscribe", "id": "bench", "topic": json.loads(topic)}))
        while True:
            frame = await socket.recv(decode=False)
            if frame.startswith(b'{"type":"event"'):
                times.append(time.monotonic())
                if len(times) == count:
                    say({"last_seq": json.loads(frame)["event"]["fullDocument"]["seq"]})
                    return times
            elif json.loads(frame)["type"] == "live":
                say({})
            elif json.loads(frame)["type"] in ("error", "resync"):
                raise RuntimeError(frame.decode())


def say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


KINDS: dict[str, Callable[..., Coroutine[Any, Any, list[float]]]] = {
    "bare": bare,
    "raw": raw,
    "motor": motor,
    "source": source,
    "subscriber": subscriber,
}


async def _main(kind: str, uri: str, database: str, collection: str, count: str, *more: str) -> None:
    async with asyncio.timeout(GIVE_UP_S):
        times = await KINDS[kind](uri, database, collection, int(count), *more)
    say({"times": times})


if __name__ == "__main__":
    uvloop.run(_main(*sys.argv[1:]))
    # Whoever started this process reads its CPU clock before it ends.
    sys.stdin.read()
