"""One client over a real hub: what it is told, when it is closed, and that nothing of it is left behind."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from feedsvc.core.changes import Change
from feedsvc.core.frames import FrameBuilder
from feedsvc.core.limits import Limits
from feedsvc.core.subscription import TopicKey
from feedsvc.ports import Claims, PositionLost
from feedsvc.runtime import backoff, clocked_client
from feedsvc.runtime.beats import Beats
from feedsvc.runtime.hub import Hub
from feedsvc.testing import MemorySource, MemoryVerifier
from tests.runtime.world import DATABASE, World, claims, running, until, verifier

LATE_S = 16.0
"""Longer than the checkpoint interval, shorter than the heartbeat's."""


def insert(world: World, number: int, collection: str = "orders", **fields: Any) -> None:
    world.oplog.insert(DATABASE, collection, {"_id": number, **fields})


# -- credentials ------------------------------------------------------------------------------------------


async def test_first_auth_subscribe_event() -> None:
    """welcome, subscribed, live, event: the short way through everything."""
    async with running() as world:
        peer = world.peer()
        peer.client.start(None)
        assert world.hub.admission.waiting == 1
        peer.say("auth", jwt="alice")
        welcome = await peer.frame("welcome")
        assert (welcome["connection"], welcome["server"]) == ("c0", "feedsvc test")
        assert (world.hub.admission.waiting, world.hub.admission.connections) == (0, 1)
        answer = await peer.subscribed()
        assert (answer["id"], answer["resumed"]) == ("s", False)
        assert answer["fidelity"] == {"membership": "partial", "deletes": True}
        insert(world, 1, total=5)
        event = await peer.frame("event")
        assert event["topic"] == answer["topic"]
        assert event["event"]["fullDocument"] == {"_id": 1, "total": 5}
        assert event["event"]["membership"] == "entered"


async def test_credentials_of_the_upgrade() -> None:
    """Verified claims come with the socket: `welcome` at once, and never a waiting socket."""
    async with running() as world:
        peer = world.peer()
        peer.client.start(claims())
        assert [frame["type"] for frame in peer.take()] == ["welcome"]
        assert world.hub.admission.waiting == 0
        await peer.subscribed()


@pytest.mark.parametrize(
    "jwt, code",
    [
        ("unknown", 4102),
        ("no-tenant", 4102),
        ("expired", 4102),
        ("past", 4102),
        ("keys-away", 4204),
    ],
)
async def test_a_refused_first_auth_closes(jwt: str, code: int) -> None:
    """With the code that tells the client whether new credentials or time would help."""
    async with running() as world:
        peer = world.peer()
        peer.client.start(None)
        peer.say("auth", jwt=jwt)
        assert (await peer.close())[0] == code
        assert peer.take() == []
        assert world.hub.admission.connections == 0


class Broken(MemoryVerifier):
    """A verifier with a fault in it."""

    async def verify(self, jwt: str) -> Claims:
        raise RuntimeError("a fault")


async def test_a_fault_while_verifying_closes_and_is_reported() -> None:
    """4203, and nothing of the fault for the peer."""
    async with running(check=Broken()) as world:
        peer = world.peer()
        peer.client.start(None)
        peer.say("auth", jwt="alice")
        assert await peer.close() == (4203, "internal")
        assert world.reported("client.failed")


async def test_waiting_sockets_are_capped() -> None:
    """One too many is closed with 4300 and a time to wait; credentials or a close make room."""
    async with running(Limits(waiting_sockets=1)) as world:
        first, second, third = world.peer(), world.peer(), world.peer()
        first.client.start(None)
        second.client.start(None)
        assert second.connection.closed is not None
        code, reason = second.connection.closed
        assert (code, json.loads(reason)) == (4300, {"retryAfterMs": 10_000})
        second.client.transport_closed()
        assert world.hub.admission.waiting == 1
        first.say("auth", jwt="alice")
        await first.frame("welcome")
        third.client.start(None)
        assert third.connection.closed is None


async def test_the_tenants_quota() -> None:
    """4302 with a time to wait, whichever way the credentials came; another tenant is not concerned."""
    async with running(Limits(connections_per_tenant=1)) as world:
        first = await world.signed_in()
        second, third = world.peer(), world.peer()
        second.client.start(None)
        second.say("auth", jwt="bob")
        third.client.start(claims())
        for peer in (second, third):
            code, reason = await peer.close()
            assert (code, json.loads(reason)) == (4302, {"retryAfterMs": 10_000})
        await world.signed_in("other-tenant")
        first.client.transport_closed()
        await world.signed_in()


