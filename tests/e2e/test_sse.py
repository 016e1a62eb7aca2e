"""Server-sent events of a served process (protocol.md sections 2, 5 and 10; issue 1's main job without a WebSocket)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pymongo import MongoClient

from tests.e2e.conftest import Documents, StartService, seed
from tests.e2e.test_tokens import DAMAGED
from tests.support.engine import Engine
from tests.support.service import Service, client_of, make_jwt
from tests.support.sse import opened, refused, sse_url, stream_of

INSERTS_AND_UPDATES = {"collection": "orders", "operations": ["insert", "update"]}


@pytest.fixture(scope="module")
def service(start_for_module: StartService) -> Iterator[Service]:
    service = start_for_module(allowed_origins="https://app.example", checkpoint_interval="0.5")
    yield service
    service.kill()


async def test_a_client_that_comes_back_gets_exactly_what_it_missed(
    start_service: StartService, database: Documents, fresh_database: str
) -> None:
    """By `Last-Event-ID`: everything after the last event read, in order, and then what is live; by a process that was
    killed meanwhile."""
    service, orders = start_service(), database["orders"]
    async with stream_of(service, fresh_database, INSERTS_AND_UPDATES) as stream:
        await stream.live()
        orders.insert_many([{"_id": 1, "total": 10}, {"_id": 2, "total": 20}, {"_id": 9, "total": 0}])
        first = await stream.events(2)
        assert [event["documentKey"]["_id"] for event in first] == [1, 2]
        last = stream.last_event_id
    service.kill()
    orders.insert_one({"_id": 3, "total": 30})
    orders.update_one({"_id": 1}, {"$set": {"total": 11}})
    orders.delete_one({"_id": 2})
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


async def test_a_token_that_the_oplog_no_longer_reaches_gets_resync_and_an_id_that_resumes(
    start_service: StartService, small_oplog: Engine, fresh_database: str
) -> None:
    """In the order of the protocol, on the same stream; what comes after the resync is not lost by another cut."""
    orders = small_oplog.client[fresh_database]["orders"]
    service = start_service(uri=small_oplog.uri)
    async with stream_of(service, fresh_database, "orders") as stream:
        await stream.live()
        orders.insert_one({"_id": 1})
        await stream.events(1)
        stale = stream.last_event_id
    service.kill()
    orders.insert_one({"_id": 2})
    small_oplog.roll_oplog(small_oplog.client.admin.command("ping")["operationTime"])
    service.start()
    async with stream_of(service, fresh_database, "orders", last_event_id=stale) as stream:
        assert await stream.prelude() == stale
        await stream.live()
        assert stream.types() == ["welcome", "subscribed", "resync", "live"]
        subscribed, resync = stream.seen[1:3]
        assert (subscribed["resumed"], "token" in subscribed) == (False, False)
        assert resync["reason"] == "token_expired"
        assert stream.ids[1] == stale != stream.ids[2]
        resumable = stream.last_event_id
        orders.insert_one({"_id": 3})
        assert [event["documentKey"] for event in await stream.events(1)] == [{"_id": 3}]
    async with stream_of(service, fresh_database, "orders", last_event_id=resumable) as stream:
        events = await stream.events(1)
        assert [event["documentKey"] for event in events] == [{"_id": 3}]
        assert stream.seen[1]["resumed"] is True


async def test_a_client_that_saw_no_event_resumes_from_the_id_that_dispatched_none(
    service: Service, database: Documents, fresh_database: str
) -> None:
    """RES-04: the first block has an id and no data; by query parameter, for a client that cannot set the header."""
    orders = database["orders"]
    async with stream_of(service, fresh_database, "orders") as stream:
        first = await stream.prelude()
        assert stream.seen == []
        assert first
        assert stream.parser.retry_ms is not None
        assert 1_000 <= stream.parser.retry_ms <= 3_000
    orders.insert_many([{"_id": 1}, {"_id": 2}])
    async with stream_of(service, fresh_database, "orders", resumeAfter=first) as stream:
        events = await stream.events(2)
        assert [event["documentKey"]["_id"] for event in events] == [1, 2]


async def test_three_topics_resume_together_and_one_that_was_added_starts_now(
    service: Service, database: Documents, fresh_database: str
) -> None:
    """One id for all of them, whatever their order; `subscribed.id` is the index."""
    big = {"collection": "orders", "filter": {"total": {"$gte": 100}}}
    async with stream_of(service, fresh_database, "orders", big, "notes") as stream:
        await stream.live(3)
        database["orders"].insert_one({"_id": 1, "total": 100})
        await stream.events(2)
        last = stream.last_event_id
    database["notes"].insert_one({"_id": "n"})
    database["orders"].insert_one({"_id": 2, "total": 5})
    database["orders"].insert_one({"_id": 3, "total": 500})
    database["added"].insert_one({"_id": "too early"})
    wanted = ("notes", "added", big, "orders")
    async with stream_of(service, fresh_database, *wanted, last_event_id=last) as stream:
        subscribed = await stream.live(4)
        assert [frame["resumed"] for frame in subscribed] == [True, False, True, True]
        names = {frame["topic"]: name for frame, name in zip(subscribed, "nabo", strict=True)}
        await stream.events(4)
        database["added"].insert_one({"_id": "seen"})
        events = await stream.events(5)
        found: dict[str, list[Any]] = {name: [] for name in "nabo"}
        for frame in stream.seen:
            if frame["type"] == "event":
                found[names[frame["topic"]]].append(frame["event"]["documentKey"]["_id"])
        assert found == {"n": ["n"], "a": ["seen"], "b": [3], "o": [2, 3]}
        assert len(events) == 5


async def test_each_event_has_an_id_that_resumes_behind_it_and_checkpoints_move_it(
    service: Service, database: Documents, fresh_database: str
) -> None:
    """A cut anywhere in a burst repeats nothing; a quiet stream's id moves on, so that it never grows old."""
    orders = database["orders"]
    async with stream_of(service, fresh_database, "orders") as stream:
        await stream.live()
        orders.insert_many([{"_id": number} for number in range(5)])
        await stream.events(5)
        events = [index for index, frame in enumerate(stream.seen) if frame["type"] == "event"]
        ids = [stream.ids[index] for index in events]
        assert len(set(ids)) == 5
        database["elsewhere"].insert_one({})
        await stream.until("checkpoint")
        checkpoint = stream.last_event_id
        assert checkpoint not in ids
    for number, last in enumerate(ids[:-1]):
        async with stream_of(service, fresh_database, "orders", last_event_id=last) as stream:
            found = await stream.events(4 - number)
            assert [event["documentKey"]["_id"] for event in found] == list(range(number + 1, 5))
    async with stream_of(service, fresh_database, "orders", last_event_id=checkpoint) as stream:
        orders.insert_one({"_id": "next"})
        assert [event["documentKey"]["_id"] for event in await stream.events(1)] == ["next"]


