"""A connection as a stream of events: blocks with ids, flow control, and the last event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import UNSET, UnsetType

from feedsvc.adapters.web.sse_connection import SseConnection
from feedsvc.core import messages
from feedsvc.core.burst import Burst
from feedsvc.core.messages import ExtendedTimestamp, encode
from feedsvc.core.positions import PositionKind, record_position
from feedsvc.core.stream_token import StreamPositions, StreamSealer
from feedsvc.core.tokens import TokenSealer
from tests.support.frames import received
from tests.support.sse import Parser
from tests.web.test_asgi_connection import Peer, settle

KEYS = (b"k" * 32,)
SEALER = StreamSealer(KEYS)
HIGH_WATER_BYTES = 4_000
AT = ExtendedTimestamp.of(7 << 32)
NAMES = [b"topic--0", b"topic--1"]


def token(number: int, topic: int = 0) -> str:
    position = record_position(PositionKind.EVENT, number << 32, f"82{number:04x}")
    return TokenSealer(KEYS).seal("acme", bytes([topic]) * 16, b"s" * 8, position)


def subscribed(topic: int, resume_token: str | None) -> bytes:
    given: str | UnsetType = UNSET if resume_token is None else resume_token
    fidelity = messages.Fidelity("exact", deletes=True)
    return encode(messages.Subscribed(str(topic), f"t{topic}", False, AT, fidelity, None, given))


def event(number: int, topic: int = 0, text: str = "") -> bytes:
    document = {"_id": number, "text": text}
    change = messages.ChangeEvent(token(number, topic), "insert", AT, full_document=document)
    return encode(messages.Event(f"t{topic}", change))


class Reading:
    """A connection and what its peer has been sent."""

    def __init__(self, topics: int = 1, given: str | None = None) -> None:
        self.peer = Peer()
        self.closings = 0
        positions = StreamPositions(SEALER, "acme", NAMES[:topics])
        if given is not None:
            positions.begins(0, given)
        self.connection = SseConnection(self.peer.send, HIGH_WATER_BYTES, positions, 1_500, self._closing)
        self.parser = Parser()
        self.writer: asyncio.Task[None] | None = None
        self._read = 0

    def _closing(self) -> None:
        self.closings += 1

    def start(self) -> None:
        self.writer = asyncio.create_task(self.connection.run())

    async def take(self) -> list[tuple[str, dict[str, Any], dict[bytes, str]]]:
        """Type, frame and the positions of the last id of each event since the last time."""
        await settle()
        bodies = [
            part["body"] for part in self.peer.taken[self._read :] if part["type"] == "http.response.body"
        ]
        self._read = len(self.peer.taken)
        found = self.parser.feed(b"".join(bodies).decode())
        return [(kind, received(data, event=kind), self.opened(last)) for kind, data, last in found]

    @staticmethod
    def opened(text: str) -> dict[bytes, str]:
        return dict(SEALER.open("acme", text).resume_tokens) if text else {}


@pytest.fixture
async def started() -> AsyncIterator[list[Reading]]:
    """Whoever is put in here is stopped at the end."""
    readings: list[Reading] = []
    yield readings
    for reading in readings:
        if reading.writer is not None:
            reading.writer.cancel()
            await asyncio.gather(reading.writer, return_exceptions=True)


def reading(started: list[Reading], topics: int = 1, given: str | None = None) -> Reading:
    found = Reading(topics, given)
    started.append(found)
    return found


async def test_the_response_begins_with_the_positions_at_which_topics_start(started: list[Reading]) -> None:
    """Not with those of events that are written behind it: a cut there would lose them."""
    one = reading(started, topics=2)
    one.connection.write([subscribed(0, token(1)), event(2), event(3), subscribed(1, token(1, 1))])
    one.start()
    events = await one.take()
    start = one.peer.taken[0]
    assert (start["type"], start["status"]) == ("http.response.start", 200)
    assert dict(start["headers"])[b"x-accel-buffering"] == b"no"
    first = Parser()
    assert first.feed(one.peer.taken[1]["body"].decode()) == []
    assert one.opened(first.last_event_id) == {NAMES[0]: token(1), NAMES[1]: token(1, 1)}
    assert first.retry_ms == 1_500
    assert [kind for kind, _, _ in events] == ["subscribed", "event", "event", "subscribed"]
    assert [known for _, _, known in events] == [
        {NAMES[0]: token(1)},
        {NAMES[0]: token(2)},
        {NAMES[0]: token(3)},
        {NAMES[0]: token(3), NAMES[1]: token(1, 1)},
    ]


async def test_a_lost_topic_keeps_the_position_that_its_client_came_with(started: list[Reading]) -> None:
    """Until `resync` was told: a client that is cut before it gets it again."""
    one = reading(started, given=token(1))
    one.connection.write([subscribed(0, None), encode(messages.Live("t0"))])
    one.start()
    events = await one.take()
    assert [known for _, _, known in events] == [{NAMES[0]: token(1)}] * 2
    one.connection.write([encode(messages.Resync("t0", "overflow", AT, 1, token(5)))])
    assert [known for _, _, known in await one.take()] == [{NAMES[0]: token(5)}]


async def test_a_checkpoint_moves_all_its_topics_at_once(started: list[Reading]) -> None:
    """One id; a topic that this stream does not hold is none of its business."""
    one = reading(started, topics=2)
    one.start()
    one.connection.write([subscribed(0, token(1)), subscribed(1, token(1, 1))])
    one.connection.write([encode(messages.Checkpoint({"t0": token(7), "t1": token(8, 1), "gone": token(9)}))])
    assert (await one.take())[-1][2] == {NAMES[0]: token(7), NAMES[1]: token(8, 1)}


async def test_streams_of_one_topic_share_their_blocks(started: list[Reading]) -> None:
    """Made once for a burst, with ids as they would be alone; one that asked in another way has its own."""
    burst = Burst([event(2), event(3)])
    readings = [reading(started) for _ in range(2)]
    for each in readings:
        each.start()
        each.connection.write([subscribed(0, token(1))])
        each.connection.write_burst(burst)
    found = [await each.take() for each in readings]
    assert found[0] == found[1]
    assert [known for _, _, known in found[0]] == [{NAMES[0]: token(number)} for number in (1, 2, 3)]
    blocks, _ = burst.once(NAMES[0], lambda: pytest.fail("made anew"))
    assert len(blocks) == 2
    readings[1].connection.write([encode(messages.Checkpoint({"t0": token(4)}))])
    readings[1].connection.close(4000, "x")
    assert (await readings[1].take())[-1][2] == {NAMES[0]: token(4)}


async def test_a_heartbeat_moves_no_position_and_may_come_behind_a_checkpoint(started: list[Reading]) -> None:
    """In a burst of its own, or in one with the checkpoint that was due: streams of one topic share these, too."""
    heartbeat, checkpoint = messages.Heartbeat([], 0), messages.Checkpoint({"t0": token(2)})
    alone, together = Burst([encode(heartbeat)]), Burst([encode(checkpoint), encode(heartbeat)])
    for _ in range(2):
        one = reading(started)
        one.start()
        one.connection.write([subscribed(0, token(1))])
        one.connection.write_burst(alone)
        one.connection.write_burst(together)
        found = await one.take()
        assert [kind for kind, _, _ in found] == ["subscribed", "heartbeat", "checkpoint", "heartbeat"]
        assert [known[NAMES[0]] for _, _, known in found] == [token(1), token(1), token(2), token(2)]
        one.connection.close(4000, "x")
        assert (await one.take())[-1][2] == {NAMES[0]: token(2)}


async def test_it_is_full_at_the_mark_and_has_room_at_half_of_it(started: list[Reading]) -> None:
    """What has piled up leaves in one send."""
    one = reading(started)
    one.start()
    one.connection.write([subscribed(0, token(1))])
    await one.take()
    calls: list[bool] = []
    one.connection.on_room(lambda: calls.append(one.connection.writable))
    one.peer.open.clear()
    for number in range(3):
        one.connection.write_burst(Burst([event(number + 2, text="x" * 1_500)]))
    await settle()
    assert calls == [False]
    sends = len(one.peer.taken)
    one.peer.open.set()
    assert len(await one.take()) == 3
    assert calls == [False, True]
    assert len(one.peer.taken) - sends <= 2
    assert one.connection.frames_sent == 4


async def test_a_close_is_the_last_event_and_ends_the_response(started: list[Reading]) -> None:
    """Behind what was written; the first close counts, nothing follows."""
    one = reading(started)
    one.start()
    one.connection.write([subscribed(0, token(1)), event(2)])
    one.connection.close(4201, "slow_consumer")
    one.connection.close(4000, "again")
    one.connection.write([event(3)])
    one.connection.write_burst(Burst([event(3)]))
    events = await one.take()
    assert [kind for kind, _, _ in events] == ["subscribed", "event", "close"]
    assert events[-1][1] == {"type": "close", "code": 4201, "action": "reconnect", "reason": "slow_consumer"}
    assert events[-1][2] == {NAMES[0]: token(2)}
    assert SEALER.open("acme", one.parser.last_event_id).ended is False
    assert one.peer.taken[-1]["more_body"] is False
    assert one.closings == 1
    assert one.connection.close_sent == (4201, "slow_consumer")
    assert not one.connection.writable


@pytest.mark.parametrize(
    ("code", "action", "ended"),
    [(4000, "stop", True), (4009, "stop", True), (4101, "authenticate", False), (4205, "reconnect", False)],
)
async def test_a_client_that_shall_not_come_back_is_told_so_by_its_id(
    started: list[Reading], code: int, action: str, ended: bool
) -> None:
    """An EventSource reconnects whatever it is told, and brings the id of the last block."""
    one = reading(started)
    one.start()
    one.connection.write([subscribed(0, token(1))])
    one.connection.close(code, "why")
    (*_, (_, frame, _)) = await one.take()
    assert frame["action"] == action
    assert SEALER.open("acme", one.parser.last_event_id).ended is ended


async def test_a_goaway_says_when_to_reconnect_to_those_who_only_know_retry(started: list[Reading]) -> None:
    """EventSource waits so long, and no two clients are told the same."""
    one = reading(started)
    one.start()
    one.connection.write([encode(messages.Goaway(4_321))])
    await one.take()
    assert one.parser.retry_ms == 4_321


async def test_who_was_told_to_wait_does_not_wait_again_after_the_close(started: list[Reading]) -> None:
    one = reading(started)
    one.start()
    await one.take()
    before = one.parser.retry_ms
    one.connection.write([encode(messages.Goaway(24_000))])
    one.connection.close(4200, "why")
    await one.take()
    assert one.parser.retry_ms == before
