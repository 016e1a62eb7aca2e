"""The pace of upgrades: so many in each round of the loop, in order, and none is forgotten."""

from __future__ import annotations

import asyncio

from feedsvc.adapters.web.pace import Pace


async def test_a_storm_is_let_through_in_rounds_and_in_order() -> None:
    """Between two rounds everything else that is ready runs."""
    pace, passed = Pace(3), []

    async def upgrade(number: int) -> None:
        await pace.turn()
        passed.append(number)

    tasks = [asyncio.create_task(upgrade(number)) for number in range(10)]
    seen = []
    while len(passed) < 10:
        await asyncio.sleep(0)
        seen.append(len(passed))
    assert passed == list(range(10))
    assert max(later - earlier for earlier, later in zip([0, *seen], seen, strict=False)) == 3
    await asyncio.gather(*tasks)


async def test_who_gives_up_takes_no_turn() -> None:
    pace = Pace(1)
    await pace.turn()
    gone = asyncio.create_task(pace.turn())
    stays = asyncio.create_task(pace.turn())
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait_for(stays, 1)


async def test_without_a_storm_nobody_waits() -> None:
    pace = Pace(2)
    for _ in range(5):
        turn = asyncio.create_task(pace.turn())
        await asyncio.sleep(0)
        assert turn.done()
        await asyncio.sleep(0)
