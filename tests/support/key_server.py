"""A key server on this machine that counts requests and answers as it is told, and the issuer's keys."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt as pyjwt
import msgspec
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

_MAKERS: Mapping[str, Callable[[], Any]] = {
    "RS256": lambda: rsa.generate_private_key(public_exponent=65537, key_size=2048),
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "ES384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate,
}
WAIT_S = 10.0


class IssuerKey:
    """A key pair of the issuer; `published` is its JWK, which a test may change before it publishes it."""

    def __init__(self, kid: str | None, algorithm: str = "ES256") -> None:
        self.kid = kid
        self.algorithm = algorithm
        self.private: Any = _MAKERS[algorithm.replace("PS", "RS")]()
        jwk = pyjwt.get_algorithm_by_name(algorithm).to_jwk(self.private.public_key(), as_dict=True)
        named = {} if kid is None else {"kid": kid}
        self.published: dict[str, Any] = {**jwk, **named, "alg": algorithm, "use": "sig"}
        self.published.pop("key_ops", None)

    def sign(self, *, header: Mapping[str, Any] | None = None, ttl_s: float = 600, **claims: Any) -> str:
        """A JWT of this key; `header` adds to or replaces its header, None removes an entry."""
        now = time.time()
        payload = {"sub": "alice", "iat": int(now), "exp": now + ttl_s, **claims}
        named = {"kid": self.kid, **(header or {})}
        present = {name: value for name, value in named.items() if value is not None}
        return pyjwt.encode(payload, self.private, algorithm=self.algorithm, headers=present)


class Answer(msgspec.Struct, frozen=True):
    """`length` is the Content-Length told, where that is not the truth; None ends the body by closing."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = {}
    length: int | None = -1
    drip_s: float = 0
    """Send one byte in this time, for ever."""


def key_set(*keys: IssuerKey) -> bytes:
    return json.dumps({"keys": [key.published for key in keys]}).encode()


class KeyServer:
    """Use as a context manager. `requests` are the paths asked for, in order; `paths` answer other than `answer`."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.answer = Answer()
        self.paths: dict[str, Answer] = {}
        self.requests: list[str] = []
        self.headers: list[Mapping[str, str]] = []
        self._asked = threading.Condition()
        self._open = threading.Event()
        self._open.set()
        self._closing = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer._serve(self)

            def log_message(self, format: str, *args: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.port = int(self._server.server_address[1])
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.port}/keys"
        if tls is not None:
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def publish(self, *keys: IssuerKey) -> None:
        self.answer = Answer(body=key_set(*keys))

    def hold(self) -> None:
        """From now on requests are counted and get no answer until `release`."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def wait_for_requests(self, count: int) -> None:
        """Block until that many requests have come in all."""
        with self._asked:
            if not self._asked.wait_for(lambda: len(self.requests) >= count, WAIT_S):
                raise AssertionError(f"{len(self.requests)} requests, {count} are expected")

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        with self._asked:
            self.requests.append(handler.path)
            self.headers.append(dict(handler.headers))
            self._asked.notify_all()
        self._open.wait()
        answer = self.paths.get(handler.path, self.answer)
        try:
            handler.send_response(answer.status)
            for name, value in answer.headers.items():
                handler.send_header(name, value)
            if answer.length is not None:
                length = len(answer.body) if answer.length < 0 else answer.length
                handler.send_header("Content-Length", str(length))
            handler.end_headers()
            handler.wfile.write(answer.body)
            while answer.drip_s and not self._closing.wait(answer.drip_s):
                handler.wfile.write(b" ")
        except OSError:
            pass  # the client has had enough

    def __enter__(self) -> KeyServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self.release()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
