"""A client whose topics are all named at the start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from feedsvc.core.errors import Refusal
from feedsvc.core.limits import Limits
from feedsvc.core.messages import Subscribe, TopicRequest
from feedsvc.core.topics import Topic
from feedsvc.ports import SourceUnavailable
from feedsvc.runtime.sse_client import SseClient
from tests.runtime.world import DATABASE, World, claims, running, until
from tests.support.frames import CheckedConnection


def subscribes(*collections: str, **fields: Any) -> list[Subscribe]:
    return [
        Subscribe(str(index), TopicRequest(collection), **fields)
        for index, collection in enumerate(collections)
    ]


def nothing_known(request: Subscribe, topic: Topic) -> str | None:
    return None


class Stream:
    def __init__(self, world: World) -> None:
        self.connection = CheckedConnection()
        self.client = SseClient(world.context, self.connection, "s", world.closed.append)
        world.clients.append(self.client)

    async def begin(self, requests: Sequence[Subscribe], resume: Any = nothing_known, **who: Any) -> None:
        await self.client.begin(claims(owner="a", **who), requests, resume)

    def types(self) -> list[str]:
        return [frame["type"] for frame in self.connection.messages()]

    async def until(self, kind: str, count: int = 1) -> dict[str, Any]:
        await until(lambda: self.types().count(kind) >= count)
        found: dict[str, Any] = [frame for frame in self.connection.messages() if frame["type"] == kind][-1]
        return found


@asynccontextmanager
async def streaming(limits: Limits | None = None) -> AsyncIterator[tuple[World, Stream]]:
    async with running(limits) as world:
        for name in ("orders", "users"):
            world.oplog.create(DATABASE, name)
        yield world, Stream(world)


async def test_all_topics_are_attached_behind_the_welcome() -> None:
    """Each with the id of its request; then it is a client like any other."""
    async with streaming() as (world, stream):
        await stream.begin(subscribes("orders", "users"))
        await stream.until("live", 2)
        assert stream.types()[0] == "welcome"
        frames = stream.connection.messages()
        assert sorted(frame["id"] for frame in frames if frame["type"] == "subscribed") == ["0", "1"]
        assert world.subscriptions() == 2
        world.oplog.insert(DATABASE, "users", {"_id": 1})
        assert (await stream.until("event"))["event"]["documentKey"] == {"_id": 1}


@pytest.mark.parametrize(
    ("collections", "who", "code"),
    [
        (("orders", "nowhere"), {}, "unknown_collection"),
        (("users", "orders"), {"scopes": ""}, "forbidden"),
        (("users", "users"), {}, "already_subscribed"),
        (("users",), {"left_s": -1}, "auth_expired"),
    ],
)
async def test_one_refusal_refuses_the_stream_and_nothing_is_held(
    collections: tuple[str, ...], who: dict[str, Any], code: str
) -> None:
    """Whatever was resolved or attached before it goes with the client."""
    async with streaming() as (world, stream):
        with pytest.raises(Refusal) as caught:
            await stream.begin(subscribes(*collections), **who)
        assert caught.value.code == code
        stream.client.transport_closed()
        assert world.subscriptions() == 0
        assert world.hub.admission.connections == world.hub.admission.topics == 0


async def test_a_tenant_without_room_is_told_when_to_come_back() -> None:
    """The quota is that of all its connections."""
    async with streaming(msgspec.structs.replace(Limits(), connections_per_tenant=1)) as (world, stream):
        await stream.begin(subscribes("users"))
        second = Stream(world)
        with pytest.raises(Refusal) as caught:
            await second.begin(subscribes("users"))
        assert caught.value.code == "tenant_quota"
        assert caught.value.retry_after_ms


async def test_a_stream_holds_no_more_subscriptions_than_any_connection() -> None:
    """Where the policy allows fewer than a stream may name."""
    async with streaming(msgspec.structs.replace(Limits(), subscriptions_per_connection=1)) as (
        world,
        stream,
    ):
        with pytest.raises(Refusal) as caught:
            await stream.begin(subscribes("users", "orders"))
        assert caught.value.code == "subscription_limit"
        stream.client.transport_closed()
        assert world.hub.admission.connections == world.subscriptions() == 0
        await Stream(world).begin(subscribes("users"))


async def test_a_drain_that_began_meanwhile_refuses() -> None:
    """The client was closed while its topics were resolved: it gets a status, not half a stream."""
    async with streaming() as (world, stream):
        world.source.fail_next_open(SourceUnavailable("away"))
        beginning = asyncio.ensure_future(stream.begin(subscribes("users")))
        await asyncio.sleep(0)
        stream.client.close("going_away")
        with pytest.raises(Refusal) as caught:
            await beginning
        assert caught.value.code == "going_away"
        assert stream.types() == []


async def test_a_token_that_is_known_by_the_topic_alone_resumes() -> None:
    """Asked only for requests that bring none."""
    async with streaming() as (world, stream):
        await stream.begin(subscribes("users", "orders"))
        await stream.until("live", 2)
        tokens: dict[str, str] = {
            frame["id"]: frame["token"] for frame in stream.connection.messages() if "token" in frame
        }
        world.oplog.insert(DATABASE, "users", {"_id": 1})
        await stream.until("event")
        asked: list[str] = []

        def resume(request: Subscribe, topic: Topic) -> str | None:
            asked.append(request.id)
            return tokens["0"]

        again = Stream(world)
        users, orders = subscribes("users", "orders")
        orders = msgspec.structs.replace(orders, resume_after=tokens["1"])
        await again.begin([users, orders], resume)
        assert (await again.until("event"))["event"]["documentKey"] == {"_id": 1}
        await again.until("live", 2)
        assert asked == ["0"]
        assert [
            frame["resumed"] for frame in again.connection.messages() if frame["type"] == "subscribed"
        ] == [
            True,
            True,
        ]


async def test_a_subscription_that_must_be_made_anew_ends_the_stream() -> None:
    """The client comes back with its id; a topic that is over for good ends it only with the last one."""
    async with streaming() as (_, stream):
        await stream.begin(subscribes("users", "orders"))
        await stream.until("live", 2)
        first, second = list(stream.client._held.values())
        stream.client.end_held(first, "snapshot_too_large", resubscribe=False)
        assert stream.connection.closed is None
        stream.client.end_held(second, "snapshot_too_large", resubscribe=False)
        assert stream.connection.closed is not None
        assert stream.connection.closed[0] == 4000
        assert stream.types().count("unsubscribed") == 2
    async with streaming() as (_, stream):
        await stream.begin(subscribes("users", "orders"))
        await stream.until("live", 2)
        stream.client.end_held(next(iter(stream.client._held.values())), "topic_changed", resubscribe=True)
        assert stream.connection.closed is not None
        assert stream.connection.closed[0] == 4200
        assert stream.types()[-1] == "unsubscribed"


async def test_deadlines_are_those_of_any_client() -> None:
    """Heartbeats, then the end of the JWT."""
    async with streaming() as (world, stream):
        await stream.begin(subscribes("users"), left_s=50)
        await stream.until("live")
        for _ in range(6):
            world.clock.advance(10)
            stream.client._due()
        assert "heartbeat" in stream.types()
        assert stream.connection.closed is not None
        assert stream.connection.closed[0] == 4101
