"""The oldest position that a client holds, against how far the oplog reaches back."""

from __future__ import annotations

import msgspec

from feedsvc.core.limits import Limits
from feedsvc.core.status import OldestPosition
from feedsvc.core.subscription import Place
from feedsvc.ports import OplogWindow
from feedsvc.runtime.oldest import oldest_position
from feedsvc.testing import START
from tests.runtime.scripted import insert
from tests.runtime.world import DATABASE, Peer, World, running, until

SECOND = 1 << 32
NOW_S = START >> 32


def window(back_s: int, ahead_s: int = 0, images_expire_s: int | None = None) -> OplogWindow:
    """An oplog from `back_s` before the start of the world to `ahead_s` after it."""
    return OplogWindow(START - back_s * SECOND, START + ahead_s * SECOND, images_expire_s)


def oldest(world: World, found: OplogWindow | None) -> OldestPosition | None:
    world.hub.deployment.pulse.window = found
    return world.hub.oldest_position()


async def checkpointed(peer: Peer) -> None:
    """Its client is told where the tail stands."""
    await peer.later(16)
    await until(lambda: any(frame["type"] == "checkpoint" for frame in peer.take()))


async def test_nobody_holds_a_position() -> None:
    async with running() as world:
        assert oldest(world, window(100)) is None
        await world.signed_in()
        assert oldest(world, window(100)) is None


async def test_a_quiet_client_stands_where_it_subscribed_until_a_checkpoint() -> None:
    """Events of other topics and heartbeats give it no newer token, and a reconnect would use the old one."""
    async with running() as world:
        peer = await world.signed_in()
        await peer.subscribed("orders")
        world.oplog.tick(40)
        await world.read_all()
        assert oldest(world, window(60, 40)) == OldestPosition(40, 100, 0.4)
        await checkpointed(peer)
        assert oldest(world, window(60, 40)) == OldestPosition(0, 100, 0.0)


async def test_an_event_moves_those_who_get_it() -> None:
    """Each of them, though a fan-out notes it once for all."""
    async with running() as world:
        for peer in (await world.signed_in(), await world.signed_in()):
            await peer.subscribed("orders")
        world.oplog.tick(40)
        insert(world, 1)
        await world.read_all()
        assert oldest(world, window(60, 40)) == OldestPosition(0, 100, 0.0)


async def test_the_oldest_of_all_clients_counts() -> None:
    async with running() as world:
        first, second = await world.signed_in(), await world.signed_in()
        await first.subscribed("orders")
        world.oplog.tick(30)
        await world.read_all()
        await second.subscribed("orders")
        await second.subscribed("users")
        assert oldest(world, window(70, 30)) == OldestPosition(30, 100, 0.3)
        first.client.transport_closed()
        found = oldest(world, window(70, 30))
        assert found is not None and found.age_seconds == 0


async def test_who_waits_for_a_catch_up_tail_holds_the_token_that_it_came_with() -> None:
    async with running(msgspec.structs.replace(Limits(), ring_records=2, catch_up_tails=1)) as world:
        peer = await world.signed_in()
        token = (await peer.subscribed("orders"))["token"]
        peer.client.transport_closed()
        world.oplog.tick(30)
        for number in range(9):
            world.oplog.insert(DATABASE, "users", {"_id": number})
        await world.read_all()
        slots = world.hub._slots
        await slots.acquire("another")
        back = await world.signed_in()
        back.subscribe("orders", resumeAfter=token)
        (feed,) = world.hub.feeds.values()
        await until(lambda: feed.placement.queued == 1)
        assert oldest(world, window(70, 30)) == OldestPosition(30, 100, 0.3)
        slots.release("another")
        assert (await back.frame("subscribed"))["resumed"] is True


async def test_an_exact_topic_is_compared_with_its_images() -> None:
    async with running() as world:
        world.oplog.create("app_acme", "orders", images=True)
        peer = await world.signed_in()
        await peer.subscribed("users")
        world.oplog.tick(20)
        await world.read_all()
        await peer.subscribed("orders")
        world.oplog.tick(10)
        await world.read_all()
        assert oldest(world, window(970, 30, images_expire_s=40)) == OldestPosition(10, 40, 0.25)
        assert oldest(world, window(970, 30)) == OldestPosition(30, 1000, 0.03)


async def test_where_the_oplog_may_not_be_read_there_is_an_age_and_no_share() -> None:
    async with running() as world:
        peer = await world.signed_in()
        await peer.subscribed("orders")
        world.clock.advance(7)
        assert oldest(world, None) == OldestPosition(7, None, None)


async def test_who_is_owed_a_resync_has_nothing_left_to_lose() -> None:
    async with running() as world:
        peer = await world.signed_in()
        await peer.subscribed("orders")
        (feed,) = world.hub.feeds.values()
        (subscription,) = feed.placement.all_subscriptions()
        for place in (Place.LOST, Place.SNAPSHOT, Place.CLOSED):
            before, subscription.place = subscription.place, place
            assert oldest_position([subscription], window(10, 5), 0.0) is None
            subscription.place = before
        assert oldest_position([subscription], window(10, 5), 0.0) == OldestPosition(5, 15, 5 / 15)


async def test_an_oplog_without_any_length_reaches_nothing() -> None:
    async with running() as world:
        peer = await world.signed_in()
        await peer.subscribed("orders")
        (feed,) = world.hub.feeds.values()
        found = feed.placement.all_subscriptions()
        after = START + 9 * SECOND
        assert oldest_position(found, OplogWindow(after, after), 0.0) == OldestPosition(9, 0, 1.0)
        assert oldest_position(found, OplogWindow(START, START), 0.0) == OldestPosition(0, 0, 0.0)
