"""Slots of catch-up tails: bounded, in turn, and never lost by who gives up waiting."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from feedsvc.core.limits import Limits
from feedsvc.runtime.catch_up_slots import CatchUpSlots
from tests.runtime.world import running


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_tenant_leaves_a_slot_and_the_next_one_goes_to_the_next_tenant() -> None:
    """Two slots: a tenant with many feeds gets one; another tenant is not behind all of them."""
    slots, order = CatchUpSlots(2, shared=True), []

    async def use(tenant: str, number: int) -> None:
        await slots.acquire(tenant)
        order.append((tenant, number))

    tasks = [asyncio.create_task(use("a", number)) for number in range(3)]
    await settle()
    tasks += [asyncio.create_task(use("b", number)) for number in range(2)]
    await settle()
    assert order == [("a", 0), ("b", 0)]
    slots.release("a")
    await settle()
    slots.release("b")
    await settle()
    assert order == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    slots.release("a")
    await settle()
    assert order[-1] == ("a", 2)
    assert all(task.done() for task in tasks)


async def test_who_gives_up_takes_no_slot() -> None:
    """Neither while it waits, nor when the slot has been given to it in the same round."""
    slots = CatchUpSlots(1, shared=True)
    await slots.acquire("a")
    waiting = asyncio.create_task(slots.acquire("b"))
    await settle()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    given = asyncio.create_task(slots.acquire("c"))
    await settle()
    slots.release("a")
    given.cancel()
    await asyncio.gather(given, return_exceptions=True)
    await asyncio.wait_for(slots.acquire("d"), 1)


async def test_who_gives_up_in_the_round_of_the_release_loses_no_slot() -> None:
    """Its task has not run yet, so it is still queued: the slot goes to the next one, and `release` does not fail."""
    slots = CatchUpSlots(1, shared=True)
    await slots.acquire("a")
    gone, behind = (asyncio.create_task(slots.acquire(tenant)) for tenant in "bc")
    await settle()
    gone.cancel()
    slots.release("a")
    await asyncio.wait_for(behind, 1)
    assert gone.cancelled()
    slots.release("c")
    await asyncio.wait_for(slots.acquire("b"), 1)


async def test_where_no_other_tenant_can_come_all_slots_are_taken() -> None:
    """At scope `deployment` one feed serves every tenant: to leave a slot would leave it to nobody."""
    slots = CatchUpSlots(2, shared=False)
    for _ in range(2):
        await asyncio.wait_for(slots.acquire(""), 1)
    third = asyncio.create_task(slots.acquire(""))
    await settle()
    assert not third.done()
    slots.release("")
    await asyncio.wait_for(third, 1)


@pytest.mark.parametrize(("level", "at_once"), [("deployment", 3), ("database", 2), ("collection", 2)])
async def test_the_scope_says_whether_others_may_come(level: str, at_once: int) -> None:
    """Of three slots one tenant leaves one where tails are per database or collection."""
    async with running(msgspec.structs.replace(Limits(), catch_up_tails=3), level=level) as world:
        slots = world.hub._slots
        tasks = [asyncio.create_task(slots.acquire("a")) for _ in range(3)]
        await settle()
        assert sum(task.done() for task in tasks) == at_once
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
