"""What a peer is told: `send EVENTS BURST INTERVAL_US SIZE` on stdin, one line of JSON on stdout when it is done.

EVENTS frames in bursts of BURST, one burst each INTERVAL_US, each frame to every connection. A frame is SIZE bytes of
JSON that begin as an event of ours does, so that the load client counts it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable


def payload(size_bytes: int) -> bytes:
    """A text of so many bytes."""
    head, tail = b'{"type":"event","topic":"', b'"}'
    return head + b"x" * (size_bytes - len(head) - len(tail)) + tail


async def obey(port: int, broadcast: Callable[[bytes, int], object]) -> None:
    """Say the port, then carry out orders until stdin ends. `broadcast(frame, times)` may return a coroutine."""
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    print(f'{{"port":{port}}}', flush=True)
    while line := await orders.readline():
        events, burst, interval_us, size_bytes = map(int, line.split()[1:])
        frame = payload(size_bytes)
        due = time.monotonic()
        for _ in range(events // burst):
            made = broadcast(frame, burst)
            if asyncio.iscoroutine(made):
                await made
            due += interval_us / 1e6
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        print('{"done":true}', flush=True)
