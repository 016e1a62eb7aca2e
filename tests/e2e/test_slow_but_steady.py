"""A client on a slow line, which reads all the time, is not one that takes nothing."""

from __future__ import annotations

import asyncio
import json
import socket
import time

import pytest

from tests.e2e.conftest import Documents, StartService, seed
from tests.e2e.test_server_hazards import masked_frame, upgrade_request
from tests.e2e.test_slow_readers import EVENT_BYTES, insert
from tests.support.service import Service, make_jwt

EVENTS = 700
BYTES_A_SECOND = 1_000_000
_TICKS_A_SECOND = 20
_TEXT = 1


def read_slowly(service: Service, jwt: str, until: bytes) -> bytes:
    """Subscribe to `orders`, and read a little at a time with a socket as the kernel makes it, to the frame that holds
    `until` or the end."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as line:
        line.sendall(upgrade_request(jwt, service.port))
        got = bytearray(line.recv(4_096))  # a client must wait for the answer (RFC 6455, section 4.1)
        subscribe = json.dumps({"type": "subscribe", "id": "1", "topic": {"collection": "orders"}}).encode()
        line.sendall(masked_frame(_TEXT, subscribe))
        due = time.monotonic()
        while until not in got[-2 * EVENT_BYTES :]:
            chunk = line.recv(BYTES_A_SECOND // _TICKS_A_SECOND)
            if not chunk:
                break
            got += chunk
            due = max(due + 1 / _TICKS_A_SECOND, time.monotonic() - 1)
            time.sleep(max(0.0, due - time.monotonic()))  # the line
        return bytes(got)


@pytest.mark.verify
async def test_who_reads_a_megabyte_a_second_is_not_closed_as_slow(
    start_service: StartService, database: Documents, fresh_database: str
) -> None:
    """With what the kernel buffers by itself its transport would be full for longer than a second at a time."""
    service = start_service(slow_after="1")
    seed(database["orders"], {"_id": "first"})
    last = b'"documentKey":{"_id":%d}' % (EVENTS - 1)
    reading = asyncio.create_task(asyncio.to_thread(read_slowly, service, make_jwt(fresh_database), last))
    await asyncio.to_thread(service.wait_for, "/metrics", 200, "feedsvc_subscriptions 1.0")
    await insert(database, 0, EVENTS)
    got = await reading
    assert got.count(b'"type":"event"') == EVENTS
    assert 'feedsvc_closes_total{code="4201"} 0.0' in service.get("/metrics")[1]
