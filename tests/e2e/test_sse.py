"""Server-sent events of a served process (protocol.md sections 2, 5 and 10; issue 1's main job without a WebSocket)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import Documents, StartService
from tests.support.service import Service
from tests.support.sse import stream_of

INSERTS_AND_UPDATES = {"collection": "orders", "operations": ["insert", "update"]}


@pytest.fixture(scope="module")
def service(start_for_module: StartService) -> Iterator[Service]:
    service = start_for_module(allowed_origins="https://app.example", checkpoint_interval="0.5")
    yield service
    service.kill()


@pytest.mark.parametrize("restart", [False, True], ids=["running through", "killed and restarted"])
async def test_a_client_that_comes_back_gets_exactly_what_it_missed(
    start_service: StartService, database: Documents, fresh_database: str, restart: bool
) -> None:
    """By `Last-Event-ID`: everything after the last event read, in order, and then what is live."""
    service, orders = start_service(), database["orders"]
    async with stream_of(service, fresh_database, INSERTS_AND_UPDATES) as stream:
        await stream.live()
        orders.insert_many([{"_id": 1, "total": 10}, {"_id": 2, "total": 20}, {"_id": 9, "total": 0}])
        first = await stream.events(2)
        assert [event["documentKey"]["_id"] for event in first] == [1, 2]
        last = stream.last_event_id
    if restart:
        service.kill()
    orders.insert_one({"_id": 3, "total": 30})
    orders.update_one({"_id": 1}, {"$set": {"total": 11}})
    orders.delete_one({"_id": 2})
    if restart:
        service.start()
    async with stream_of(service, fresh_database, INSERTS_AND_UPDATES, last_event_id=last) as stream:
        events = await stream.events(3)
        (subscribed,) = (frame for frame in stream.seen if frame["type"] == "subscribed")
        assert subscribed["resumed"] is True
        assert [(event["operationType"], event["documentKey"]["_id"]) for event in events] == [
            ("insert", 9),
            ("insert", 3),
            ("update", 1),
        ]
        assert events[2]["fullDocument"] == {"_id": 1, "total": 11}
        await stream.live()
        orders.insert_one({"_id": 4})
        assert (await stream.events(4))[3]["documentKey"] == {"_id": 4}
