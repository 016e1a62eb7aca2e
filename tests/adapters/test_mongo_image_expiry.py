"""How long pre-images are kept: asked for now and then, and no failure of anything else where it is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from bson.int64 import Int64
from pymongo import AsyncMongoClient
from pymongo.errors import AutoReconnect

from feedsvc.adapters.mongo import MongoSource
from feedsvc.adapters.mongo.image_expiry import ASK_EVERY_S, ASK_REFUSED_EVERY_S, ImageExpiry
from feedsvc.testing import ManualClock
from tests.support.engine import Engine
from tests.support.proxy import EngineProxy, Fault

COMMAND = "getClusterParameter"


def told(expire_after: Any) -> Fault:
    """MongoDB's answer."""
    options = {"_id": "changeStreamOptions", "preAndPostImages": {"expireAfterSeconds": expire_after}}
    return Fault(COMMAND, None, answer={"clusterParameters": [options]})


@asynccontextmanager
async def asking(proxy: EngineProxy) -> AsyncIterator[tuple[ImageExpiry, Any, ManualClock]]:
    clock = ManualClock()
    async with AsyncMongoClient[dict[str, Any]](proxy.uri, retryReads=False) as client:
        yield ImageExpiry(clock.monotonic), client, clock


async def test_the_expiry_is_asked_for_now_and_then(proxy: EngineProxy) -> None:
    """A change is seen at the next question, "off" too; between two questions the last answer is used."""
    async with asking(proxy) as (expiry, client, clock):
        proxy.faults = [first := told(Int64(100))]
        assert [await expiry.seconds(client) for _ in range(3)] == [100] * 3
        assert first.hits == 1
        for answer, expected in (("off", None), (7, 7)):
            proxy.faults = [told(answer)]
            clock.advance(ASK_EVERY_S + 1)
            assert await expiry.seconds(client) == expected


@pytest.mark.parametrize("reply", [{}, {"clusterParameters": []}, {"clusterParameters": [{"_id": "x"}]}])
async def test_an_answer_without_the_parameter_is_off(proxy: EngineProxy, reply: dict[str, Any]) -> None:
    async with asking(proxy) as (expiry, client, _):
        proxy.faults = [Fault(COMMAND, None, answer=reply)]
        assert await expiry.seconds(client) is None


@pytest.mark.parametrize("code", [13, 59, 115])
async def test_a_refusal_is_off_and_asked_again_seldom(proxy: EngineProxy, code: int) -> None:
    """Without the privilege, or on an engine without the command: each question would be a line in MongoDB's log."""
    async with asking(proxy) as (expiry, client, clock):
        proxy.faults = [told(100)]
        assert await expiry.seconds(client) == 100
        proxy.faults = [refused := Fault(COMMAND, code)]
        clock.advance(ASK_EVERY_S + 1)
        assert await expiry.seconds(client) is None
        clock.advance(ASK_REFUSED_EVERY_S - 1)
        assert await expiry.seconds(client) is None
        assert refused.hits == 1
        proxy.faults = [told(50)]
        clock.advance(2)
        assert await expiry.seconds(client) == 50


async def test_a_failure_of_the_moment_keeps_the_last_answer(proxy: EngineProxy) -> None:
    """But one that says MongoDB is away is raised, as by every other question."""
    async with asking(proxy) as (expiry, client, clock):
        proxy.faults = [told(100)]
        assert await expiry.seconds(client) == 100
        proxy.faults = [failing := Fault(COMMAND, 4)]
        clock.advance(ASK_EVERY_S + 1)
        assert [await expiry.seconds(client) for _ in range(2)] == [100] * 2
        assert failing.hits == 1
        proxy.faults = [Fault(COMMAND, None)]
        clock.advance(ASK_EVERY_S + 1)
        with pytest.raises(AutoReconnect):
            await expiry.seconds(client)


async def test_the_window_of_the_source_knows_the_expiry(proxy: EngineProxy) -> None:
    """The smaller of the two is what a change can be read back with its pre-image."""
    source = MongoSource(proxy.uri, max_streams=1, await_s=0.1)
    await source.start()
    proxy.faults = [told(Int64(1))]
    window = await source.oplog_window()
    assert window is not None
    assert window.images_expire_s == 1
    assert window.seconds_with_images == min(1, window.seconds)
    await source.close()


async def test_an_engine_without_the_command_has_its_window(engine: Engine) -> None:
    """The engine of the tests is one."""
    source = MongoSource(engine.uri, max_streams=1, await_s=0.1)
    await source.start()
    window = await source.oplog_window()
    assert window is not None
    assert window.images_expire_s is None
    assert window.seconds_with_images == window.seconds
    await source.close()
