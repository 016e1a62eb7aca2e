"""Bounds that one client runs into, and that the others do not feel (protocol.md section 8)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.e2e.conftest import Documents, StartService
from tests.support.narrow_socket import narrow_socket
from tests.support.service import ONE_DATABASE_PER_TENANT, Client, Service, client_of, make_jwt, tail_open
from tests.support.sse import refused, sse_url, stream_of

POLICY = {
    **ONE_DATABASE_PER_TENANT,
    "limits": {"connectionsPerTenant": 4, "subscriptionsPerConnection": 5, "topicsPerTenant": 8},
}
EVENT_BYTES = 500_000
EVENTS = 60


@pytest.fixture(scope="module")
def service(start_for_module: StartService) -> Service:
    return start_for_module(policy=POLICY, slow_after="1")


async def error_code(client: Client, request_id: str, collection: str, **topic: Any) -> str:
    await client.send({"type": "subscribe", "id": request_id, "topic": {"collection": collection, **topic}})
    answer = await client.until(lambda frame: frame.get("id") == request_id)
    return str(answer.get("code", answer["type"]))


async def test_the_101st_error_in_a_minute_closes_with_4009(service: Service, fresh_database: str) -> None:
    async with client_of(service, fresh_database) as client:
        for _ in range(100):
            await client.send({"type": "nonsense"})
        for _ in range(100):
            assert (await client.until("error"))["code"] == "bad_request"
        await client.send({"type": "ping"})
        await client.until("pong")
        await client.send({"type": "nonsense"})
        assert (await client.closed())[0] == 4009


async def test_a_connection_holds_no_more_subscriptions_than_its_limit(
    service: Service, database: Documents, fresh_database: str
) -> None:
    async with client_of(service, fresh_database) as client:
        topics = [(await client.subscribe("orders", filter={"n": number}))["topic"] for number in range(5)]
        assert await error_code(client, "sixth", "orders") == "subscription_limit"
        database["orders"].insert_one({"_id": 1, "n": 0})
        await client.events(1)
        await client.send({"type": "unsubscribe", "topic": topics[0]})
        await client.until("unsubscribed")
        assert await error_code(client, "instead", "orders") == "subscribed"


async def test_a_tenant_holds_no_more_distinct_topics_than_its_limit(
    service: Service, fresh_database: str
) -> None:
    async with client_of(service, fresh_database) as one, client_of(service, fresh_database) as two:
        for number in range(4):
            await one.subscribe("orders", filter={"n": number})
            await two.subscribe("orders", filter={"n": 10 + number})
        assert await error_code(one, "ninth", "orders", filter={"n": 20}) == "topic_limit"
        assert await error_code(one, "shared", "orders", filter={"n": 10}) == "subscribed"
        async with client_of(service, f"{fresh_database}x") as other:
            await other.subscribe("orders")
        await two.socket.close()
        assert await error_code(one, "freed", "orders", filter={"n": 20}) in (
            "subscription_limit",
            "subscribed",
        )


async def test_a_tenant_holds_no_more_connections_than_its_limit(
    service: Service, fresh_database: str
) -> None:
    headers = {"Authorization": f"Bearer {make_jwt(fresh_database)}"}
    clients = [await connect(service.url, additional_headers=headers, proxy=None) for _ in range(4)]
    async with connect(service.url, additional_headers=headers, proxy=None) as fifth:
        code, reason = await Client(fifth).closed()
        assert code == 4302
        assert json.loads(reason)["retryAfterMs"] > 0
    async with client_of(service, f"{fresh_database}x"):
        pass
    await clients.pop().close()
    async with client_of(service, fresh_database):
        pass
    for each in clients:
        await each.close()


async def test_a_large_event_loses_its_document_and_says_so(
    service: Service, database: Documents, fresh_database: str
) -> None:
    async with client_of(service, fresh_database) as client:
        await client.subscribe("orders")
        database["orders"].insert_one({"_id": 1, "text": "x" * (1 << 20)})
        database["orders"].insert_one({"_id": 2})
        large, small = await client.events(2)
        assert large["truncated"] is True
        assert not {"fullDocument", "updateDescription"} & large.keys()
        assert (large["documentKey"], small["documentKey"]) == ({"_id": 1}, {"_id": 2})
        again = await client_resumed(service, fresh_database, large["_id"])
        assert again == [{"_id": 2}]


async def client_resumed(service: Service, tenant: str, token: str) -> list[Any]:
    async with client_of(service, tenant) as client:
        await client.subscribe("orders", resumeAfter=token)
        return [frame["event"]["documentKey"] for frame in client.seen if frame["type"] == "event"]


async def test_a_client_that_stops_reading_is_closed_and_resumes_without_loss_while_another_gets_everything(
    service: Service, database: Documents, fresh_database: str
) -> None:
    narrow = await narrow_socket(service.port)
    headers = {"Authorization": f"Bearer {make_jwt(fresh_database)}"}
    async with (
        client_of(service, fresh_database) as fast,
        connect(
            service.url,
            sock=narrow,
            additional_headers=headers,
            compression=None,  # or all of it would fit into what the kernel buffers
            max_size=None,
            max_queue=1,
            proxy=None,
        ) as stuck,
    ):
        slow = Client(stuck)
        await slow.subscribe("orders")
        await fast.subscribe("orders")
        stuck.transport.pause_reading()
        text = "x" * EVENT_BYTES
        writing = asyncio.create_task(write(database, text))
        assert await ids(fast, EVENTS) == list(range(EVENTS))
        await writing
        async with asyncio.timeout(10):
            while 'feedsvc_closes_total{code="4201"} 1.0' not in service.get("/metrics")[1]:
                await asyncio.to_thread(service.get, "/healthz/live")
        stuck.transport.resume_reading()
        code, _ = await slow.closed()
        assert code in (4201, 1006)
    received = [frame["event"]["documentKey"]["_id"] for frame in slow.seen if frame["type"] == "event"]
    assert received == list(range(len(received)))
    assert len(received) < EVENTS
    (token,) = slow.tokens.values()
    async with client_of(service, fresh_database) as resumed:
        await resumed.subscribe("orders", resumeAfter=token)
        rest = [frame["event"]["documentKey"]["_id"] for frame in resumed.seen if frame["type"] == "event"]
        assert received + rest == list(range(EVENTS))


async def write(database: Documents, text: str) -> None:
    for number in range(EVENTS):
        await asyncio.to_thread(database["orders"].insert_one, {"_id": number, "text": text})


async def ids(client: Client, count: int) -> list[Any]:
    return [event["documentKey"]["_id"] for event in await client.events(count, 30)]


async def test_a_connection_ends_at_its_maximum_age_and_resumes_elsewhere(
    start_service: StartService, service: Service, database: Documents, fresh_database: str
) -> None:
    aging = start_service(max_age="3", token_keys=service.token_keys)
    await tail_open(aging, fresh_database)
    async with client_of(aging, fresh_database) as client:
        topic = (await client.subscribe("orders"))["topic"]
        assert (await client.until("goaway"))["reconnectAfterMs"] >= 0
        assert (await client.closed())[0] == 4205
    database["orders"].insert_one({"_id": 1})
    assert await client_resumed(service, fresh_database, client.tokens[topic]) == [{"_id": 1}]


async def test_a_peer_that_answers_no_ping_is_let_go(
    start_service: StartService, fresh_database: str
) -> None:
    service = start_service(peer_timeout="1.5")
    async with client_of(service, fresh_database) as client:
        client.socket.transport.pause_reading()
        async with asyncio.timeout(10):
            while "feedsvc_connections 0.0" not in service.get("/metrics")[1].splitlines():
                await asyncio.to_thread(service.get, "/healthz/live")
        client.socket.transport.abort()


LONG = "x" * 4_096
DEEP: Any = 1
for _ in range(10):
    DEEP = {"a": DEEP}


@pytest.mark.parametrize(
    ("topic", "more", "code"),
    [
        ({"filter": {"a": LONG}}, {}, "filter_invalid"),
        ({"filter": DEEP}, {}, "filter_invalid"),
        ({"filter": {"a": {"$in": list(range(201))}}}, {}, "filter_invalid"),
        ({"fields": {LONG: 1}}, {}, "bad_request"),
        ({}, {"resumeAfter": "A" * 1_025}, "token_invalid"),
    ],
    ids=["filter_bytes", "filter_depth", "filter_in_values", "fields", "resume_token_chars"],
)
async def test_what_is_too_long_for_a_request_is_refused_alike_on_both_transports(
    service: Service, fresh_database: str, topic: dict[str, Any], more: dict[str, str], code: str
) -> None:
    """An error with the id on a connection that stays; a problem document and no stream."""
    async with client_of(service, fresh_database) as client:
        await client.send(
            {"type": "subscribe", "id": "x", "topic": {"collection": "orders", **topic}, **more}
        )
        error = await client.until("error")
        assert (error["id"], error["code"], error["retryable"]) == ("x", code, False)
        await client.subscribe("orders")
    answer = await refused(service, fresh_database, {"collection": "orders", **topic}, **more)
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, answer.json()["code"]) == (400, code)


async def test_a_jwt_over_8_kib_is_refused_before_it_is_read(service: Service, fresh_database: str) -> None:
    """In a frame: the connection stays, with the rights that it has. In the header of a stream: 401."""
    jwt = make_jwt(fresh_database, filler="x" * 8_000)
    async with client_of(service, fresh_database) as client:
        await client.send({"type": "auth", "jwt": jwt})
        error = await client.until("error")
        assert error["code"] == "auth_invalid"
        assert "8192" in error["message"]
        await client.subscribe("orders")
    async with httpx.AsyncClient(trust_env=False, verify=False) as http:
        bearer = {"Authorization": f"Bearer {jwt}"}
        answer = await http.get(sse_url(service), headers=bearer, params={"topic": '{"collection":"orders"}'})
    assert (answer.status_code, answer.json()["code"]) == (401, "auth_invalid")


async def test_a_tenants_quotas_are_told_before_a_stream_begins(
    service: Service, fresh_database: str
) -> None:
    """429 with `Retry-After` where waiting helps, and as many streams as connections; another tenant is not
    concerned."""
    async with contextlib.AsyncExitStack() as stack:
        for number in range(4):
            topics = [
                {"collection": "orders", "filter": {"n": 2 * number + each}}
                for each in range(2 if number < 3 else 1)
            ]
            await stack.enter_async_context(stream_of(service, fresh_database, *topics))
        answer = await refused(service, fresh_database, "orders")
        assert (answer.status_code, answer.json()["code"]) == (429, "tenant_quota")
        assert int(answer.headers["retry-after"]) > 0
        async with stream_of(service, f"{fresh_database}x", "orders") as other:
            await other.live()
    async with asyncio.timeout(10):
        while "\nfeedsvc_connections 0.0\n" not in (await asyncio.to_thread(service.get, "/metrics"))[1]:
            pass
    topics = [{"collection": "orders", "filter": {"n": number}} for number in range(6)]
    answer = await refused(service, fresh_database, *topics)
    assert (answer.status_code, answer.json()["code"]) == (429, "subscription_limit")
    async with (
        stream_of(service, fresh_database, *topics[:5]),
        client_of(service, fresh_database) as client,
    ):
        for number in range(10, 13):
            await client.subscribe("orders", filter={"n": number})
        answer = await refused(service, fresh_database, "orders")
        assert (answer.status_code, answer.json()["code"]) == (429, "topic_limit")
        assert answer.json()["retryable"] is True
        assert await error_code(client, "more", "orders", filter={"n": 13}) == "topic_limit"


async def test_an_upgrade_with_a_huge_header_is_refused(service: Service, fresh_database: str) -> None:
    headers = {"Authorization": f"Bearer {make_jwt(fresh_database, filler='x' * 9_000)}"}
    with pytest.raises(InvalidStatus) as refused:
        async with connect(service.url, additional_headers=headers, proxy=None):
            pass
    assert refused.value.response.status_code in (400, 401, 431)