async def test_a_refresh_does_not_count_twice() -> None:
    """A connection is charged once, however often it refreshes."""
    async with running(Limits(connections_per_tenant=1)) as world:
        peer = await world.signed_in()
        for _ in range(3):
            peer.say("auth", jwt="alice-later")
            answer = await peer.frame("authenticated")
            assert answer["authExpiresAt"] == int((world.clock.wall() + 200_000) * 1000)
        assert world.hub.admission.connections == 1


@pytest.mark.parametrize(
    "jwt, code",
    [
        ("unknown", "auth_invalid"),
        ("bob", "auth_invalid"),
        ("other-tenant", "auth_invalid"),
        ("keys-away", "source_unavailable"),
    ],
)
async def test_a_refused_refresh_keeps_the_connection(jwt: str, code: str) -> None:
    """An error frame; the subscriptions go on under the old claims."""
    async with running() as world:
        peer = await world.signed_in()
        await peer.subscribed()
        peer.say("auth", jwt=jwt)
        assert (await peer.frame("error"))["code"] == code
        insert(world, 1)
        await peer.frame("event")


async def test_a_refresh_that_loses_a_scope() -> None:
    """P5: what the new claims no longer allow ends before `authenticated`, and nothing of it follows."""
    async with running() as world:
        peer = await world.signed_in()
        orders = await peer.subscribed("orders", id="o")
        users = await peer.subscribed("users", id="u")
        peer.say("auth", jwt="alice-without-orders")
        assert await peer.frame("unsubscribed") == {
            "type": "unsubscribed",
            "topic": orders["topic"],
            "code": "forbidden",
            "resubscribe": False,
        }
        await peer.frame("authenticated")
        insert(world, 1, "orders")
        insert(world, 2, "users")
        assert (await peer.frame("event"))["topic"] == users["topic"]
        peer.subscribe("orders")
        assert (await peer.frame("error"))["code"] == "forbidden"
        assert world.hub.admission.topics == 1


async def test_a_refresh_that_changes_a_topic() -> None:
    """Other claims in the policy's filter make another topic: the client is told to subscribe again."""
    async with running() as world:
        world.oplog.create(DATABASE, "mine", images=True)
        peer = await world.signed_in()
        topic = (await peer.subscribed("mine"))["topic"]
        peer.say("auth", jwt="alice-of-b")
        ended = await peer.frame("unsubscribed")
        assert (ended["topic"], ended["code"], ended["resubscribe"]) == (topic, "topic_changed", True)
        await peer.frame("authenticated")
        again = await peer.subscribed("mine")
        assert again["topic"] != topic
        insert(world, 1, "mine", owner="a")
        insert(world, 2, "mine", owner="b", cost=9)
        assert (await peer.frame("event"))["event"]["fullDocument"] == {"_id": 2, "owner": "b"}


async def test_an_unsubscribe_behind_a_refresh_that_ended_the_topic() -> None:
    """It is answered as what it is by then, and the connection goes on."""
    async with running() as world:
        peer = await world.signed_in()
        topic = (await peer.subscribed())["topic"]
        peer.say("auth", jwt="alice-without-orders")
        peer.say("unsubscribe", topic=topic)
        peer.say("ping")
        assert (await peer.frame("unsubscribed"))["code"] == "forbidden"
        await peer.frame("authenticated")
        assert (await peer.frame("error"))["code"] == "not_subscribed"
        await peer.frame("pong")


async def test_what_is_refused_opens_no_tail() -> None:
    """There are few tails for all tenants: a client must not take them without holding a subscription."""
    async with running(Limits(max_tails=1), level="collection") as world:
        peer = await world.signed_in()
        for fields, code in (
            ({"resumeAfter": "junk"}, "token_invalid"),
            ({"startAtOperationTime": {"$timestamp": {"t": 2**32 - 1, "i": 0}}}, "bad_request"),
            ({"topic": {"filter": {"$where": ""}}}, "filter_unsupported"),
        ):
            peer.subscribe("users", **fields)
            assert (await peer.frame("error"))["code"] == code
        assert not world.hub.feeds
        await peer.subscribed("orders")


