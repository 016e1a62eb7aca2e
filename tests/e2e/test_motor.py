"""The service with Motor as its driver: the first example, and more streams than the thread pool has threads."""

from __future__ import annotations

import os

import pytest

from tests.e2e.conftest import Documents, StartService
from tests.e2e.test_main_job import gets_exactly_what_it_missed
from tests.support.service import client_of


@pytest.mark.parametrize("restart", [False, True], ids=["running through", "killed and restarted"])
async def test_a_client_that_comes_back_gets_exactly_what_it_missed(
    start_service: StartService, database: Documents, restart: bool
) -> None:
    """Must show 1 of issue 1."""
    service = start_service(mongo_driver="motor")
    await gets_exactly_what_it_missed(service, database["orders"], restart=restart)


async def test_a_token_of_one_driver_resumes_with_the_other(
    start_service: StartService, database: Documents
) -> None:
    """So a fleet can change its driver with a rolling restart."""
    first = start_service(mongo_driver="pymongo")
    second = start_service(mongo_driver="motor", token_keys=first.token_keys)
    for here, there in ((first, second), (second, first)):
        async with client_of(here, database.name) as client:
            topic = (await client.subscribe("orders"))["topic"]
            database["orders"].insert_many([{"seq": 1}, {"seq": 2}])
            token = (await client.events(1))[0]["_id"]
        async with client_of(there, database.name) as client:
            subscribed = await client.subscribe("orders", resumeAfter=token)
            assert (subscribed["resumed"], subscribed["topic"]) == (True, topic)
            events = [frame["event"] for frame in client.seen if frame["type"] == "event"]
            assert [event["fullDocument"]["seq"] for event in events] == [2]


async def test_ten_streams_live_with_four_threads_for_all_other_calls(
    start_service: StartService, database: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SRC-12: the last topic delivers within two seconds, and a new one can still be made; then the process ends."""
    monkeypatch.setenv("MOTOR_MAX_WORKERS", "4")
    service = start_service(mongo_driver="motor", tail_scope="collection")
    names = [f"c{number}" for number in range(10)]
    async with client_of(service, database.name) as client:
        topics = [(await client.subscribe(name, request_id=name))["topic"] for name in names]
        database[names[-1]].insert_one({"_id": 1})
        event = await client.until("event", timeout_s=2.0)
        assert event["topic"] == topics[-1]
        await client.subscribe("another", request_id="another")
        assert service.get("/healthz/ready")[0] == 200
        # That it is Motor at all: the other driver has no thread for a stream.
        assert len(os.listdir(f"/proc/{service.pid}/task")) > len(names)
    assert service.stop() == 0
