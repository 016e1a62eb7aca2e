"""`POST /v1/topics/explain` over HTTP: answers, and problems where there is none. No feed is opened for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from feedsvc.adapters.web import body
from feedsvc.adapters.web.explain import ExplainEndpoint
from feedsvc.core.limits import Limits
from feedsvc.ports import SourceUnavailable
from feedsvc.testing import MemorySource
from tests.runtime.world import DATABASE, World, running
from tests.web.asking import authentication

ORIGIN = "https://app.example"
URL = "/v1/topics/explain"


class Asked:
    """A world and a client of its HTTP route."""

    def __init__(self, world: World, client: httpx.AsyncClient) -> None:
        self.world = world
        self.client = client

    async def post(self, topic: Any = None, *, jwt: str | None = "alice", **arguments: Any) -> httpx.Response:
        headers = {} if jwt is None else {"Authorization": f"Bearer {jwt}"}
        headers.update(arguments.pop("headers", {}))
        if topic is not None:
            arguments["json"] = topic
        return await self.client.post(arguments.pop("url", URL), headers=headers, **arguments)


@asynccontextmanager
async def asking(limits: Limits | None = None, **arguments: Any) -> AsyncIterator[Asked]:
    async with running(limits, **arguments) as world:
        world.oplog.create(DATABASE, "orders")
        endpoint = ExplainEndpoint(world.context, authentication(world, ORIGIN))

        async def route(request: Any) -> Any:
            return await endpoint(request)

        app = Starlette(routes=[Route(URL, route, methods=["POST"])])
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://feedsvc") as client:
            yield Asked(world, client)
        assert not world.hub.feeds


def code(response: httpx.Response) -> str:
    """The code of a problem document, which it is."""
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == response.status_code
    found: str = response.json()["code"]
    return found


async def test_the_answer_is_what_a_subscribe_gets() -> None:
    """The same topic id, the same fidelity; nobody keeps the answer."""
    topic = {"collection": "orders", "filter": {"status": "open"}, "fields": {"status": 1}}
    async with asking() as asked:
        response = await asked.post(topic)
        assert response.status_code == 200
        assert response.headers["content-type"] == "application/json"
        assert response.headers["cache-control"] == "no-store"
        found = response.json()
        assert not asked.world.hub.feeds
        assert found["index"] == {"lookups": [["status"]], "residual": False, "scanned": False, "cost": 0}
    async with running() as world:
        world.oplog.create(DATABASE, "orders")
        peer = await world.signed_in()
        subscribed = await peer.subscribed("orders", topic=topic)
        assert (subscribed["topic"], subscribed["fidelity"]) == (found["topic"], found["fidelity"])


@pytest.mark.parametrize(
    "topic, refused",
    [
        ({"collection": "nowhere"}, "unknown_collection"),
        ({"collection": "orders", "database": "app_globex"}, "forbidden"),
        ({"collection": "orders", "filter": {"$where": "1"}}, "filter_unsupported"),
        ({"collection": "orders", "filter": {"a": {"$in": 1}}}, "filter_invalid"),
        ({"collection": "orders", "fields": {"a": 1, "b": 0}}, "bad_request"),
        ({"collection": "orders", "operations": []}, "bad_request"),
        ({"collection": "mine"}, "images_required"),
    ],
)
async def test_a_topic_that_would_be_refused_is_answered_too(topic: dict[str, Any], refused: str) -> None:
    """With the code and the message of the error frame."""
    async with asking() as asked:
        response = await asked.post(topic)
        assert response.status_code == 200
        (found,) = response.json().values()
        assert found["code"] == refused
    async with running() as world:
        peer = await world.signed_in()
        peer.subscribe(topic["collection"], topic=topic)
        error = await peer.frame("error")
        assert (error["code"], error["message"]) == (found["code"], found["message"])


@pytest.mark.parametrize(
    "topic, reason",
    [
        ({"collection": "orders"}, None),
        ({"collection": "orders", "operations": ["insert"]}, "all operations"),
        ({"collection": "partly"}, "changeStreamPreAndPostImages"),
    ],
)
async def test_it_says_whether_there_can_be_a_snapshot(topic: dict[str, Any], reason: str | None) -> None:
    async with asking() as asked:
        snapshot = (await asked.post(topic)).json()["snapshot"]
    if reason is None:
        assert snapshot == {"available": True}
    else:
        assert snapshot["available"] is False
        assert snapshot["code"] == "snapshot_unavailable"
        assert reason in snapshot["message"]


@pytest.mark.parametrize(
    "jwt, status, expected",
    [
        (None, 401, "auth_invalid"),
        ("nobody", 401, "auth_invalid"),
        ("expired", 401, "auth_expired"),
        ("no-tenant", 401, "auth_invalid"),
        ("keys-away", 503, "source_unavailable"),
    ],
)
async def test_who_asks_must_be_known(jwt: str | None, status: int, expected: str) -> None:
    async with asking() as asked:
        response = await asked.post({"collection": "orders"}, jwt=jwt)
        assert (response.status_code, code(response)) == (status, expected)
        assert ("www-authenticate" in response.headers) is (status == 401)


async def test_rights_are_those_of_the_jwt() -> None:
    async with asking() as asked:
        found = (await asked.post({"collection": "orders"}, jwt="alice-without-orders")).json()
        assert found["refused"]["code"] == "forbidden"


@pytest.mark.parametrize(
    "headers, status",
    [
        ({}, 200),
        ({"Origin": ORIGIN}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
async def test_only_allowed_origins_ask(headers: dict[str, str], status: int) -> None:
    async with asking() as asked:
        response = await asked.post({"collection": "orders"}, headers=headers)
        assert response.status_code == status
        if status == 403:
            assert code(response) == "forbidden"


async def test_a_jwt_in_the_url_is_refused() -> None:
    async with asking() as asked:
        response = await asked.post({"collection": "orders"}, url=f"{URL}?access_token=x")
        assert (response.status_code, code(response)) == (400, "auth_in_url")


JSON = {"Content-Type": "application/json; charset=utf-8"}


@pytest.mark.parametrize(
    "content, headers",
    [
        (b"", JSON),
        (b"{", JSON),
        (b"[]", JSON),
        (b"\xff{}", JSON),
        (b"[" * 60_000, JSON),
        (b'{"collection":1}', JSON),
        (b'{"filter":{}}', JSON),
        (b'{"collection":"orders","filter":[]}', JSON),
        (b'{"collection":"orders","operations":["drop"]}', JSON),
        (b'{"collection":"orders"}', {"Content-Type": "text/plain"}),
        (b'{"collection":"orders"}', {}),
    ],
)
async def test_what_is_no_topic_is_a_problem(content: bytes, headers: dict[str, str]) -> None:
    async with asking() as asked:
        response = await asked.post(content=content, headers=headers)
        assert (response.status_code, code(response)) == (400, "bad_request")


async def test_a_long_body_is_not_read_to_its_end() -> None:
    """What comes behind the bound stays unread."""
    given: list[int] = []

    async def parts() -> AsyncIterator[bytes]:
        for number in range(1000):
            given.append(number)
            yield b" " * 1024

    async with asking(Limits(frame_bytes=10 * 1024)) as asked:
        response = await asked.post(content=parts(), headers=JSON)
        assert code(response) == "bad_request"
        assert "10240" in response.json()["detail"]
    assert len(given) == 11


async def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "REQUEST_WITHIN_S", 0.05)

    async def never() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    async with asking() as asked:
        response = await asked.post(content=never(), headers=JSON)
        assert (response.status_code, code(response)) == (400, "bad_request")
        assert "within" in response.json()["detail"]


async def test_a_tenant_that_asks_too_often_waits() -> None:
    """And no other with it."""
    async with asking(Limits(explains_per_minute=2)) as asked:
        topic = {"collection": "users"}
        assert [(await asked.post(topic)).status_code for _ in range(3)] == [200, 200, 429]
        response = await asked.post(topic)
        assert code(response) == "rate_limited"
        assert response.headers["retry-after"] == "30"
        assert (await asked.post(topic, jwt="other-tenant")).status_code == 200


class Away(MemorySource):
    """Its collections cannot be described."""

    async def describe(self, *_: Any) -> Any:
        raise SourceUnavailable("away")


async def test_without_mongodb_there_is_no_answer() -> None:
    """That says nothing about the topic, so it is a problem."""
    async with asking(source=Away) as asked:
        response = await asked.post({"collection": "users"})
        assert (response.status_code, code(response)) == (503, "source_unavailable")


async def test_many_questions_cost_the_database_one() -> None:
    """What is known of a collection's images is used for ten seconds."""

    class Counting(MemorySource):
        asked = 0

        async def describe(self, *arguments: Any) -> Any:
            Counting.asked += 1
            return await super().describe(*arguments)

    async with asking(source=Counting) as asked:
        await asyncio.gather(*(asked.post({"collection": "users"}) for _ in range(10)))
        assert Counting.asked == 1