async def test_a_tail_that_is_opening_makes_no_room() -> None:
    """Somebody waits for it; one that only lingers gives way."""
    async with running(Limits(max_tails=1), level="collection") as world:
        first, second = await world.signed_in(), await world.signed_in()
        first.subscribe("orders")
        second.subscribe("users")
        assert (await second.frame("error"))["code"] == "topic_limit"
        topic = (await first.frame("subscribed"))["topic"]
        await first.frame("live")
        first.say("unsubscribe", topic=topic)
        await first.frame("unsubscribed")
        await second.subscribed("users")


async def test_the_same_claims_once_more_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that repeats its JWT has no policy applied to its subscriptions; other claims have, every time."""
    async with running() as world:
        peer = await world.signed_in()
        await peer.subscribed()
        asked: list[object] = []
        topic_now = world.hub.requests.topic_now

        def counted(*args: Any) -> Any:
            asked.append(args)
            return topic_now(*args)

        monkeypatch.setattr(world.hub.requests, "topic_now", counted)
        for jwt, expected in (("alice-later", 1), ("alice", 1), ("alice-of-b", 2), ("alice-later", 3)):
            peer.say("auth", jwt=jwt)
            await peer.frame("authenticated")
            assert len(asked) == expected


async def test_a_fault_while_subscribing_leaves_nothing() -> None:
    """Behind the moment from which the placement knows the subscription."""
    async with running() as world:
        peer = await world.signed_in()
        topic = (await peer.subscribed())["topic"]
        (feed,) = world.hub.feeds.values()

        def changed() -> None:
            feed.changed()
            if feed.placement.subscriptions == 2:
                raise RuntimeError("a fault")

        feed.placement.on_change(changed)
        peer.say("subscribe", id="s2", topic={"collection": "users"})
        await peer.frame("subscribed")
        await peer.frame("live")
        error = await peer.frame("error")
        assert (error["id"], error["code"]) == ("s2", "internal")
        assert world.subscriptions() == world.hub.admission.topics == 1
        insert(world, 1)
        assert (await peer.frame("event"))["topic"] == topic
        feed.placement.on_change(feed.changed)
        assert await peer.subscribed("users")


async def test_rights_that_cannot_be_applied_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault while the policy is applied anew must not leave the old rights in force."""
    async with running() as world:
        peer = await world.signed_in()
        await peer.subscribed()

        def fault(*args: object) -> None:
            raise RuntimeError("a fault")

        monkeypatch.setattr(world.hub.requests, "topic_now", fault)
        peer.say("auth", jwt="alice-later")
        assert await peer.close() == (4203, "internal")
        assert world.subscriptions() == 0
        assert world.reported("client.failed")


async def test_the_jwt_expires() -> None:
    """AUT-01: the socket does not outlive its JWT, on a quiet topic either."""
    async with running(Limits(max_age_s=10**6)) as world:
        peer = await world.signed_in()
        await peer.subscribed()
        await peer.later(100_001)
        assert (await peer.close())[0] == 4101
        insert(world, 1)
        await world.read_all()
        assert all(frame["type"] != "event" for frame in peer.take())


# -- subscriptions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields, code",
    [
        ({"collection": "nowhere"}, "unknown_collection"),
        ({"topic": {"database": "other"}}, "forbidden"),
        ({"topic": {"filter": {"$where": "1"}}}, "filter_unsupported"),
        ({"topic": {"filter": {"a": {"$in": 1}}}}, "filter_invalid"),
        ({"topic": {"fields": {"a": 1, "b": 0}}}, "bad_request"),
        ({"collection": "mine"}, "images_required"),
        ({"resumeAfter": "junk"}, "token_invalid"),
        ({"startAtOperationTime": {"$timestamp": {"t": 4_000_000_000, "i": 1}}}, "bad_request"),
        ({"resumeAfter": "a", "startAfter": "b"}, "bad_request"),
    ],
)
async def test_a_refused_subscribe(fields: dict[str, Any], code: str) -> None:
    """An error with the request's id; there is no subscription, and the next request is served."""
    async with running() as world:
        world.oplog.create(DATABASE, "mine", images=False)
        peer = await world.signed_in()
        peer.subscribe(id="a1", **fields)
        error = await peer.frame("error")
        assert (error["code"], error["id"]) == (code, "a1")
        assert world.subscriptions() == world.hub.admission.topics == 0
        await peer.subscribed()


