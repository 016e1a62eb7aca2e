"""A peer is asked now and then, together with what is written anyway, and missed when nothing comes any more."""

from __future__ import annotations

import pytest
from websockets.frames import Frame
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from feedsvc.adapters.web.liveness import EMPTY_PONG, PING, Liveness, is_between_frames
from feedsvc.runtime.wheel import Wheel
from feedsvc.testing import ManualClock

TIMEOUT_S = 60.0


class Rig:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.written: list[bytes] = []
        self.silent: list[bool] = []
        self.liveness = Liveness(Wheel(self.clock), TIMEOUT_S, self.written.append, self._gone)

    def _gone(self) -> None:
        self.silent.append(True)

    def after(self, seconds: float) -> None:
        """The wheel is not waited for: what it would call is called."""
        self.clock.advance(seconds)
        self.liveness.due()


@pytest.fixture
async def rig() -> Rig:
    return Rig()


async def test_a_peer_that_answers_is_asked_every_half_of_the_time_out(rig: Rig) -> None:
    for _ in range(10):
        rig.after(TIMEOUT_S / 2)
        rig.liveness.hear()
    assert rig.written == [PING] * 10
    assert not rig.silent


async def test_a_silent_peer_is_missed_once_and_within_the_time_out(rig: Rig) -> None:
    rig.after(TIMEOUT_S / 2)
    rig.after(TIMEOUT_S / 3 - 0.1)
    assert not rig.silent
    rig.after(0.1)
    assert len(rig.silent) == 1
    assert rig.written == [PING]


async def test_a_ping_goes_out_behind_what_is_written_anyway(rig: Rig) -> None:
    assert rig.liveness.with_ping(b"frame") == b"frame"
    rig.clock.advance(TIMEOUT_S / 4)
    assert rig.liveness.with_ping(b"frame") == b"frame" + PING
    assert rig.liveness.with_ping(b"frame") == b"frame"
    rig.after(TIMEOUT_S / 4)
    assert rig.written == []


async def test_whatever_comes_is_a_sign_of_life(rig: Rig) -> None:
    rig.after(TIMEOUT_S * 0.8)
    rig.liveness.hear()
    rig.after(TIMEOUT_S * 0.8)
    assert not rig.silent


async def test_stopped_it_asks_nothing(rig: Rig) -> None:
    rig.liveness.stop()
    rig.liveness.stop()
    assert not rig.written


async def test_stopped_while_others_of_its_moment_run_it_asks_nothing_of_a_closed_transport(rig: Rig) -> None:
    """The wheel calls it all the same. uvloop raises where a transport is written to that is gone."""
    rig.liveness.stop()
    for _ in range(3):
        rig.after(TIMEOUT_S / 2)
    assert not rig.written
    assert not rig.silent


@pytest.mark.parametrize("sent_bytes", range(1, 9))
def test_the_beginning_of_a_frame_is_told_from_the_middle_of_one(sent_bytes: int) -> None:
    """Also where a header has come and its payload has not: it may look like a pong."""
    protocol = ServerProtocol(state=OPEN)
    assert is_between_frames(protocol)
    frame = b"\x81\x86" + bytes(4) + EMPTY_PONG + bytes(4)
    assert len(frame) == 12
    protocol.receive_data(frame[:sent_bytes])
    assert not is_between_frames(protocol)
    protocol.receive_data(frame[sent_bytes:])
    assert is_between_frames(protocol)
    (message,) = protocol.events_received()
    assert isinstance(message, Frame)
    assert message.data == EMPTY_PONG + bytes(4)