async def test_a_post_is_the_same_and_a_snapshot_comes_in_pages(
    service: Service, database: Documents, fresh_database: str
) -> None:
    """`snapshot` is for all topics. No id moves before `snapshotEnd`; from then on the stream resumes."""
    await asyncio.to_thread(
        database.create_collection, "orders", changeStreamPreAndPostImages={"enabled": True}
    )
    orders = database["orders"]
    seed(orders, *({"_id": number} for number in range(3)))
    given: dict[str, Any] = {
        "headers": {"Authorization": f"Bearer {make_jwt(fresh_database)}"},
        "json": {"topics": [{"collection": "orders"}], "snapshot": "always"},
    }
    async with opened(service, "POST", **given) as stream:
        await stream.live()
        documents = [row for frame in stream.seen for row in frame.get("documents", ())]
        assert sorted(row["_id"] for row in documents) == [0, 1, 2]
        assert stream.types()[-2:] == ["snapshotEnd", "live"]
        assert {
            last for kind, last in zip(stream.types(), stream.ids, strict=True) if kind == "snapshot"
        } == {""}
        last = stream.last_event_id
        assert last
    orders.delete_one({"_id": 1})
    given["json"] = {"topics": [{"collection": "orders"}], "snapshot": "onResync", "resumeAfter": last}
    async with opened(service, "POST", **given) as stream:
        (event,) = await stream.events(1)
        assert (event["operationType"], event["membership"]) == ("delete", "left")


async def test_a_ticket_opens_a_stream_for_a_page_of_an_allowed_origin(
    service: Service, database: Documents, fresh_database: str
) -> None:
    """What an EventSource can do: a URL and an Origin, no header of its own."""
    base = f"http://127.0.0.1:{service.port}"
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:
        bearer = {"Authorization": f"Bearer {make_jwt(fresh_database)}"}
        ticket = (await client.post(f"{base}/v1/tickets", headers=bearer)).json()["ticket"]
    given: dict[str, Any] = {
        "params": {"topic": '{"collection":"orders"}', "ticket": ticket},
        "headers": {"Origin": "https://app.example"},
    }
    async with opened(service, "GET", **given) as stream:
        headers = stream.response.headers
        assert headers["access-control-allow-origin"] == "https://app.example"
        await stream.live()
        database["orders"].insert_one({"_id": 1})
        await stream.events(1)
    assert ticket not in service.log()


