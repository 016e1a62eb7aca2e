"""A socket that little fills up: for clients that stop reading."""

from __future__ import annotations

import asyncio
import socket

_BUFFER_BYTES = 4096
_SEGMENT_BYTES = 536


async def narrow_socket(port: int, *, narrow_segments: bool = False) -> socket.socket:
    """Connected to this port of this machine. `narrow_segments`: the sender's kernel keeps little for it, too."""
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    if narrow_segments:
        narrow.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SEGMENT_BYTES)
    narrow.setblocking(False)
    await asyncio.get_running_loop().sock_connect(narrow, ("127.0.0.1", port))
    return narrow
