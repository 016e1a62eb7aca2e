"""Events that are larger than MongoDB's 16 MiB, through the process (SRC-02): no poison pill, no restart loop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.follower import assert_never_hot, service_of
from tests.support.engine import Engine
from tests.support.proxy import EngineProxy, Fault
from tests.support.service import Service, client_of

LARGE = 9_000_000


@pytest.fixture
def proxy(engine: Engine) -> Iterator[EngineProxy]:
    with EngineProxy(engine.port) as proxy:
        yield proxy


@pytest.mark.verify
async def test_a_large_event_comes_once_and_so_does_what_follows(
    engine: Engine, proxy: EngineProxy, fresh_database: str, tmp_path: Path
) -> None:
    """In fragments from the engine, as one event to the client, whose token resumes behind it, on another stream too.

    For clients it is larger than FEEDSVC_MAX_EVENT_BYTES, so its documents are left out.
    """
    orders = engine.client[fresh_database]["orders"]
    orders.database.create_collection("orders", changeStreamPreAndPostImages={"enabled": True})
    orders.insert_one({"_id": 1, "x": "b" * LARGE})
    with service_of(Service(proxy.uri, tmp_path, tail_scope="collection")) as service:
        async with client_of(service, fresh_database) as client:
            await client.subscribe("orders")
            orders.update_one({"_id": 1}, {"$set": {"x": "a" * LARGE}})
            orders.insert_one({"_id": 2})
            large, small = await client.events(2)
            assert (large["operationType"], large["truncated"]) == ("update", True)
            assert small["documentKey"] == {"_id": 2}
            assert len(proxy.opened) == 1
            tokens = [frame["event"]["_id"] for frame in client.seen if frame["type"] == "event"]
        for token, missed in zip(tokens, ([2], []), strict=True):
            service.kill()
            service.start()
            async with client_of(service, fresh_database) as client:
                answer = await client.subscribe("orders", resumeAfter=token)
                assert answer["resumed"]
                events = [frame["event"] for frame in client.seen if frame["type"] == "event"]
                assert [event["documentKey"]["_id"] for event in events] == missed


async def test_an_event_that_cannot_be_had_is_told_and_passed(
    engine: Engine, proxy: EngineProxy, fresh_database: str, tmp_path: Path
) -> None:
    """A server without the stage fails with 10334, for ever at that event: `resync`, and on from now."""
    orders = engine.client[fresh_database]["orders"]
    orders.insert_one({"_id": 0})
    proxy.faults = [Fault("aggregate", 40324, stage="$changeStreamSplitLargeEvent")]
    with service_of(Service(proxy.uri, tmp_path, tail_scope="collection")) as service:
        async with client_of(service, fresh_database) as client:
            await client.subscribe("orders")
            proxy.faults.append(Fault("getMore", 10334, collection="orders", times=1))
            resync = await client.until("resync")
            assert resync["reason"] == "event_unavailable"
            await client.until("live")
            orders.insert_one({"_id": 1})
            (event,) = await client.events(1)
            assert event["documentKey"] == {"_id": 1}
    # The first open asks for the stage and is refused; from then on it is left out.
    assert [len(command["pipeline"]) for command in proxy.opened] == [2, 1, 1]
    assert_never_hot("orders", proxy.opened_at)
