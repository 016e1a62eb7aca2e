"""A client of an event stream on a bare socket, for what no HTTP client does: to vanish, to reset, to stop reading."""

from __future__ import annotations

import ctypes
import json
import socket
import struct
from types import TracebackType
from urllib.parse import quote

from tests.support.resets import resets_when_closed
from tests.support.service import Service, make_jwt

_SO_ATTACH_FILTER = 26
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)
"""One instruction of classic BPF: return 0, keep nothing of the packet (linux/filter.h)."""


def vanish(peer: socket.socket) -> None:
    """Its network is dead: every packet to it is lost, acknowledgements of what it was sent never leave."""
    code = ctypes.create_string_buffer(_DROP_ALL)
    peer.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(code)))


class SseSocket:
    """Sends the request at once and reads when told."""

    def __init__(
        self,
        service: Service,
        tenant: str = "",
        collection: str = "",
        *,
        buffer_bytes: int = 0,
        target: str = "",
        jwt: str = "",
    ) -> None:
        """A stream of a collection of a tenant, or of `target` with a JWT."""
        self.socket = socket.socket()
        if buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        self.socket.settimeout(15)
        self.socket.connect(("127.0.0.1", service.port))
        target = target or f"/v1/sse?topic={quote(json.dumps({'collection': collection}))}"
        self.socket.sendall(
            f"GET {target} HTTP/1.1\r\nHost: a\r\nAccept: text/event-stream\r\n"
            f"Authorization: Bearer {jwt or make_jwt(tenant)}\r\n\r\n".encode()
        )

    def read_until(self, text: bytes) -> bytes:
        """All that came, once `text` is in it."""
        found = b""
        while text not in found:
            part = self.socket.recv(65_536)
            assert part, found
            found += part
        return found

    def read_to_the_end(self) -> bytes:
        """What was left, until the service ends or resets the connection."""
        found = b""
        try:
            while part := self.socket.recv(65_536):
                found += part
        except ConnectionResetError:
            pass
        return found

    def vanish(self) -> None:
        """From now on every packet to this socket is lost."""
        vanish(self.socket)

    def reset(self) -> None:
        """Close without a FIN."""
        resets_when_closed(self.socket)
        self.socket.close()

    def __enter__(self) -> SseSocket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()
