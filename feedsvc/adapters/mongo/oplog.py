"""What the service asks MongoDB beside the streams: time, oplog window, images, identity.

All functions raise the driver's exceptions or a `SourceError`; `driver.MongoSource` classifies them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from bson import Timestamp
from pymongo.errors import OperationFailure

from feedsvc.adapters.mongo.clients import Reads
from feedsvc.adapters.mongo.errors import classify
from feedsvc.core.positions import cluster_time_of
from feedsvc.ports import CollectionInfo, SourceRefused, SourceUnavailable


async def operation_time(client: Reads) -> int:
    """The `operationTime` of a ping: the last operation that the answering node knows, as `t << 32 | i`."""
    return _operation_time_of(await client.admin.command("ping"))


def _operation_time_of(reply: dict[str, Any]) -> int:
    time = reply.get("operationTime")
    if not isinstance(time, Timestamp):
        raise SourceRefused("MongoDB gives no operation time: change streams need a replica set")
    return cluster_time_of(time.time, time.inc)


async def oplog_first(client: Reads) -> int | None:
    """The cluster time of the oldest entry of `local.oplog.rs`; None through mongos, without the privilege, or if it is
    empty."""
    return await _edge(client, 1)


async def oplog_last(client: Reads) -> int | None:
    """The cluster time of its newest entry; None as for `oplog_first`."""
    return await _edge(client, -1)


async def _edge(client: Reads, direction: int) -> int | None:
    try:
        entry = await client["local"]["oplog.rs"].find_one({}, {"ts": 1}, sort=[("$natural", direction)])
    except OperationFailure as error:
        found = classify(error)
        if isinstance(found, SourceRefused):
            return None
        # Whatever this question was answered, it names no position: 136 or 286 to it loses none.
        raise SourceUnavailable(f"the oplog cannot be read now: {found}", found.code) from None
    return None if entry is None else cluster_time_of(entry["ts"].time, entry["ts"].inc)


async def describe(
    client: Reads, database: str, collections: Collection[str]
) -> Mapping[str, CollectionInfo]:
    """Whether each collection keeps pre- and post-images (`changeStreamPreAndPostImages`, MongoDB 6.0).

    The server looks up names under `$in` and does not read the whole catalog for them (mongo/db/commands/
    list_collections.cpp).
    """
    cursor = await client[database].list_collections(filter={"name": {"$in": list(collections)}})
    described = {}
    async with cursor:
        async for found in cursor:
            images = found.get("options", {}).get("changeStreamPreAndPostImages", {})
            described[found["name"]] = CollectionInfo(images=bool(images.get("enabled", False)))
    return described


async def identity(client: Reads) -> str:
    """The name of the replica set, or `sharded` behind mongos; a standalone is refused."""
    reply = await client.admin.command("hello")
    if reply.get("msg") == "isdbgrid":
        return "sharded"
    name = reply.get("setName")
    if not isinstance(name, str) or not name:
        raise SourceRefused(
            "MongoDB runs as a standalone: change streams need a replica set or a sharded cluster"
        )
    return name
