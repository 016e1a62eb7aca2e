"""Bounds beyond which nothing is refused: what is done instead, and that nobody else notices."""

from __future__ import annotations

from feedsvc.core.limits import Limits
from tests.runtime.test_snapshot import gated, gating
from tests.runtime.world import DATABASE, Peer, World, running, until

SHORT_RING = Limits(ring_records=3)


def insert(world: World, *numbers: int) -> None:
    for number in numbers:
        world.oplog.insert(DATABASE, "orders", {"_id": number})


def numbers(peer: Peer) -> list[int]:
    """Of all events that the peer ever got."""
    frames = peer.connection.messages()
    return [frame["event"]["documentKey"]["_id"] for frame in frames if frame["type"] == "event"]


async def token_of_the_first(world: World, behind: int) -> tuple[Peer, str]:
    """A live client, and a resume token with so many events behind it."""
    peer = await world.signed_in()
    await peer.subscribed()
    insert(world, 0)
    resume_token: str = (await peer.frame("event"))["event"]["_id"]
    insert(world, *range(1, behind + 1))
    await until(lambda: len(numbers(peer)) == behind + 1)
    return peer, resume_token


async def test_a_place_that_the_ring_has_forgotten_is_found_by_mongodb() -> None:
    """`ring_records`: a stream of its own, ended behind it; and every event once."""
    async with running(SHORT_RING) as world:
        _, resume_token = await token_of_the_first(world, 20)
        peer = await world.signed_in()
        peer.subscribe(resumeAfter=resume_token)
        assert (await peer.frame("subscribed"))["resumed"]
        await until(lambda: peer.connection.messages()[-1]["type"] == "live")
        assert numbers(peer) == list(range(1, 21))
        assert len(world.source.opened) == 2
        (feed,) = world.hub.feeds.values()
        await until(lambda: not feed.placement.catch_ups)
        assert feed.placement.live is not None
        assert len(feed.placement.live.ring) == SHORT_RING.ring_records


async def test_a_replay_beyond_its_bound_is_a_resync_for_whoever_asked() -> None:
    """`max_replay_bytes`: as far as it goes in order, then `replay_too_large`, and the stream goes on behind the new
    token; a shorter replay and a live client are as they were."""
    async with running(Limits(ring_records=3, max_replay_bytes=4_000, high_water_bytes=1_000)) as world:
        live, resume_token = await token_of_the_first(world, 40)
        peer = await world.signed_in()
        peer.subscribe(resumeAfter=resume_token)
        assert (await peer.frame("subscribed"))["resumed"]
        await until(lambda: peer.connection.messages()[-1]["type"] == "live")
        *replayed, resync, _ = peer.take()
        assert {frame["type"] for frame in replayed} == {"event"}
        got = numbers(peer)
        assert got == list(range(1, len(got) + 1)) and 0 < len(got) < 40
        assert resync["reason"] == "replay_too_large"
        insert(world, 41)
        await until(lambda: numbers(peer) == [*got, 41])
        await until(lambda: numbers(live) == list(range(42)))
        shorter = await world.signed_in()
        shorter.subscribe(resumeAfter=live.take()[35]["event"]["_id"])
        await until(lambda: shorter.connection.messages()[-1]["type"] == "live")
        assert numbers(shorter) == list(range(37, 42))
        assert not any(frame["type"] == "resync" for frame in shorter.connection.messages())


async def test_snapshots_of_one_tenant_leave_the_rest_to_the_others() -> None:
    """`snapshots_per_tenant`: what is too many waits without an error, and another tenant's begins at once."""
    async with gating(Limits(snapshots=2, snapshots_per_tenant=1)) as world:
        insert(world, 1)
        world.oplog.insert("app_globex", "orders", {"_id": 2})
        mine = [await world.signed_in() for _ in range(3)]
        for peer in mine:
            peer.subscribe(snapshot="always")
            await peer.frame("subscribed")
        await until(lambda: (world.hub.snapshots.running, world.hub.snapshots.waiting) == (1, 2))
        other = await world.signed_in("other-tenant")
        other.subscribe(snapshot="always")
        await other.frame("subscribed")
        await until(lambda: (world.hub.snapshots.running, world.hub.snapshots.waiting) == (2, 2))
        gated(world).let(99)
        for peer in (*mine, other):
            await until(lambda peer=peer: peer.connection.messages()[-1]["type"] == "live")  # type: ignore[misc]
            assert [frame["type"] for frame in peer.take()] == ["snapshot", "snapshotEnd", "live"]
