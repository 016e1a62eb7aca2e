"""The pulse: what it proves about MongoDB, and what it does not."""

from __future__ import annotations

import asyncio

import pytest

from feedsvc.ports import OplogWindow, SourceRefused, SourceUnavailable
from feedsvc.runtime import pulse as pulse_module
from feedsvc.runtime.pulse import SETTLES_S, SETTLES_WITHOUT_OPLOG_S, WINDOW_AGAIN_S, WINDOW_EVERY_S, Pulse
from feedsvc.testing import ManualClock, MemoryOplog, MemorySource


class Oplog(MemorySource):
    """`ahead`: how far operation times are beyond the newest entry. `readable`: whether the oplog may be read."""

    def __init__(self) -> None:
        super().__init__(MemoryOplog())
        self.ahead = 0
        self.readable = True
        self.windows = 0
        self.down: Exception | None = None
        self.window_down: Exception | None = None
        self.hangs = False

    async def operation_time(self) -> int:
        if self.hangs:
            await asyncio.Event().wait()
        if self.down is not None:
            raise self.down
        return self.oplog.now + self.ahead

    async def oplog_window(self, *, first_age_s: float = 0.0) -> OplogWindow | None:
        self.windows += 1
        if self.window_down is not None:
            raise self.window_down
        return await super().oplog_window(first_age_s=first_age_s) if self.readable else None


def make() -> tuple[Pulse, Oplog, ManualClock]:
    source, clock = Oplog(), ManualClock()
    return Pulse(source, clock), source, clock


async def test_an_entry_is_known_from_the_beat_on_that_saw_it() -> None:
    """At an earlier time the one before it, and before the first beat none."""
    pulse, source, clock = make()
    began = clock.monotonic()
    assert pulse.known_at(began) is None
    await pulse.beat()
    first = source.oplog.now
    clock.advance(10)
    source.oplog.tick()
    await pulse.beat()
    assert [pulse.known_at(began + at) for at in (-1, 0, 9, 10, 99)] == [
        None, first, first, source.oplog.now, source.oplog.now,
    ]  # fmt: skip


async def test_an_operation_time_without_an_entry_proves_nothing() -> None:
    pulse, source, clock = make()
    source.ahead = 7
    await pulse.beat()
    assert pulse.known_at(clock.monotonic()) == source.oplog.now


async def test_where_the_oplog_may_not_be_read_the_operation_time_stands_in_and_waits_are_longer() -> None:
    pulse, source, clock = make()
    assert pulse.settles_s == SETTLES_WITHOUT_OPLOG_S
    source.readable, source.ahead = False, 7
    await pulse.beat()
    assert pulse.window is None
    assert pulse.known_at(clock.monotonic()) == source.oplog.now + 7
    assert pulse.settles_s == SETTLES_WITHOUT_OPLOG_S
    source.readable = True
    source.oplog.tick()
    await pulse.beat()
    assert pulse.settles_s == SETTLES_S


async def test_the_oplog_is_asked_when_time_moved_and_now_and_then() -> None:
    pulse, source, clock = make()
    for _ in range(5):
        await pulse.beat()
    assert source.windows == 1
    source.oplog.tick()
    await pulse.beat()
    assert source.windows == 1
    clock.advance(WINDOW_AGAIN_S)
    await pulse.beat()
    assert source.windows == 2
    clock.advance(WINDOW_EVERY_S)
    await pulse.beat()
    assert source.windows == 3


@pytest.mark.parametrize("error", [SourceUnavailable("failing", 136), SourceRefused("no"), TimeoutError()])
async def test_an_oplog_that_cannot_be_read_now_is_no_silence(error: Exception) -> None:
    """MongoDB answered; the window that clients are told stays; no entry is proven; and it is asked again."""
    pulse, source, clock = make()
    await pulse.beat()
    window, known = pulse.window, source.oplog.now
    clock.advance(5)
    source.oplog.tick()
    source.window_down = error
    await pulse.beat()
    assert pulse.answered_at == clock.monotonic()
    assert pulse.window == window
    assert pulse.known_at(clock.monotonic()) == known
    source.window_down = None
    await pulse.beat()
    assert pulse.known_at(clock.monotonic()) == source.oplog.now


async def test_no_answer_is_an_error_and_leaves_what_was_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error or nothing at all; the time of the last answer stays, so that the silence shows."""
    monkeypatch.setattr(pulse_module, "ANSWER_WITHIN_S", 0.01)
    pulse, source, clock = make()
    await pulse.beat()
    answered = pulse.answered_at
    clock.advance(5)
    source.down = SourceUnavailable("down")
    with pytest.raises(SourceUnavailable):
        await pulse.beat()
    source.hangs = True
    with pytest.raises(TimeoutError):
        await pulse.beat()
    assert pulse.answered_at == answered
