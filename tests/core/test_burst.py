"""The bytes of shared frames, read by a WebSocket client of a library."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

import pytest
from websockets.client import ClientProtocol
from websockets.extensions.permessage_deflate import PerMessageDeflate
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from feedsvc.core.burst import DEFLATE_FROM_BYTES, DEFLATE_WINDOW_BITS, Burst

FRAMES = [b"x" * size for size in (0, 1, 125, 126, 1023, 1024, 65_535, 65_536, 70_000)]


def read(data: bytes, *, inflates: bool) -> list[bytes]:
    client = ClientProtocol(parse_uri("ws://localhost/"), state=State.OPEN, max_size=None)
    if inflates:
        client.extensions = [PerMessageDeflate(True, True, DEFLATE_WINDOW_BITS, DEFLATE_WINDOW_BITS)]
    client.receive_data(data)
    events = client.events_received()
    assert all(isinstance(event, Frame) and event.fin and event.opcode is Opcode.TEXT for event in events)
    return [bytes(event.data) for event in events if isinstance(event, Frame)]


def test_frames_of_every_length_are_read_as_they_were_given() -> None:
    assert read(Burst(FRAMES).websocket, inflates=False) == FRAMES


def test_compressed_frames_stand_for_themselves_between_plain_ones() -> None:
    assert read(Burst(FRAMES).deflated, inflates=True) == FRAMES


def test_what_is_small_or_would_grow_is_not_compressed() -> None:
    """Then both forms are the same, without RSV1."""
    small = Burst([b"x" * (DEFLATE_FROM_BYTES - 1)])
    assert small.deflated == small.websocket
    noise = Burst([b"".join(sha256(b"%d" % number).digest() for number in range(50))])
    assert noise.deflated == noise.websocket
    large = Burst([b"x" * DEFLATE_FROM_BYTES])
    assert len(large.deflated) < len(large.websocket) / 10


@pytest.mark.parametrize("form", ["websocket", "deflated"])
def test_the_bytes_are_made_once(form: str) -> None:
    burst = Burst(FRAMES)
    assert getattr(burst, form) is getattr(burst, form)
    assert burst.size_bytes == sum(map(len, FRAMES))


def test_what_streams_make_of_a_burst_is_made_once_for_those_that_asked_alike() -> None:
    """And kept for one way of asking only, for there is no bound on them."""
    burst = Burst([b"{}"])
    made: list[bytes] = []

    def maker(key: bytes) -> Callable[[], tuple[list[bytes], str]]:
        def make() -> tuple[list[bytes], str]:
            made.append(key)
            return [key], "T"

        return make

    found = [burst.once(key, maker(key)) for key in (b"a", b"a", b"b", b"b", b"a")]
    assert found == [([key], "T") for key in (b"a", b"a", b"b", b"b", b"a")]
    assert made == [b"a", b"b", b"a"]
