"""A tenant's share of the tails: invented names take no more, what lingers gives way, others are unharmed."""

from __future__ import annotations

from feedsvc.core.limits import Limits
from tests.runtime.world import POLICY, Peer, World, running, until

WITH_ANY = {**POLICY, "collections": {**POLICY["collections"], "*": {}}}
IN_ONE_DATABASE = {**WITH_ANY, "tenant": {"claim": "tenant", "database": "app"}}
LIMITS = Limits(max_tails=4)
"""So a tenant's share is two."""


async def refused(peer: Peer, collection: str) -> str:
    """The message of the refusal, which is `topic_limit` and retryable."""
    peer.subscribe(collection)
    error = await peer.frame("error")
    assert (error["code"], error["retryable"]) == ("topic_limit", True)
    assert collection not in error["message"]
    return str(error["message"])


async def unsubscribe(peer: Peer, topic: str) -> None:
    peer.say("unsubscribe", topic=topic)
    await peer.frame("unsubscribed")


def watched(world: World) -> set[str]:
    return {scope.collection for scope in world.hub.feeds}


async def test_invented_names_take_a_share_and_no_more() -> None:
    """By any number of connections; what the policy names is not counted, and another tenant has its own share."""
    async with running(LIMITS, level="collection", policy=WITH_ANY) as world:
        peer, again = await world.signed_in(), await world.signed_in()
        await peer.subscribed("x1")
        await again.subscribed("x2")
        assert "2 collections that the policy does not name" in await refused(peer, "x3")
        await refused(again, "x4")
        await peer.subscribed("users")
        await again.subscribed("x1")
        other = await world.signed_in("other-tenant")
        await other.subscribed("y1")
        assert "this instance watches 4" in await refused(other, "y2")
        assert watched(world) == {"x1", "x2", "users", "y1"}


async def test_what_is_refused_is_free_again_after_an_unsubscribe() -> None:
    """The tail that lingers behind it gives way, and only that one."""
    async with running(LIMITS, level="collection", policy=WITH_ANY) as world:
        peer = await world.signed_in()
        first = (await peer.subscribed("x1"))["topic"]
        await peer.subscribed("x2")
        await refused(peer, "x3")
        await unsubscribe(peer, first)
        await peer.subscribed("x3")
        assert watched(world) == {"x2", "x3"}


async def test_names_that_are_watched_one_after_another_leave_room_for_others() -> None:
    """Tails linger: a tenant that goes through many names keeps two of them, and takes nobody's."""
    async with running(LIMITS, level="collection", policy=WITH_ANY) as world:
        other = await world.signed_in("other-tenant")
        await other.subscribed("y1")
        peer = await world.signed_in()
        for number in range(12):
            await unsubscribe(peer, (await peer.subscribed(f"x{number}"))["topic"])
            assert len(watched(world)) <= 3
        await other.subscribed("y2")
        assert {"y1", "y2"} <= watched(world)


async def test_names_that_are_asked_for_at_once_take_no_more() -> None:
    """A tail is opened before its subscription is there."""
    async with running(LIMITS, level="collection", policy=WITH_ANY) as world:
        peers = [await world.signed_in() for _ in range(4)]
        for number, peer in enumerate(peers):
            peer.subscribe(f"x{number}")
        await until(lambda: all(len(peer.connection.frames) >= 2 for peer in peers))
        codes = [str(peer.take()[0].get("code")) for peer in peers]
        assert codes == ["None", "None", "topic_limit", "topic_limit"]
        assert watched(world) == {"x0", "x1"}


async def test_nobody_is_charged_for_what_only_others_use() -> None:
    """In one database tenants share the tails: who opened one and left has room for another."""
    async with running(LIMITS, level="collection", policy=IN_ONE_DATABASE) as world:
        peer, other = await world.signed_in(), await world.signed_in("other-tenant")
        first = (await peer.subscribed("x1"))["topic"]
        await peer.subscribed("x2")
        await other.subscribed("x1")
        await unsubscribe(peer, first)
        await peer.subscribed("x3")
        assert watched(world) == {"x1", "x2", "x3"}
        await refused(peer, "x4")


async def test_tails_that_do_not_follow_names_are_not_counted() -> None:
    """One for the deployment: nothing can be invented."""
    async with running(Limits(max_tails=1), level="deployment", policy=WITH_ANY) as world:
        peer = await world.signed_in()
        for number in range(5):
            await peer.subscribed(f"x{number}")


async def test_nothing_is_left_behind() -> None:
    async with running(LIMITS, level="collection", policy=WITH_ANY) as world:
        peer = await world.signed_in()
        await peer.subscribed("x1")
        await peer.subscribed("users")
        peer.client.transport_closed()
        world.clock.advance(LIMITS.tail_linger_s + 1)
        await until(lambda: not world.hub.feeds)
        assert not world.hub._room._held
        assert not world.hub._room._opened_by
