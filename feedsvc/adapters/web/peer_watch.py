"""Whether the peer of a response that never ends is still there, when nothing but the kernel can tell.

A stream of server-sent events gets no answer from its peer, so a peer that vanished without a FIN looks like one that
is quiet: writes go into the kernel's buffer until it is full, and TCP gives up after a quarter of an hour. But every
segment that we send is acknowledged, and TCP's keep-alive makes the kernel send one when nothing else does. So the age
of the last acknowledgement (`tcpi_last_ack_recv` of `TCP_INFO`, tcp(7)) is the silence of the peer, as that of pongs is
for a WebSocket. A peer that only does not read acknowledges the probes of its window: it is slow, not gone.

`TCP_USER_TIMEOUT` would not do: it also ends a peer whose window is closed (tcp(7)), before 4201 can be said.

Gone within the time-out: silent for two thirds of it, asked every sixth. Keep-alive is counted in whole seconds, so a
time-out below three is not kept to the letter. Where the kernel does not tell (not Linux) keep-alive itself must do.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable

_LAST_ACK_MS = struct.Struct("I")
_LAST_ACK_OFFSET = 56
"""Of `tcpi_last_ack_recv` in `struct tcp_info` (linux/tcp.h), an interface that only grows at its end."""
_LEAST_KEEPALIVE_S = 1
_CLOSED = (OSError, ValueError)
"""What the socket of a transport says that is closed, while its response has not heard of it: uvloop's has the number
-1, which is no descriptor."""


class PeerWatch:
    """Calls `gone` once when the peer was silent for too long. `stop` it when the response ends."""

    def __init__(self, transport: asyncio.BaseTransport, timeout_s: float, gone: Callable[[], None]) -> None:
        self._socket = transport.get_extra_info("socket")
        self._timer: asyncio.TimerHandle | None = None
        self._gone = gone
        idle_s = max(_LEAST_KEEPALIVE_S, int(timeout_s / 3))
        self._silent_s = max(timeout_s * 2 / 3, idle_s + _LEAST_KEEPALIVE_S)
        self._every_s = timeout_s / 6
        if self._socket is None or self._socket.family not in (socket.AF_INET, socket.AF_INET6):
            return
        interval_s = max(_LEAST_KEEPALIVE_S, int(timeout_s / 6))
        with contextlib.suppress(*_CLOSED, AttributeError):  # or the options do not exist
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
            self._ask_later()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ask_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._every_s, self._ask)

    def _ask(self) -> None:
        self._timer = None
        silent_s = last_heard_s(self._socket)
        if silent_s is None:
            return
        if silent_s >= self._silent_s:
            self._gone()
        else:
            self._ask_later()


def last_heard_s(tcp: socket.socket) -> float | None:
    """Seconds since the peer acknowledged anything; None where the kernel does not say, or the socket is closed."""
    try:
        info = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_ACK_OFFSET + _LAST_ACK_MS.size)
        age_ms: int = _LAST_ACK_MS.unpack_from(info, _LAST_ACK_OFFSET)[0]
    except (*_CLOSED, AttributeError, struct.error):
        return None
    return age_ms / 1000
