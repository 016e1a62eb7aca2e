"""TRA-06: both ends close at once, in a burst or before anybody is known, on our server and on uvicorn's own: no error,
each connection ends once, and a second close does nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from random import Random

import pytest
from websockets.exceptions import ConnectionClosed

from feedsvc.adapters.web import transport_connection
from tests.runtime.world import DATABASE, until
from tests.web.asking import Application
from tests.web.served import PROTOCOLS, SUBSCRIBE, peer_at, reset, served

EVENTS = 1_000
RACES = 24


async def race(web: Application, port: int, number: int) -> int:
    """A client that goes, of every kind in turn: with its credentials in the upgrade or none yet; by 1000 or a reset;
    while the service closes it, or another one, too. Returns how many events it saw."""
    chance, seen = Random(number), 0
    peer = await peer_at(port, "alice" if number % 2 else None, compress=chance.random() < 0.5)
    if number % 2:
        await peer.send(SUBSCRIBE)
        for _ in range(chance.randrange(4, 100)):
            seen += '"event"' in str(await peer.recv())
    else:
        await peer.send('{"type":"auth","jwt":"alice"}')
    if number % 3 == 0:
        client = chance.choice(list(web.lifecycle.clients))
        client.close("going_away")
        client.close("max_age")
    if number % 4 < 2:
        await peer.close()
        with contextlib.suppress(ConnectionClosed):
            await peer.send(SUBSCRIBE)
    else:
        await reset(peer)
    return seen


@pytest.mark.parametrize("by", [*PROTOCOLS, "feedsvc, as over TLS"])
async def test_a_close_from_both_sides(
    by: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by == "feedsvc, as over TLS":  # no fan-out goes past its transports
        by = "feedsvc"
        monkeypatch.setattr(transport_connection, "direct_of", lambda transport, *, deflates: None)
    async with served(by=by) as (web, port):
        racing = [asyncio.create_task(race(web, port, number)) for number in range(RACES)]
        for number in range(EVENTS):
            web.world.oplog.insert(DATABASE, "users", {"_id": number})
            if number % 20 == 0:
                await asyncio.sleep(0.001)
        done, _ = await asyncio.wait(racing, timeout=20)
        assert len(done) == RACES
        ends = await asyncio.gather(*done, return_exceptions=True)
        assert all(isinstance(end, int | ConnectionClosed) for end in ends), ends
        seen = [end for end in ends if isinstance(end, int)]
        assert len(seen) >= RACES // 2 and sum(seen) > 100
        await until(lambda: not web.lifecycle.clients)
        assert web.world.subscriptions() == 0
        told = Counter(
            (name, fields["connection"]) for name, fields in web.world.reports if "connection" in fields
        )
        opened = {connection for name, connection in told if name == "connection.opened"}
        assert len(opened) == RACES
        assert opened == {connection for name, connection in told if name == "connection.closed"}
        assert set(told.values()) == {1}
        assert not web.world.reported("client.failed")
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