async def test_the_headers_of_a_stream(service: Service, fresh_database: str) -> None:
    """TRA-09: nothing may buffer, store or compress it, and nothing of HTTP/1 that a proxy could not pass on."""
    async with stream_of(service, fresh_database, "orders") as stream:
        headers = stream.response.headers
        assert headers["content-type"].partition(";")[0] == "text/event-stream"
        assert headers["cache-control"] == "no-store"
        assert headers["x-accel-buffering"] == "no"
        assert not {"content-encoding", "content-length", "connection"} & set(headers)


TOO_MANY = [{"collection": f"c{number}"} for number in range(9)]


@pytest.mark.parametrize(
    ("topics", "more", "status", "code"),
    [
        ((), {}, 400, "bad_request"),
        (TOO_MANY, {}, 400, "bad_request"),
        (("orders",), {"lastEventId": "x"}, 400, "bad_request"),
        (("orders",), {"resumeafter": "x"}, 400, "bad_request"),
        (("orders",), {"snapshot": "sometimes"}, 400, "bad_request"),
        (("orders",), {"startAtOperationTime": "yesterday"}, 400, "bad_request"),
        (("orders",), {"startAtOperationTime": '{"$timestamp":{"t":4000000000,"i":1}}'}, 400, "bad_request"),
        (("orders",), {"resumeAfter": ""}, 400, "token_invalid"),
        (("orders",), {"resumeAfter": "A" * 5_000}, 400, "token_invalid"),
        (("orders",), {"last_event_id": "junk"}, 400, "token_invalid"),
        (("orders",), {"jwt": "eyJh.eyJi.c"}, 400, "auth_in_url"),
        (("orders",), {"ticket": "junk"}, 400, "bad_request"),
        (("orders", "orders"), {}, 409, "already_subscribed"),
        (("orders", {"collection": "orders", "filter": {"$where": "1"}}), {}, 400, "filter_unsupported"),
        (("orders", {"collection": "orders", "database": "other"}), {}, 403, "forbidden"),
        (("orders", "system.users"), {}, 404, "unknown_collection"),
        (({"collection": 5},), {}, 400, "bad_request"),
        (
            ({"collection": "orders", "operations": ["insert"]},),
            {"snapshot": "always"},
            409,
            "snapshot_unavailable",
        ),
    ],
)
async def test_what_is_refused_is_a_problem_and_no_stream(
    service: Service,
    fresh_database: str,
    topics: tuple[Any, ...],
    more: dict[str, str],
    status: int,
    code: str,
) -> None:
    """RES-15: also a parameter that is misspelt; and one topic that is refused refuses all."""
    response = await refused(service, fresh_database, *topics, **more)
    assert response.headers["content-type"] == "application/problem+json"
    assert (response.status_code, response.json()["code"]) == (status, code)


@pytest.mark.parametrize(
    "body",
    [
        {"topics": TOO_MANY},
        {"topics": []},
        {},
        {"topics": [{"collection": "orders"}], "resumeafter": "x"},
        {"topics": [{"collection": "orders", "filter": 5}]},
    ],
    ids=["nine topics", "none", "nothing", "a misspelt token", "no filter"],
)
async def test_so_is_a_post(service: Service, fresh_database: str, body: Any) -> None:
    bearer = {"Authorization": f"Bearer {make_jwt(fresh_database)}"}
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:
        response = await client.post(sse_url(service), headers=bearer, json=body)
    assert response.headers["content-type"] == "application/problem+json"
    assert (response.status_code, response.json()["code"]) == (400, "bad_request")


