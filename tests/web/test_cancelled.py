"""TRA-04: a stream or a socket whose task is cancelled, wherever it waits, ends there and gives everything back."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from tests.runtime.world import DATABASE, until
from tests.web.asking import Application
from tests.web.test_sse import leave, request, serving
from tests.web.test_upgrades import Socket

RUNS = 100
"""Of each kind: two hundred in all."""


class Written:
    """Documents in `users`, numbered."""

    def __init__(self, web: Application) -> None:
        self._web = web
        self.count = 0

    def one_more(self) -> None:
        self._web.world.oplog.insert(DATABASE, "users", {"_id": self.count})
        self.count += 1


@asynccontextmanager
async def kept() -> AsyncIterator[tuple[Application, Written, Random]]:
    """An application, and a stream that nothing may disturb: it gets all that is written to `users`, in order.

    No task that was cancelled may leave another one behind, or an exception that nobody reads.
    """
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    async with serving() as web:
        keeper = request(web, "users")
        await keeper.until("live")
        (client,), before = web.lifecycle.clients, asyncio.all_tasks()
        written = Written(web)
        yield web, written, Random(4)
        written.one_more()
        await until(
            lambda: len(keeper.sent) > 2 and b'"_id":%d}' % (written.count - 1) in keeper.sent[-1]["body"]
        )
        events = [event["event"]["documentKey"]["_id"] for event in keeper.events if event["type"] == "event"]
        assert events == list(range(written.count))
        assert web.lifecycle.clients == {client}
        assert web.world.subscriptions() == 1
        await until(lambda: asyncio.all_tasks() <= before)
        await leave(keeper)
    gc.collect()
    assert faults == []


async def cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert task.done()


async def test_streams_cancelled_at_random_moments() -> None:
    """While topics are resolved, before the first byte, in a send that waits, in a snapshot, in a burst."""
    ends: set[str] = set()
    async with kept() as (web, written, chance):
        for number in range(RUNS):
            wanted = {"snapshot": "always"} if chance.random() < 0.3 else {}
            asking = request(web, chance.choice(["users", "orders"]), **wanted)
            if number % 4 == 0:
                await asking.until("live")
            elif chance.random() < 0.5:
                asking.room.clear()
            at = chance.randrange(100)
            for step in range(chance.randrange(100)):
                if step == at:
                    written.one_more()
                await asyncio.sleep(0)
            await cancelled(asking.task)
            ends.add("live" if b"event: live" in asking.body else "a part" if asking.sent else "nothing")
            assert len(web.lifecycle.clients) == 1
    assert {"nothing", "live"} <= ends


async def test_sockets_cancelled_at_random_moments() -> None:
    """While a JWT is verified, at a subscribe, an unsubscribe, a refresh; with the application of another server."""
    said: set[str] = set()
    async with kept() as (web, written, chance):
        for number in range(RUNS):
            peer = Socket(web, chance.choice(["alice", None]), "")
            if number % 4 == 0:
                await peer.answer("websocket.accept")
            for _ in range(chance.randrange(12)):
                match chance.randrange(4):
                    case 0:
                        peer.say(type="auth", jwt=chance.choice(["alice", "alice-later", "junk"]))
                    case 1:
                        peer.say(
                            type="subscribe", id="s", topic={"collection": chance.choice(["users", "x"])}
                        )
                    case 2:
                        peer.say(type="subscribe", id="t", topic={"collection": "users"}, snapshot="always")
                    case _:
                        written.one_more()
                for _ in range(chance.randrange(10)):
                    await asyncio.sleep(0)
            await cancelled(peer.task)
            said.update(message["type"] for message in peer.sent)
            assert len(web.lifecycle.clients) == 1
    assert "websocket.accept" in said
