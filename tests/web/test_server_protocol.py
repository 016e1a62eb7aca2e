"""uvicorn's protocol with what a feed needs: what a peer can make it keep. Its hazards are in `tests/e2e`."""

from __future__ import annotations

import asyncio
from typing import Any

from websockets.frames import Frame, Opcode

from tests.runtime.world import until
from tests.support.transports import ROOM_FRAMES, CarriedTransport, event


async def test_empty_fragments_are_not_kept(carried: CarriedTransport) -> None:
    """The bound on a message counts its bytes, of which they have none: a message without end would grow for ever."""
    client, protocol = carried._client, carried.connection._protocol
    client.send_text(b"a", fin=False)
    for _ in range(1_000):
        client.send_continuation(b"", fin=False)
    await carried.read_all()
    assert len(protocol.frames) == 1
    received: list[str | None] = []
    carried.connection._receive = received.append
    client.send_continuation(b"b", fin=False)
    client.send_continuation(b"", fin=True)
    await carried.read_all()
    assert received == ["ab"]


async def all_that_comes(carried: CarriedTransport) -> bytes:
    """As it is on the wire: the library hides what stands behind a close frame. Faults of a callback fail the test."""
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    carried._flush()
    async with asyncio.timeout(10):
        came = await carried._reader.read(-1)
    assert not faults
    return came


async def test_a_message_between_a_ping_and_a_close_is_answered_before_the_close(
    carried: CarriedTransport,
) -> None:
    """All three in one packet: the parser owes the pong and the close frame together, before the message is seen."""
    connection, client = carried.connection, carried._client
    connection._receive = lambda text: connection.write([b"answer"])
    client.send_ping(b"p")
    client.send_text(b"question")
    client.send_close(1000)
    assert await all_that_comes(carried) == b"\x81\x06answer" + b"\x8a\x01p" + b"\x88\x02\x03\xe8"


async def test_a_close_in_one_packet_with_invalid_utf8(carried: CarriedTransport) -> None:
    client = carried._client
    client.send_frame(Frame(Opcode.TEXT, b"\xff"))
    client.send_close(1000)
    assert await all_that_comes(carried) == b"\x88\x02\x03\xe8"


async def test_a_ping_in_one_packet_with_invalid_utf8(carried: CarriedTransport) -> None:
    """Our side has ended when the ping is seen: a transport raises where it is written to behind that."""
    client = carried._client
    client.send_frame(Frame(Opcode.TEXT, b"\xff"))
    client.send_ping(b"p")
    assert await all_that_comes(carried) == b"\x8a\x01p" + b"\x88\x02\x03\xef"


async def test_a_ping_that_is_due_leaves_with_what_is_written(carried: CarriedTransport) -> None:
    """In one write and one packet; what comes a moment later has none."""
    liveness = carried.connection._protocol._liveness
    assert liveness is not None
    liveness._pinged -= 1_000
    writes: list[bytes] = []
    write = carried.connection._write

    def noted(data: Any) -> None:
        writes.append(data)
        write(data)

    carried.connection._write = noted
    carried.connection.write([b"one"])
    carried.connection.write([b"two"])
    assert await carried.read_all() == [b"one", b"two"]
    assert writes == [b"\x81\x03one" + b"\x89\x00", b"\x81\x03two"]


async def test_the_server_ends_while_a_peer_that_has_closed_does_not_read(carried: CarriedTransport) -> None:
    """Its socket is there until it is aborted. A fault here would end the service with a traceback."""
    connection, protocol = carried.connection, carried.connection._protocol
    for number in range(2 * ROOM_FRAMES):
        connection.write([event(number)])
    assert not connection.writable
    carried._client.send_close(1000)
    carried._flush()
    await until(protocol.transport.is_closing)
    assert protocol in protocol.connections
    protocol.shutdown()
    protocol.shutdown()
    carried._writer.transport.abort()
    await until(lambda: protocol not in protocol.connections)
