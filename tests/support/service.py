"""`feedsvc serve` as a process, and a bare client that speaks the protocol over `websockets`."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import jwt as pyjwt
import yaml
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.support.frames import Frame as Frame
from tests.support.frames import received
from tests.support.ports import free_port

JWT_SECRET = "a development secret of more than 32 bytes"
START_TIMEOUT_S = 30.0
FRAME_TIMEOUT_S = 15.0

ONE_DATABASE_PER_TENANT: Mapping[str, Any] = {
    "tenant": {"claim": "tenant", "database": "{tenant}"},
    "collections": {"*": {}},
}


def token_key() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()


def make_jwt(
    tenant: str,
    *,
    sub: str = "alice",
    ttl_s: float = 600,
    key: Any = JWT_SECRET,
    algorithm: str = "HS256",
    **claims: Any,
) -> str:
    now = time.time()
    payload = {"tenant": tenant, "sub": sub, "iat": int(now), "exp": now + ttl_s, **claims}
    return pyjwt.encode(payload, key, algorithm=algorithm)


class Address(Protocol):
    """Where clients go: a service, or a proxy in front of some."""

    port: int

    @property
    def url(self) -> str: ...


class Service:
    """One `feedsvc serve` process. Environment by keyword: `max_age="5"` is FEEDSVC_MAX_AGE.

    `wrapper`: a command that runs it as its child; `pid` and signals are then those of the wrapper. `command`: what is
    run instead of this environment's own.
    """

    def __init__(
        self,
        mongodb_uri: str,
        directory: Path,
        policy: Mapping[str, Any] = ONE_DATABASE_PER_TENANT,
        *,
        token_keys: str | None = None,
        wrapper: Sequence[str] = (),
        command: Sequence[str] = (sys.executable, "-m", "feedsvc", "serve"),
        **environment: str,
    ) -> None:
        self.port = free_port()
        self.token_keys = token_keys or token_key()
        self._command = [*wrapper, *command]
        self._log = directory / f"service-{self.port}.log"
        policy_path = directory / f"policy-{self.port}.yaml"
        policy_path.write_text(yaml.safe_dump(dict(policy)))
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FEEDSVC_")}
        self.environment = {
            **inherited,
            "FEEDSVC_MONGODB_URI": mongodb_uri,
            "FEEDSVC_PORT": str(self.port),
            "FEEDSVC_POLICY": str(policy_path),
            "FEEDSVC_JWT_SECRET": JWT_SECRET,
            "FEEDSVC_TOKEN_KEYS": self.token_keys,
            **{f"FEEDSVC_{name.upper()}": value for name, value in environment.items()},
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/ws"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Service:
        """Start and wait until `/healthz/ready` says so."""
        self.launch()
        self.wait_for("/healthz/ready", 200)
        return self

    def launch(self) -> None:
        """Start without waiting."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self.environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def wait_for(self, path: str, status: int, text: str = "") -> None:
        """Ask until a GET has this status and holds `text`. RuntimeError where the process ends or time is up."""
        process, deadline = self._process, time.monotonic() + START_TIMEOUT_S
        assert process is not None
        while True:
            answer = self.get(path)
            if answer[0] == status and text in answer[1]:
                return
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{path} does not get {status} but {answer}:\n{self.log()}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of a GET; status 0 where nobody listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """`kill -9`."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        return self._end(signal.SIGTERM)

    def wait(self) -> int:
        """Until it ends by itself or by somebody else's signal; returns the exit code."""
        process, self._process = self._process, None
        assert process is not None
        return process.wait(40)

    def _end(self, how: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(how)
        try:
            return process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def __enter__(self) -> Service:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(signal.SIGKILL)


class Client:
    """A bare client. It keeps the last resume token of each topic id, as protocol section 5 asks."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.tokens: dict[str, str] = {}
        self.seen: list[Frame] = []
        self.raw: list[str] = []

    async def send(self, frame: Mapping[str, Any]) -> None:
        await self.socket.send(json.dumps(frame))

    async def receive(self, timeout_s: float = FRAME_TIMEOUT_S) -> Frame:
        """The next frame of any type."""
        text = await asyncio.wait_for(self.socket.recv(decode=True), timeout_s)
        self.raw.append(text)
        frame = received(text)
        self.seen.append(frame)
        self._keep(frame)
        return frame

    async def until(self, wanted: Callable[[Frame], bool] | str, timeout_s: float = FRAME_TIMEOUT_S) -> Frame:
        """The next frame of a type, or for which `wanted` holds; what comes before is in `seen`."""
        matches = (lambda frame: frame["type"] == wanted) if isinstance(wanted, str) else wanted
        async with asyncio.timeout(timeout_s):
            while True:
                frame = await self.receive(timeout_s)
                if matches(frame):
                    return frame

    async def closed(self) -> tuple[int, str]:
        """Read until the server closes; its close code and reason. 1006 where it said nothing."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                await self.receive()
        return self.socket.close_code or 1006, self.socket.close_reason or ""

    async def subscribe(
        self, collection: str, *, request_id: str = "s", expect: str = "live", **fields: Any
    ) -> Frame:
        """Subscribe and return `subscribed`; with `expect="live"` wait for that too."""
        topic_names = ("filter", "operations", "fields", "database")
        topic = {
            "collection": collection,
            **{name: fields.pop(name) for name in topic_names if name in fields},
        }
        await self.send({"type": "subscribe", "id": request_id, "topic": topic, **fields})
        answer = await self.until(lambda frame: frame.get("id") == request_id)
        if answer["type"] == "error":
            raise AssertionError(answer)
        if expect:
            await self.until(lambda frame: frame["type"] == expect and frame["topic"] == answer["topic"])
        return answer

    async def replayed(self, count: int) -> list[Frame]:
        """All changes seen so far, once there are `count`: those that the tail had not read yet come behind `live`."""
        while len(seen := [frame["event"] for frame in self.seen if frame["type"] == "event"]) < count:
            await self.receive()
        return seen

    async def events(self, count: int, timeout_s: float = FRAME_TIMEOUT_S) -> list[Frame]:
        """The next `count` changes, of whatever topic."""
        return [(await self.until("event", timeout_s))["event"] for _ in range(count)]

    def _keep(self, frame: Frame) -> None:
        match frame["type"]:
            case "subscribed" | "resync" | "snapshotEnd" if "token" in frame:
                self.tokens[frame["topic"]] = frame["token"]
            case "event":
                self.tokens[frame["topic"]] = frame["event"]["_id"]
            case "checkpoint":
                self.tokens.update(frame["tokens"])


@contextlib.asynccontextmanager
async def client_of(service: Address, tenant: str, **claims: Any) -> AsyncIterator[Client]:
    """A connected, authenticated client."""
    headers = {"Authorization": f"Bearer {make_jwt(tenant, **claims)}"}
    async with connect(service.url, additional_headers=headers, max_size=None, proxy=None) as socket:
        client = Client(socket)
        assert (await client.receive())["type"] == "welcome"
        yield client


async def tail_open(service: Address, tenant: str, **claims: Any) -> None:
    """Have the stream of `orders` opened, which may take a busy engine longer than a connection of the test lives."""
    while True:
        with contextlib.suppress(ConnectionClosed):
            async with client_of(service, tenant, **claims) as client:
                await client.subscribe("orders")
                return
