"""uvicorn's protocol with what a feed needs: what a peer can make it keep. Its hazards are in `tests/e2e`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.transports import CarriedTransport


@pytest.fixture
async def carried() -> AsyncIterator[CarriedTransport]:
    transport = CarriedTransport()
    await transport.open()
    yield transport
    await transport.close()


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
