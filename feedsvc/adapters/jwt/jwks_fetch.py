"""Fetches the JWK set from the key server: one GET, in a thread, bounded in time and size.

`http.client` and not an opener: no proxy from the environment, no `file:`, no cookies, and redirects only where
`_Exchange` follows them, which is within the same scheme, host and port. So the keys of this service come from the
configured server or not at all.

The socket's timeout bounds each read, which a server that sends a byte now and then can extend without end. Therefore
the loop shuts the socket down when the time is over, and the thread ends with an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import ssl
from collections.abc import Mapping
from urllib.parse import SplitResult, urljoin, urlsplit

from feedsvc.core.limits import LIMITS

_MAX_REDIRECTS = 3
_REDIRECTS = (301, 302, 303, 307, 308)
_HEADERS: Mapping[str, str] = {
    "Accept": "application/jwk-set+json, application/json",
    "Accept-Encoding": "identity",
    "User-Agent": "feedsvc",
    "Connection": "close",
}


class FetchError(Exception):
    """The key server gave no answer that could be a key set. The message holds nothing of the answer."""


class JwksFetch:
    """`await fetch()` gives the document. Not to be called while a call is under way.

    Raises `FetchError`, also where `timeout_s` is over. A cancelled call ends its thread at once, unless that is
    looking up the host's name or connecting.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = float(LIMITS["jwks_timeout_s"].default),
        max_bytes: int = int(LIMITS["jwks_bytes"].default),
    ) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._tls = ssl.create_default_context() if urlsplit(url).scheme == "https" else None

    async def __call__(self) -> bytes:
        exchange = _Exchange(self._url, self._tls, self._timeout_s, self._max_bytes)
        deadline = asyncio.get_running_loop().call_later(self._timeout_s, exchange.abort)
        try:
            return await asyncio.to_thread(exchange.run)
        finally:
            deadline.cancel()
            exchange.abort()


class _Exchange:
    """`run` belongs to the thread, `abort` to the loop."""

    def __init__(self, url: str, tls: ssl.SSLContext | None, timeout_s: float, max_bytes: int) -> None:
        self._url = url
        self._tls = tls
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._socket: socket.socket | None = None
        """Kept beside the connection, which forgets it as soon as the head of the answer is there."""
        self._aborted = False

    def abort(self) -> None:
        """Let the thread fail at its next read. Safe at any time and more than once."""
        self._aborted = True
        if self._socket is not None:
            # Fails where it is closed already.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def run(self) -> bytes:
        url = urlsplit(self._url)
        try:
            for _ in range(_MAX_REDIRECTS + 1):
                answer = self._get(url)
                if isinstance(answer, bytes):
                    return answer
                url = answer
        except FetchError:
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            if self._aborted or isinstance(error, TimeoutError):
                raise FetchError(f"no answer within {self._timeout_s:g} s") from None
            raise FetchError(f"the exchange failed ({type(error).__name__})") from None
        raise FetchError(f"more than {_MAX_REDIRECTS} redirects")

    def _get(self, url: SplitResult) -> bytes | SplitResult:
        """The body, or where a redirect points."""
        connection = self._connection_to(url)
        try:
            # Bounded by itself: the socket's timeout is for the whole of a TCP or TLS handshake.
            connection.connect()
            self._socket = connection.sock
            if self._aborted:
                raise TimeoutError
            target = (url.path or "/") + (f"?{url.query}" if url.query else "")
            connection.request("GET", target, headers=dict(_HEADERS))
            answer = connection.getresponse()
            if answer.status in _REDIRECTS:
                return _redirect(url, answer.getheader("Location", ""))
            if answer.status != http.HTTPStatus.OK:
                raise FetchError(f"the key server answers with status {answer.status}")
            body = answer.read(self._max_bytes + 1)
            if len(body) > self._max_bytes:
                raise FetchError(f"the answer is larger than {self._max_bytes} bytes")
            if self._aborted or answer.length:
                raise FetchError("the answer ends too early")
            return body
        finally:
            connection.close()

    def _connection_to(self, url: SplitResult) -> http.client.HTTPConnection:
        assert url.hostname is not None
        if self._tls is None:
            return http.client.HTTPConnection(url.hostname, url.port, timeout=self._timeout_s)
        return http.client.HTTPSConnection(url.hostname, url.port, timeout=self._timeout_s, context=self._tls)


def _redirect(url: SplitResult, location: str) -> SplitResult:
    """Raises `FetchError` where it leads away from the configured server."""
    target = urlsplit(urljoin(url.geturl(), location))
    if (target.scheme, target.hostname, target.port) != (url.scheme, url.hostname, url.port):
        raise FetchError("a redirect to another host is not followed")
    return target
