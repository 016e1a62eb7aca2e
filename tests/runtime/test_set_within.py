"""To wait for an event, but not for ever."""

from __future__ import annotations

import asyncio

import pytest

from feedsvc.runtime.set_within import set_within


async def test_it_says_whether_the_event_came() -> None:
    """One that is set already costs no time, even where there is none."""
    event = asyncio.Event()
    assert not await set_within(event, 0)
    assert not await set_within(event, 0.001)
    waiting = asyncio.create_task(set_within(event, 60))
    await asyncio.sleep(0)
    event.set()
    assert await waiting
    assert await set_within(event, 0)


async def test_a_cancellation_that_comes_with_the_event_cancels() -> None:
    """Who is told to end in the very round in which the event is set must not go on."""
    event = asyncio.Event()
    waiting = asyncio.create_task(set_within(event, 60))
    await asyncio.sleep(0)
    event.set()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
