"""To wait for an event, but not for ever."""

from __future__ import annotations

import asyncio


async def set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait until `event` is set; False where that takes longer than `seconds`.

    Not `wait_for`: that of Python 3.11 swallows a cancellation that comes together with the event.
    """
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