async def test_a_token_that_is_not_ours_is_refused_and_disturbs_nothing(
    service: Service, database: Documents, fresh_database: str
) -> None:
    """Hand-made or damaged in any way, by header or query; nor is a token of one transport any of the other."""
    orders = database["orders"]
    async with stream_of(service, fresh_database, "orders") as other:
        await other.live()
        orders.insert_one({"_id": 0})
        (event,) = await other.events(1)
        good = other.last_event_id
        wrong = [*(damage(good)[:10_000] for damage in DAMAGED.values()), event["_id"]]
        for token in wrong:
            by_query = await refused(service, fresh_database, "orders", resumeAfter=token)
            answers = [by_query]
            if token.isascii() and token == token.strip() != "":  # what a header can hold and keep
                answers.append(await refused(service, fresh_database, "orders", last_event_id=token))
            for answer in answers:
                assert (answer.status_code, answer.json()["code"]) == (400, "token_invalid"), token[:40]
        async with client_of(service, fresh_database) as client:
            topic = {"collection": "orders"}
            await client.send({"type": "subscribe", "id": "x", "topic": topic, "resumeAfter": good})
            assert (await client.until("error"))["code"] == "token_invalid"
        orders.insert_one({"_id": 1})
        assert [event["documentKey"]["_id"] for event in await other.events(2)] == [0, 1]
    async with stream_of(service, fresh_database, "orders", last_event_id=good) as stream:
        assert [event["documentKey"]["_id"] for event in await stream.events(1)] == [1]


async def test_streams_that_were_refused_hold_nothing(service: Service, fresh_database: str) -> None:
    """Neither a connection of the tenant nor a topic, though one was resolved."""
    for _ in range(3):
        await refused(service, fresh_database, "orders", "system.users")
    await nothing_held(service)


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({}, 401, "auth_invalid"),
        ({"Authorization": "Bearer junk"}, 401, "auth_invalid"),
        ({"Origin": "https://evil.example"}, 403, "forbidden"),
        ({"Origin": "null"}, 403, "forbidden"),
    ],
)
async def test_credentials_and_origin_come_first(
    service: Service, fresh_database: str, headers: dict[str, str], status: int, code: str
) -> None:
    """AUT-09: a page of another origin gets nothing, and is told so without being let in."""
    if "Origin" in headers:
        headers = {"Authorization": f"Bearer {make_jwt(fresh_database)}", **headers}
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:
        response = await client.get(sse_url(service), params={"topic": '{"collection":"c"}'}, headers=headers)
    assert (response.status_code, response.json()["code"]) == (status, code)
    assert "access-control-allow-origin" not in response.headers


async def test_tenants_see_nothing_of_each_other(
    service: Service, mongodb: MongoClient[dict[str, Any]], fresh_database: str
) -> None:
    """AUT-08: the same topic of two tenants, live and resumed; and a token of one is nothing for the other."""
    other = f"{fresh_database}-b"
    async with (
        stream_of(service, fresh_database, "orders") as mine,
        stream_of(service, other, "orders") as theirs,
    ):
        await mine.live()
        await theirs.live()
        mongodb[other]["orders"].insert_one({"_id": "theirs"})
        mongodb[fresh_database]["orders"].insert_one({"_id": "mine"})
        assert [event["documentKey"]["_id"] for event in await mine.events(1)] == ["mine"]
        assert [event["documentKey"]["_id"] for event in await theirs.events(1)] == ["theirs"]
        last = theirs.last_event_id
    response = await refused(service, fresh_database, "orders", last_event_id=last)
    assert (response.status_code, response.json()["code"]) == (400, "token_invalid")
    mongodb.drop_database(other)


@pytest.mark.parametrize(
    "hostile", ["\n\nevent: close\ndata: {}\n\n", "\r\rid: x\r\r", "\u2028\u2029\u0085\0"]
)
async def test_nothing_in_a_document_becomes_a_field_of_the_stream(
    service: Service, database: Documents, fresh_database: str, hostile: str
) -> None:
    """Keys, values and `_id`s come as they are, and the client can come back behind them."""
    document = {"_id": hostile, "field": hostile, hostile.replace("\0", ""): 1}
    async with stream_of(service, fresh_database, "orders") as stream:
        await stream.live()
        before = stream.last_event_id
        database["orders"].insert_one(document)
        (event,) = await stream.events(1)
        assert event["fullDocument"] == document
        assert stream.last_event_id.isascii()
        assert stream.last_event_id.isprintable()
        database["orders"].insert_one({"_id": 2})
        last = stream.last_event_id
    assert last != before
    async with stream_of(service, fresh_database, "orders", last_event_id=last) as stream:
        assert [event["documentKey"] for event in await stream.events(1)] == [{"_id": 2}]


async def nothing_held(service: Service) -> None:
    """Wait until no connection, topic or subscription is left."""
    async with asyncio.timeout(10):
        while True:
            page = (await asyncio.to_thread(service.get, "/metrics"))[1]
            figures = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
            names = ("feedsvc_connections", "feedsvc_topics", "feedsvc_subscriptions")
            if all(float(figures[name]) == 0 for name in names):
                return
