"""The demo from start to end.

Everything it makes is in one temporary directory that only its user can read, and in the database `feedsvc_demo`. The
service is the real one, `feedsvc serve` with a configuration of its own, as a process of its own.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import secrets
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from feedsvc.adapters.jwt import sign_development_jwt
from feedsvc.adapters.mongo.sample_orders import TENANTS, SampleError, SampleOrders
from feedsvc.demo.guide import guide
from feedsvc.demo.processes import Child, DemoFailed, StopSignal, free_port

_DATABASE = "feedsvc_demo"
_DEFAULT_PORT = 8080
_START_S = 60.0
_EVERY_S = 1.0
_JWT_S = 24 * 3600
_POLICY = f"""\
tenant: {{claim: tenant, database: {_DATABASE}}}
collections:
  orders:
    filter: {{tenantId: "{{tenant}}"}}
    fields: {{cost: 0}}
    scopes: ["orders:read"]
"""


def run_demo(environ: Mapping[str, str], seconds: float | None) -> int:
    """Run until a signal, or for `seconds` once everything answers; the exit code.

    `environ`: FEEDSVC_MONGODB_URI (or its _FILE) is used in place of the embedded database, FEEDSVC_PORT for the
    service; other FEEDSVC_ variables are not.
    """
    stop = StopSignal()
    stop.install()
    try:
        with contextlib.ExitStack() as stack:
            _run(environ, seconds, stop, stack)
    except DemoFailed as failure:
        print(f"feedsvc demo: {failure}", file=sys.stderr, flush=True)
        return 1
    print("The demo has ended.", flush=True)
    return 0


def _run(
    environ: Mapping[str, str], seconds: float | None, stop: StopSignal, stack: contextlib.ExitStack
) -> None:
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="feedsvc-demo-")))
    outside = {name: value for name, value in environ.items() if not name.startswith("FEEDSVC_")}
    children: list[Child] = []
    uri = _given_uri(environ)
    if uri is None:
        _say("Starting the embedded database ...")
        port = free_port()
        children.append(stack.enter_context(_engine(port, directory, outside)))
        uri = f"mongodb://127.0.0.1:{port}/?directConnection=true"
    orders = _sample_orders(uri)
    stack.callback(orders.close)
    if not _wait_for_database(orders, children, stop):
        return
    port = _port(environ)
    secret = secrets.token_urlsafe(48)
    children.append(stack.enter_context(_service(port, uri, secret, directory, outside)))
    if not _wait_for_service(port, children, stop):
        return
    claims = {"tenant": TENANTS[0], "sub": "alice", "scope": "orders:read"}
    jwt = sign_development_jwt(secret, claims, _JWT_S)
    lifetime = "Ctrl-C ends it." if seconds is None else f"It ends in {seconds:g} seconds."
    _say(guide(port, jwt, lifetime))
    _keep_shop(orders, children, stop, seconds)


def _keep_shop(orders: SampleOrders, children: list[Child], stop: StopSignal, seconds: float | None) -> None:
    end = None if seconds is None else time.monotonic() + seconds
    said: str | None = None
    while not stop.wait(_EVERY_S if end is None else max(0.0, min(_EVERY_S, end - time.monotonic()))):
        if end is not None and time.monotonic() >= end:
            return
        for child in children:
            child.check()
        try:
            orders.step()
            said = None
        except SampleError as error:
            if said is None:
                said = f"MongoDB does not take the sample orders ({error}); trying on."
                _say(said)


def _given_uri(environ: Mapping[str, str]) -> str | None:
    path = environ.get("FEEDSVC_MONGODB_URI_FILE")
    try:
        uri = Path(path).read_text(encoding="utf-8") if path else environ.get("FEEDSVC_MONGODB_URI", "")
    except (OSError, UnicodeDecodeError) as error:
        raise DemoFailed(f"FEEDSVC_MONGODB_URI_FILE cannot be read ({type(error).__name__})") from None
    return uri.strip() or None


def _sample_orders(uri: str) -> SampleOrders:
    try:
        return SampleOrders(uri, _DATABASE)
    except SampleError as error:
        raise DemoFailed(f"FEEDSVC_MONGODB_URI: {error}") from None


def _port(environ: Mapping[str, str]) -> int:
    text = environ.get("FEEDSVC_PORT") or str(_DEFAULT_PORT)
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise DemoFailed("FEEDSVC_PORT must be a number up to 65535")
    port = free_port(int(text))
    if int(text) not in (0, port):
        _say(f"Port {text} is taken; using {port}.")
    return port


def _engine(port: int, directory: Path, environment: Mapping[str, str]) -> Child:
    """SecantusDB of the environment that runs this (docs/decisions/0005-secantusdb-for-development.md)."""
    program = Path(sys.executable).parent / "secantusd-py"
    if not program.is_file():
        raise DemoFailed(
            "the embedded database is not installed. Either `pip install 'feedsvc[embedded]'`, or set "
            "FEEDSVC_MONGODB_URI to a replica set (MongoDB 6.0 or later)."
        )
    arguments = [
        str(program),
        "--host", "127.0.0.1",
        "--port", str(port),
        "--storage-path", str(directory / "data"),
        "--noop-heartbeat-seconds", "1",
        "--sync-on-commit",
    ]  # fmt: skip
    return Child("database", arguments, directory, environment, grace_s=5)


def _service(port: int, uri: str, secret: str, directory: Path, environment: Mapping[str, str]) -> Child:
    token_key = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
    ours = {
        "FEEDSVC_HOST": "127.0.0.1",
        "FEEDSVC_PORT": str(port),
        "FEEDSVC_POLICY": _private_file(directory / "policy.yaml", _POLICY),
        "FEEDSVC_MONGODB_URI_FILE": _private_file(directory / "mongodb-uri", uri),
        "FEEDSVC_JWT_SECRET_FILE": _private_file(directory / "jwt-secret", secret),
        "FEEDSVC_TOKEN_KEYS_FILE": _private_file(directory / "token-keys", token_key),
        "FEEDSVC_DRAIN": "1",
    }
    # -P: the package that runs this, whatever lies in the directory it is started in.
    arguments = [sys.executable, "-P", "-m", "feedsvc", "serve"]
    return Child("service", arguments, directory, {**environment, **ours}, grace_s=15)


def _private_file(path: Path, content: str) -> str:
    path.touch(mode=0o600, exist_ok=False)
    path.write_text(content, encoding="utf-8")
    return str(path)


def _wait_for_database(orders: SampleOrders, children: list[Child], stop: StopSignal) -> bool:
    """Until the collection is prepared; False where a signal came first. Raises DemoFailed."""
    deadline = time.monotonic() + _START_S
    while not stop.requested:
        for child in children:
            child.check()
        try:
            orders.prepare()
            return True
        except SampleError as error:
            if time.monotonic() > deadline:
                raise DemoFailed(f"MongoDB does not answer as it should: {error}") from None
        stop.wait(0.2)
    return False


def _wait_for_service(port: int, children: list[Child], stop: StopSignal) -> bool:
    """Until the service is ready; False where a signal came first. Raises DemoFailed."""
    deadline = time.monotonic() + _START_S
    while not stop.requested:
        for child in children:
            child.check()
        if _is_ready(port):
            return True
        if time.monotonic() > deadline:
            raise DemoFailed("the service does not get ready")
        stop.wait(0.2)
    return False


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/healthz/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _say(text: str) -> None:
    print(text, flush=True)