async def test_one_connection_holds_a_topic_once() -> None:
    """However it is spelt; the error carries the topic, the first subscription goes on."""
    async with running() as world:
        peer = await world.signed_in()
        topic = (await peer.subscribed(topic={"filter": {"a": 1, "b": 2}}))["topic"]
        peer.subscribe(id="again", topic={"filter": {"b": 2, "a": {"$eq": 1}}})
        error = await peer.frame("error")
        assert (error["code"], error["id"], error["topic"]) == ("already_subscribed", "again", topic)
        insert(world, 1, a=1, b=2)
        await peer.frame("event")


async def test_limits_of_subscriptions_and_topics() -> None:
    """Each is refused with its code, and an unsubscribe makes room."""
    async with running(Limits(subscriptions_per_connection=2, topics_per_tenant=2)) as world:
        peer, other = await world.signed_in(), await world.signed_in("bob")
        topic = (await peer.subscribed("orders"))["topic"]
        await peer.subscribed("users")
        peer.subscribe(topic={"filter": {"a": 1}})
        assert (await peer.frame("error"))["code"] == "subscription_limit"
        other.subscribe("users", topic={"filter": {"a": 1}})
        error = await other.frame("error")
        assert (error["code"], error["retryable"]) == ("topic_limit", True)
        await other.subscribed("users")
        peer.say("unsubscribe", topic=topic)
        await peer.frame("unsubscribed")
        await other.subscribed("users", topic={"filter": {"a": 1}})


async def test_nothing_follows_unsubscribed() -> None:
    """Not an event, not a checkpoint; the topic can be subscribed to again."""
    async with running() as world:
        peer = await world.signed_in()
        topic = (await peer.subscribed())["topic"]
        peer.say("unsubscribe", topic=topic)
        insert(world, 1)
        answer = await peer.frame("unsubscribed")
        assert (answer["topic"], answer["code"], answer["resubscribe"]) == (topic, "requested", False)
        await world.read_all()
        await peer.later(LATE_S)
        assert topic not in json.dumps(peer.take())
        assert world.subscriptions() == 0
        await peer.subscribed()


async def test_resume_delivers_what_was_missed() -> None:
    """subscribed(resumed, token = yours) event* live, from the token of an event."""
    async with running() as world:
        peer = await world.signed_in()
        await peer.subscribed()
        insert(world, 1)
        token = (await peer.frame("event"))["event"]["_id"]
        peer.client.transport_closed()
        insert(world, 2)
        insert(world, 3)
        again = await world.signed_in()
        again.subscribe(resumeAfter=token)
        answer = await again.frame("subscribed")
        assert (answer["resumed"], answer["token"]) == (True, token)
        ids = [(await again.frame("event"))["event"]["documentKey"]["_id"] for _ in range(2)]
        assert ids == [2, 3]
        await again.frame("live")


async def test_a_token_of_another_topic_is_a_resync() -> None:
    """Lost: subscribed without a token, resync with one, live."""
    async with running() as world:
        peer = await world.signed_in()
        token = (await peer.subscribed())["token"]
        peer.subscribe(topic={"filter": {"a": 1}}, resumeAfter=token)
        answer = await peer.frame("subscribed")
        assert (answer["resumed"], "token" in answer) == (False, False)
        resync = await peer.frame("resync")
        assert (resync["topic"], resync["reason"]) == (answer["topic"], "topic_changed")
        assert resync["token"]
        await peer.frame("live")


async def test_repeated_resyncs_ask_to_wait_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """`retryAfterMs` grows with each resync of a topic on a connection."""
    monkeypatch.setattr(backoff, "WAITS_S", (0.0,))
    async with running() as world:
        peer = await world.signed_in()
        await peer.subscribed()
        waits = []
        for _ in range(3):
            world.source.fail_next_read(PositionLost("gone", 280))
            resync = await peer.frame("resync")
            assert resync["reason"] == "history_lost"
            waits.append(resync["retryAfterMs"])
            await peer.frame("live")
            world.oplog.tick()
            await world.read_all()
        assert waits == [250, 500, 1000]


