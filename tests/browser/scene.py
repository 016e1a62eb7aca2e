"""A service with something to look at: tenants, tails of which one stalls on command, clients that lost their place and
others that were closed. All of it happened; nothing is set."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect

from tests.support.engine import Engine
from tests.support.proxy import EngineProxy, Fault
from tests.support.service import Client, Service, client_of

STALLED = "payments"
TENANTS = {"acme": ("orders", "users", "stock"), "globex": ("orders",), "initech": ("orders", STALLED)}
STALL_AFTER_S = 1.0


class Scene:
    """`stall` and `heal` are felt within seconds."""

    def __init__(self, service: Service, proxy: EngineProxy) -> None:
        self.service = service
        self._proxy = proxy

    def stall(self) -> None:
        """The stream of one collection fails from now on, however often it is opened."""
        self._proxy.faults = [
            Fault("getMore", 43, collection=STALLED),
            Fault("aggregate", 91, collection=STALLED),
        ]

    def heal(self) -> None:
        self._proxy.faults = []


@contextlib.asynccontextmanager
async def scene(directory: Path, **environment: str) -> AsyncIterator[Scene]:
    """Clients stay connected until the end of the block."""
    engine = Engine(oplog_max_entries=4_000).start()
    try:
        with EngineProxy(engine.port) as proxy:
            environment |= {"tail_scope": "collection", "stall_after": str(STALL_AFTER_S)}
            service = Service(proxy.uri, directory, **environment)  # type: ignore[arg-type]
            with service:
                async with contextlib.AsyncExitStack() as stack:
                    await _clients(stack, service, engine)
                    yield Scene(service, proxy)
    finally:
        engine.stop()


async def _clients(stack: contextlib.AsyncExitStack, service: Service, engine: Engine) -> None:
    for number, (tenant, collections) in enumerate(TENANTS.items()):
        for _ in range(3 - number):
            client = await stack.enter_async_context(client_of(service, tenant))
            for collection in collections:
                engine.client[tenant][collection].insert_one({})
                await client.subscribe(collection, request_id=collection)
            await _lose_a_place(client)
            await stack.enter_async_context(_reading(client))
    async with client_of(service, "acme"):
        pass
    async with connect(service.url, proxy=None) as nobody:
        await nobody.send('{"type":"auth","jwt":"no.jwt.at.all"}')
        await Client(nobody).closed()


@contextlib.asynccontextmanager
async def _reading(client: Client) -> AsyncIterator[None]:
    """It takes what it is sent: a library that is full of unread frames answers no ping either."""

    async def take() -> None:
        async for _ in client.socket:
            pass

    reader = asyncio.create_task(take())
    try:
        yield
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


async def _lose_a_place(client: Client) -> None:
    """Come back to another topic with the resume token of one: `topic_changed`."""
    frame: dict[str, Any] = {
        "type": "subscribe",
        "id": "again",
        "resumeAfter": next(iter(client.tokens.values())),
    }
    await client.send({**frame, "topic": {"collection": "orders", "filter": {"status": "open"}}})
    await client.until("resync")
