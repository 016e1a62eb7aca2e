"""Transactions: all events share one cluster time, and a client may be cut between any two of them (P4)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pymongo import MongoClient

from tests.e2e.conftest import Documents, StartService
from tests.support.service import Client, Frame, Service, client_of

KINDS = "abc"
KIND_OF_EVENT = "abcabbcaac"


@pytest.fixture(scope="module", params=[pytest.param("collection", marks=pytest.mark.verify), "deployment"])
def service(request: pytest.FixtureRequest, start_for_module: StartService) -> Service:
    return start_for_module(tail_scope=request.param)


def commit(mongodb: MongoClient[dict[str, Any]], database: str, number: int) -> None:
    """One transaction of ten inserts on three topics, between two writes of its own to a topic nobody holds."""
    orders = mongodb[database]["orders"]
    orders.insert_one({"kind": "z"})
    with mongodb.start_session() as session, session.start_transaction():
        for place, kind in enumerate(KIND_OF_EVENT):
            orders.insert_one({"_id": f"{number}-{place}", "kind": kind}, session=session)
    orders.insert_one({"kind": "z"})


async def subscribe_all(client: Client, tokens: dict[str, str]) -> None:
    """Subscribe to the three topics, each after its token, if it has one, without waiting for `live`."""
    for kind in KINDS:
        resume = {"resumeAfter": tokens[kind]} if kind in tokens else {}
        answer = await client.subscribe("orders", request_id=kind, filter={"kind": kind}, expect="", **resume)
        assert answer["resumed"] is (kind in tokens)


async def rest_after(service: Service, tenant: str, tokens: dict[str, str]) -> dict[str, list[Frame]]:
    """What a client that resumes all three topics gets before all are live."""
    async with client_of(service, tenant) as client:
        await subscribe_all(client, tokens)
        while sum(frame["type"] == "live" for frame in client.seen) < len(KINDS):
            await client.receive()
        assert "resync" not in {frame["type"] for frame in client.seen}
        return by_kind(client.seen)


def by_kind(frames: list[Frame]) -> dict[str, list[Frame]]:
    events = [frame["event"] for frame in frames if frame["type"] == "event"]
    return {kind: [event for event in events if event["fullDocument"]["kind"] == kind] for kind in KINDS}


async def test_a_client_cut_after_any_event_of_a_transaction_resumes_with_exactly_the_rest(
    service: Service, mongodb: MongoClient[dict[str, Any]], fresh_database: str
) -> None:
    mongodb[fresh_database]["orders"].insert_one({"_id": "first", "kind": "z"})
    async with client_of(service, fresh_database) as watching:
        await subscribe_all(watching, {})
        cuts: list[tuple[int, dict[str, str], dict[str, list[Frame]]]] = []
        for cut in range(len(KIND_OF_EVENT) + 1):
            async with client_of(service, fresh_database) as client:
                await subscribe_all(client, {})
                commit(mongodb, fresh_database, cut)
                client.seen = [frame for frame in client.seen if frame["type"] == "subscribed"]
                kind_of_topic = {frame["topic"]: frame["id"] for frame in client.seen}
                await client.events(cut)
                tokens = {kind_of_topic[topic]: token for topic, token in client.tokens.items()}
                client.socket.transport.abort()
            cuts.append((cut, tokens, by_kind(client.seen)))
        await watching.events(len(KIND_OF_EVENT) * len(cuts))
    whole = by_kind(watching.seen)

    async def check(cut: int, tokens: dict[str, str], seen: dict[str, list[Frame]]) -> None:
        resumed = await rest_after(service, fresh_database, tokens)
        for kind in KINDS:
            ids = [f"{cut}-{place}" for place, name in enumerate(KIND_OF_EVENT) if name == kind]
            start = [event["documentKey"]["_id"] for event in whole[kind]].index(ids[0])
            assert seen[kind] + resumed[kind] == whole[kind][start:], f"cut after {cut}, topic {kind}"

    await asyncio.gather(*(check(*case) for case in cuts))
    service.kill()
    service.start()
    await asyncio.gather(*(check(*case) for case in cuts))


async def test_the_events_of_a_transaction_share_a_cluster_time_and_have_tokens_of_their_own(
    service: Service, mongodb: MongoClient[dict[str, Any]], database: Documents, fresh_database: str
) -> None:
    database["orders"].insert_one({"_id": "first", "kind": "z"})
    async with client_of(service, fresh_database) as client:
        await client.subscribe("orders", filter={"kind": {"$in": list(KINDS)}})
        commit(mongodb, fresh_database, 0)
        events = await client.events(len(KIND_OF_EVENT))
        assert [event["documentKey"]["_id"] for event in events] == [f"0-{place}" for place in range(10)]
        assert len({str(event["clusterTime"]) for event in events}) == 1
        assert len({event["_id"] for event in events}) == len(events)
