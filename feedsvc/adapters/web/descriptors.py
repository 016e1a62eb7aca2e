"""Writing to sockets past their transports: a fan-out costs the system call, and nothing of the event loop.

What makes it safe (docs/decisions/0015-fan-out-past-the-transport.md):
- a transport whose buffer is not empty is not written past: `FeedProtocol` sets its high-water mark to 0;
- what the kernel does not take goes to the transport, an error of the socket, too: it meets it again and ends the
  connection, as if it had been written to in the first place;
- uvloop closes a descriptor behind `connection_lost`, and by then `FeedProtocol` has shut the connection, which takes
  everybody off its descriptor by itself: a number that somebody else's socket may get is never written to.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from itertools import repeat

from uvloop.loop import TCPTransport  # type: ignore[attr-defined]

from feedsvc.core.lockstep import Direct


def direct_of(transport: asyncio.Transport, *, deflates: bool = False) -> Direct | None:
    """The socket of a transport whose bytes go to it as they are; None for TLS, and for any but uvloop's. `deflates`:
    see `Direct`."""
    if not isinstance(transport, TCPTransport) or transport.is_closing():
        return None
    return Direct(transport.get_extra_info("socket").fileno(), transport.write, deflates=deflates)


def write_each(descriptors: Sequence[int], data: bytes) -> list[tuple[int, memoryview]]:
    """`core.lockstep.WriteEach` for sockets that do not block."""
    taken: list[int] = []
    while len(taken) < len(descriptors):
        try:
            # What runs for each of them is the system call, nothing of the interpreter's.
            taken.extend(map(os.write, descriptors[len(taken) :] if taken else descriptors, repeat(data)))
        except OSError:  # its kernel buffer is full, or its peer is gone
            taken.append(0)
    if taken.count(len(data)) == len(taken):
        return []
    whole = memoryview(data)  # who is owed a rest keeps the one copy
    return [(place, whole[count:]) for place, count in enumerate(taken) if count < len(data)]
