"""A socket whose end is a reset: without a FIN, without a close frame."""

from __future__ import annotations

import socket
import struct
from typing import Any

_NO_LINGER = struct.pack("ii", 1, 0)


def resets_when_closed(tcp: Any) -> None:
    """`tcp`: a socket, or what a transport says is its own."""
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
