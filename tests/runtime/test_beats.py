"""What clients are told while nothing happens."""

from __future__ import annotations

from feedsvc.core.limits import Limits
from tests.runtime.world import DATABASE, Peer, World, running
from tests.support.frames import Frame

LATE_S = 15.0


def told(world: World, peers: list[Peer], after_s: float = LATE_S) -> list[list[Frame]]:
    """What each of them is told when its timer is due, all at the same moment."""
    world.clock.advance(after_s)
    for peer in peers:
        peer.client.due()
    return [peer.take() for peer in peers]


async def test_those_who_stand_alike_are_told_by_the_same_bytes() -> None:
    """Position and health in one write, whatever kind of connection it is; made once, whoever comes in between."""
    async with running() as world:
        peers = [await world.signed_in(direct=number % 2 == 0) for number in range(6)]
        strangers = [await world.signed_in("other-tenant") for _ in range(2)]
        for peer in (*peers, *strangers):
            await peer.subscribed("users")
        world.oplog.tick()
        await world.read_all()
        writes = [peer.connection.writes for peer in peers]
        told(world, [strangers[0], *peers, strangers[1]])
        frames = [peer.connection.frames[-2:] for peer in peers]
        assert all(mine is others for each in frames for mine, others in zip(each, frames[0], strict=True))
        assert [peer.connection.writes for peer in peers] == [before + 1 for before in writes]
        foreign = [peer.connection.frames[-2] for peer in strangers]
        assert foreign[0] == foreign[1] != frames[0][0]


async def test_a_position_is_told_once() -> None:
    """Health is told each time; a position only to those who have not had it."""
    async with running() as world:
        peers = [await world.signed_in(direct=direct) for direct in (True, False, True)]
        for peer in peers[:2]:
            await peer.subscribed("users")
        world.oplog.tick()
        await world.read_all()
        await peers[2].subscribed("users")
        both, alone = ["checkpoint", "heartbeat"], ["heartbeat"]
        first = told(world, peers)
        assert [[frame["type"] for frame in frames] for frames in first] == [both, both, alone]
        again = told(world, peers)
        assert [[frame["type"] for frame in frames] for frames in again] == [alone] * 3
        assert first[0] == first[1]


async def test_what_is_shared_holds_no_longer_than_the_health_of_the_topic() -> None:
    """One is told that all is well; a moment later the topic stalls, and the next one is told that."""
    async with running(Limits(stall_after_s=5)) as world:
        peers = [await world.signed_in() for _ in range(2)]
        topics = [(await peer.subscribed("users"))["topic"] for peer in peers]
        assert [frame["stalled"] for frame in told(world, peers[:1])[0]] == [[]]
        for peer in peers:
            assert (await peer.frame("heartbeat"))["stalled"] == topics[:1]
        assert [frame["stalled"] for frame in told(world, peers[1:], 0.0)[0]] == [topics[:1]]


async def test_what_is_shared_is_the_lag_of_this_moment() -> None:
    """Nothing comes from upstream meanwhile: the second is told how much older the last answer has become."""
    async with running(Limits(stall_after_s=60)) as world:
        peers = [await world.signed_in() for _ in range(2)]
        for peer in peers:
            await peer.subscribed("users")
        ((first,),) = told(world, peers[:1])
        ((second,),) = told(world, peers[1:], 0.5)
        assert second["lagMs"] == first["lagMs"] + 500


async def test_nobody_is_told_a_position_before_what_it_is_owed() -> None:
    """A connection without room among those that have some; it gets both once it has."""
    async with running() as world:
        peers = [await world.signed_in(direct=direct) for direct in (True, False, True, False)]
        for peer in peers:
            await peer.subscribed("users")
        for peer in peers[:2]:
            peer.connection.set_writable(False)
        world.oplog.insert(DATABASE, "users", {"_id": 1})
        world.oplog.tick()
        await world.read_all()
        full, free = told(world, peers)[:2], [peer.connection.frames for peer in peers[2:]]
        assert full == [[], []]
        for frames in free:
            assert [b'"event"' in frame for frame in frames[-3:]] == [True, False, False]
        for peer in peers[:2]:
            peer.connection.set_writable(True)
            assert [frame["type"] for frame in peer.take()] == ["event"]
        assert all(
            [frame["type"] for frame in frames][:1] == ["checkpoint"] for frames in told(world, peers[:2])
        )
