"""What `feedsvc doctor` asks MongoDB beside what the service itself asks: version, clock, room, and why nobody answers.

Every question raises `SourceError` alone, as the source does. Texts are made here: hosts and reasons, never the URI.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from bson.codec_options import CodecOptions, DatetimeConversion

from feedsvc.adapters.mongo.clients import POOL_HEADROOM
from feedsvc.adapters.mongo.driver import MAX_READS, MongoSource
from feedsvc.adapters.mongo.errors import classify
from feedsvc.adapters.mongo.image_expiry import expire_after
from feedsvc.adapters.mongo.uri import sets_option

_CODEC: CodecOptions[dict[str, Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
"""A command does not take that of its client."""
_ERRNO = re.compile(r"\[Errno (-?\d+)\]")


class Connections(msgspec.Struct, frozen=True):
    """Of a server: those in use and those it would still take."""

    current: int
    available: int


class Probe:
    """Over a source that has been started, and that stays the caller's."""

    def __init__(self, source: MongoSource) -> None:
        self._source = source

    async def authenticated(self) -> bool:
        """Whether the connection has a user. The first question to any server: no privilege is needed for it."""
        info = (await self._asked("admin", {"connectionStatus": 1})).get("authInfo", {})
        return bool(info.get("authenticatedUsers"))

    async def version(self) -> str:
        return str((await self._asked("admin", {"buildInfo": 1})).get("version", ""))

    async def clock_ms(self) -> int | None:
        """The server's own clock, epoch milliseconds."""
        told = (await self._asked("admin", {"hello": 1})).get("localTime")
        return None if told is None else int(told)

    async def oplog_fill(self) -> float | None:
        """Which part of the oplog's size is used, 0 to 1; None where the server does not say."""
        reply = await self._asked(
            "local",
            {"aggregate": "oplog.rs", "pipeline": [{"$collStats": {"storageStats": {}}}], "cursor": {}},
        )
        batch = reply.get("cursor", {}).get("firstBatch") or [{}]
        stats: Mapping[str, Any] = batch[0].get("storageStats", {})
        size, largest = stats.get("size"), stats.get("maxSize")
        return min(1.0, size / largest) if size and largest else None

    async def image_expiry_s(self) -> int | None:
        """Seconds that pre-images are kept; None: as long as the oplog."""
        return expire_after(await self._asked("admin", {"getClusterParameter": "changeStreamOptions"}))

    async def connections(self) -> Connections:
        told = (await self._asked("admin", {"serverStatus": 1})).get("connections", {})
        return Connections(int(told.get("current", 0)), int(told.get("available", 0)))

    async def databases(self) -> list[str]:
        """The databases that the user may see, but for the server's own. Sorted."""
        reply = await self._asked("admin", {"listDatabases": 1, "nameOnly": True})
        return sorted({found["name"] for found in reply.get("databases", ())} - {"admin", "config", "local"})

    async def collections(self, database: str, most: int) -> list[str]:
        """Up to `most` collections of a database that a client could watch. No views, nothing of the server's."""
        names: list[str] = []
        try:
            cursor = await self._source.reads[database].list_collections(filter={"type": "collection"})
            async with cursor:
                async for found in cursor:
                    if len(names) < most and not found["name"].startswith("system."):
                        names.append(found["name"])
        except Exception as error:
            raise classify(error) from None
        return names

    def unreached(self) -> list[str]:
        """`host:port: reason` of each server that the driver knows and cannot use. Call it after a failure.

        None at all: those of the URI are of another replica set than it names.
        """
        description: Any = getattr(self._source.reads, "topology_description", None)
        servers: Mapping[tuple[str, int | None], Any] = (
            {} if description is None else description.server_descriptions()
        )
        return [
            f"{host}{'' if port is None else f':{port}'}: {_reason(server)}"
            for (host, port), server in sorted(servers.items(), key=str)
        ]

    async def _asked(self, database: str, command: Mapping[str, Any]) -> dict[str, Any]:
        try:
            reply: dict[str, Any] = await self._source.reads[database].command(command, codec_options=_CODEC)
        except Exception as error:
            raise classify(error) from None
        return reply


def pool_sizes(max_streams: int) -> tuple[int, int]:
    """The most connections of one process to each server: for streams, and for everything else."""
    return max_streams + POOL_HEADROOM, MAX_READS


def sets_pool_size(uri: str) -> bool:
    """Whether a URI has a `maxPoolSize`, which the source's own sizes overrule."""
    return sets_option(uri, "maxPoolSize")


def _reason(server: Any) -> str:
    error = server.error
    if error is None:
        known = server.server_type_name
        return "did not answer in time" if known == "Unknown" else f"is no primary ({known})"
    text = str(error)
    number = _ERRNO.search(text)
    if number is not None:
        # The resolver's numbers are negative.
        return "the name does not resolve" if int(number[1]) < 0 else os.strerror(int(number[1])).lower()
    if "timed out" in text or "Timeout" in type(error).__name__:
        return "did not answer in time"
    if "SSL" in text or "certificate" in text:
        return "the TLS handshake failed"
    if type(error).__name__ == "ProtocolError":
        return "does not speak as MongoDB does"
    return f"failed ({type(error).__name__})"