async def test_a_fault_of_the_hub_is_told_with_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """`internal`, no detail for the peer, the same reference in the report; the connection goes on."""
    async with running() as world:
        peer = await world.signed_in()

        async def fault(*args: object) -> None:
            raise RuntimeError("mongodb://secret@host")

        with monkeypatch.context() as patch:
            patch.setattr(world.hub, "resolve", fault)
            peer.subscribe()
            error = await peer.frame("error")
        assert (error["code"], error["message"]) == ("internal", "logged as 00000000")
        (fields,) = [fields for name, fields in world.reports if name == "client.failed"]
        assert fields["reference"] == "00000000"
        await peer.subscribed()


# -- time and flow ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["timer", "heartbeat", "room"])
async def test_a_fault_in_a_callback_ends_that_client_alone(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Its timer would never be set again: no heartbeat, no 4201, and a JWT that expires would stay in force."""

    def fail(*arguments: object) -> None:
        raise RuntimeError("secret")

    async with running() as world:
        other = await world.signed_in("bob")
        peer = await world.signed_in()
        await peer.subscribed()
        monkeypatch.setattr(
            Beats if what != "room" else Hub, {"room": "writable"}.get(what, "heartbeat"), fail
        )
        if what == "timer":
            peer.connection.set_writable(True)
            world.clock.advance(world.hub.limits.heartbeat_interval_s * 2)
            peer.client.due()
        elif what == "heartbeat":
            peer.client.heartbeat_soon()
        else:
            peer.connection.set_writable(False)
            peer.connection.set_writable(True)
        assert (await peer.close())[0] == 4203
        assert world.subscriptions() == 0
        (fields,) = [fields for name, fields in world.reports if name == "client.failed"]
        assert fields["what"] == what
        other.say("ping")
        await other.frame("pong")


@pytest.mark.parametrize("level", ["deployment", "collection"])
async def test_a_checkpoint_joins_all_topics(level: str) -> None:
    """One frame with every topic that moved on; none for what has not moved since."""
    async with running(level=level) as world:
        peer = await world.signed_in()
        topics = {name: (await peer.subscribed(name))["topic"] for name in ("orders", "users")}
        world.oplog.tick()
        await world.read_all()
        await peer.later(LATE_S)
        (checkpoint,) = [frame for frame in peer.take() if frame["type"] == "checkpoint"]
        assert set(checkpoint["tokens"]) == set(topics.values())
        await peer.later(LATE_S)
        assert not [frame for frame in peer.take() if frame["type"] == "checkpoint"]
        again = await world.signed_in()
        again.subscribe("users", resumeAfter=checkpoint["tokens"][topics["users"]])
        assert (await again.frame("subscribed"))["resumed"] is True


async def test_an_event_is_built_once_for_all_who_hold_its_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """BPR-06: not once for each client, whatever the spelling of its filter, and whether it has room or not."""
    built: list[object] = []
    build = FrameBuilder.build

    def counted(self: FrameBuilder, topic: TopicKey, change: Change) -> Any:
        built.append(topic)
        return build(self, topic, change)

    monkeypatch.setattr(FrameBuilder, "build", counted)
    async with running() as world:
        peers = [await world.signed_in() for _ in range(20)]
        for number, peer in enumerate(peers):
            await peer.subscribed(topic={"filter": {"n": 1} if number % 2 else {"n": {"$in": [1]}}})
        peers[0].connection.set_writable(False)
        for number in range(10):
            insert(world, number, n=1)
        for peer in peers[1:]:
            assert [(await peer.frame("event"))["event"]["documentKey"]["_id"] for _ in range(10)] == list(
                range(10)
            )
        peers[0].connection.set_writable(True)
        for _ in range(10):
            await peers[0].frame("event")
    assert len(built) == 10


async def test_a_full_transport_gets_no_checkpoint() -> None:
    """It is never ahead of an event that is still owed."""
    async with running() as world:
        peer = await world.signed_in(room=4)
        await peer.subscribed()
        insert(world, 1)
        await peer.frame("event")
        insert(world, 2)
        await world.read_all()
        peer.say("ping")
        world.clock.advance(LATE_S)
        peer.say("ping")
        for _ in range(5):
            await asyncio.sleep(0)
        assert [frame["type"] for frame in peer.take()] == ["pong", "pong"]
        peer.connection.set_room(100)
        assert (await peer.frame("event"))["event"]["documentKey"] == {"_id": 2}


async def test_a_slow_consumer_is_closed() -> None:
    """4201 once it took nothing for `slow_after_s`."""
    async with running(Limits(slow_after_s=30)) as world:
        peer = await world.signed_in(room=4)
        await peer.subscribed()
        insert(world, 1)
        await peer.frame("event")
        insert(world, 2)
        await world.read_all()
        await peer.later(LATE_S)
        assert peer.connection.closed is None
        await peer.later(30)
        assert await peer.close() == (4201, "slow_consumer")
        assert world.subscriptions() == 0


async def test_a_transport_that_is_found_full_later_is_slow_too() -> None:
    """Some transports write at the end of a round: no write of ours saw that it was full, only the timer does."""
    async with running(Limits(slow_after_s=30, heartbeat_interval_s=0.01, max_age_s=10**6)) as world:
        peer = await world.signed_in()
        await peer.subscribed()
        peer.connection.set_writable(False)

        def a_second_later() -> bool:
            world.clock.advance(1)
            return peer.connection.closed is not None

        await until(a_second_later)
        assert await peer.close() == (4201, "slow_consumer")


async def test_a_consumer_that_takes_something_is_not_slow() -> None:
    """The time begins anew whenever the transport drains, and the cursor continues where it stood."""
    async with running(Limits(slow_after_s=30)) as world:
        peer = await world.signed_in(room=3)
        await peer.subscribed()
        for number in range(1, 5):
            insert(world, number)
        await world.read_all()
        for number in range(1, 5):
            world.clock.advance(20)
            peer.connection.set_room(1)
            assert (await peer.frame("event"))["event"]["documentKey"] == {"_id": number}
        await peer.later(0)
        assert peer.connection.closed is None


async def test_a_peer_that_asks_and_never_reads_is_closed() -> None:
    """Answers are written to a full transport, but not without end."""
    async with running() as world:
        peer = await world.signed_in()
        peer.connection.set_room(0)
        for _ in range(30_000):
            peer.say("ping")
            if peer.connection.closed is not None:
                break
        assert peer.connection.closed == (4201, "slow_consumer")
        assert sum(map(len, peer.connection.frames)) <= clocked_client._MAX_OWED_BYTES + 1000


@pytest.mark.parametrize("jwt", ["alice-without-orders", "alice-later"])
@pytest.mark.parametrize("left_bytes", [0, 100, 150, 200, 250])
async def test_answers_that_close_in_the_middle_leave_nothing(left_bytes: int, jwt: str) -> None:
    """A bound that is hit by any of several answers drops each subscription once."""
    async with running() as world:
        peer = await world.signed_in()
        topics = []
        for number in range(3):
            topics.append((await peer.subscribed(topic={"filter": {"a": number}}))["topic"])
        peer.connection.set_writable(False)
        peer.client._owed_bytes = clocked_client._MAX_OWED_BYTES - left_bytes
        peer.say("auth", jwt=jwt)
        for topic in topics:
            peer.say("unsubscribe", topic=topic)
        assert (await peer.close())[0] == 4201
        await until(lambda: world.subscriptions() == 0)
        assert world.hub.admission.topics == 0
        assert not world.reported("client.failed")


async def test_heartbeats_tell_stalls_at_once() -> None:
    """A topic whose upstream is silent is named without waiting for the interval, and so is its recovery."""
    async with running(Limits(stall_after_s=5)) as world:
        peer = await world.signed_in()
        topic = (await peer.subscribed())["topic"]
        world.clock.advance(6)
        stalled = await peer.frame("heartbeat")
        assert stalled["stalled"] == [topic]
        assert stalled["lagMs"] >= 6000
        world.oplog.tick()
        assert (await peer.frame("heartbeat"))["stalled"] == []


async def test_heartbeats_are_due() -> None:
    """At the latest every `heartbeatMs`, with no topic either."""
    async with running() as world:
        peer = await world.signed_in()
        for _ in range(3):
            await peer.later(20)
            assert [frame["type"] for frame in peer.take()] == ["heartbeat"]


async def test_the_maximum_age() -> None:
    """`goaway`, then 4205."""
    async with running(Limits(max_age_s=100)) as world:
        peer = await world.signed_in()
        await peer.subscribed()
        await peer.later(101)
        assert peer.take()[-1]["type"] == "goaway"
        assert (await peer.close())[0] == 4205


async def test_a_silent_socket_is_closed_after_ten_seconds() -> None:
    """4100; the loop's own timer does it."""
    async with running(Limits(auth_timeout_s=0.01)) as world:
        peer = world.peer()
        peer.client.start(None)
        world.clock.advance(0.2)
        assert (await peer.close())[0] == 4100


# -- the end ----------------------------------------------------------------------------------------------


class Yielding(MemorySource):
    """Every question takes a round of the loop."""

    async def describe(self, database: str, collections: Any) -> Any:
        await asyncio.sleep(0)
        return await super().describe(database, collections)

    async def operation_time(self) -> int:
        await asyncio.sleep(0)
        return await super().operation_time()

    async def open(self, scope: Any, position: Any, *, await_s: float | None = None) -> Any:
        await asyncio.sleep(0)
        return await super().open(scope, position)


class YieldingVerifier(MemoryVerifier):
    async def verify(self, jwt: str) -> Claims:
        await asyncio.sleep(0)
        return await super().verify(jwt)


async def test_a_transport_that_closes_anywhere_leaves_nothing_behind() -> None:
    """TRA-04: after any number of rounds of the loop, no subscription, topic, count, task or late frame is left."""
    check = YieldingVerifier(verifier().known)
    async with running(source=Yielding, check=check) as world:
        first = await world.signed_in()
        await first.subscribed()
        insert(world, 1)
        token = (await first.frame("event"))["event"]["_id"]
        insert(world, 2)
        await first.frame("event")
        kept = len(asyncio.all_tasks())
        seen: set[tuple[str, ...]] = set()
        for rounds in range(40):
            peer = world.peer()
            peer.client.start(None)
            peer.say("auth", jwt="alice")
            peer.subscribe("orders", "a", resumeAfter=token)
            peer.subscribe("users", "b", startAtOperationTime={"$timestamp": {"t": 1_800_000_000, "i": 2}})
            peer.say("auth", jwt="alice-without-orders")
            peer.say("ping")
            for _ in range(rounds):
                await asyncio.sleep(0)
            peer.client.transport_closed()
            peer.client.transport_closed()
            seen.add(tuple(frame["type"] for frame in peer.take()))
            await until(lambda: world.subscriptions() == 1 and len(asyncio.all_tasks()) <= kept)
            assert peer.take() == []
            admission = world.hub.admission
            assert (admission.connections, admission.topics, admission.waiting) == (1, 1, 0)
        assert () in seen
        assert any(types[-2:] == ("authenticated", "pong") for types in seen)
        assert len(seen) >= 4
        insert(world, 3)
        assert (await first.frame("event"))["event"]["documentKey"] == {"_id": 3}


async def test_an_answer_that_closes_leaves_no_subscription(monkeypatch: pytest.MonkeyPatch) -> None:
    """`subscribed` itself may be what a peer that never reads is closed for."""
    async with running() as world:
        peer = await world.signed_in(room=2)
        for _ in range(3):
            peer.say("ping")
        monkeypatch.setattr(clocked_client, "_MAX_OWED_BYTES", 100)
        peer.subscribe()
        assert (await peer.close())[0] == 4201
        assert world.subscriptions() == world.hub.admission.topics == 0


async def test_a_close_drops_everything_at_once() -> None:
    """Before the transport is gone: a peer that answers the close late holds no topic."""
    async with running() as world:
        peer = await world.signed_in()
        await peer.subscribed()
        peer.client.goaway(500)
        peer.client.close("going_away")
        assert world.subscriptions() == world.hub.admission.topics == 0
        insert(world, 1)
        await world.read_all()
        peer.say("ping")
        assert [frame["type"] for frame in peer.take()] == ["goaway"]
        assert peer.connection.closed == (4200, "going_away")


async def test_a_client_whose_socket_closes_while_it_is_verified_is_not_admitted() -> None:
    """Neither then nor later."""
    gate = asyncio.Event()

    class Gated(MemoryVerifier):
        async def verify(self, jwt: str) -> Claims:
            await gate.wait()
            return await super().verify(jwt)

    async with running(check=Gated(verifier().known)) as world:
        peer = world.peer()
        peer.client.start(None)
        peer.say("auth", jwt="alice")
        await asyncio.sleep(0)
        peer.client.transport_closed()
        await until(lambda: all(task.get_name() != "client-request" for task in asyncio.all_tasks()))
        gate.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert world.hub.admission.connections == 0
        assert peer.take() == []
