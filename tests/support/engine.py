"""SecantusDB as a process of its own: the engine behind every test that needs MongoDB's wire protocol.

`FEEDSVC_TEST_MONGODB_URI` puts a real replica set in its place wherever a test neither restarts nor trims the engine.
Register the fixtures with `pytest_plugins = ["tests.support.engine"]` in the root conftest.
"""

from __future__ import annotations

import gc
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bson import Timestamp
from pymongo import MongoClient, WriteConcern
from pymongo.errors import PyMongoError

from tests.support.ports import free_port

URI_VARIABLE = "FEEDSVC_TEST_MONGODB_URI"
_START_TIMEOUT_S = 30.0
_ROLL_LIMIT = 20_000


class Engine:
    """One engine on one port and one directory; both survive `restart()`.

    The oplog is trimmed only every 1,000 writes, whatever `oplog_max_entries` says: use `roll_oplog`.
    Without `sync_on_commit` writes are several times as fast and a `kill()` may lose acknowledged ones.
    """

    def __init__(
        self,
        *,
        oplog_max_entries: int = 100_000,
        noop_heartbeat_s: int = 1,
        standalone: bool = False,
        sync_on_commit: bool = True,
    ) -> None:
        self.port = free_port()
        self._directory = Path(tempfile.mkdtemp(prefix="feedsvc-engine-"))
        self._arguments = [
            str(Path(sys.executable).parent / "secantusd-py"),
            "--port", str(self.port),
            "--storage-path", str(self._directory / "data"),
            "--noop-heartbeat-seconds", str(noop_heartbeat_s),
            *(["--sync-on-commit"] if sync_on_commit else []),
            "--enable-test-commands",
            "--oplog-max-entries", str(oplog_max_entries),
        ] + ["--standalone"] * standalone  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self._client: MongoClient[dict[str, Any]] | None = None

    @property
    def uri(self) -> str:
        return f"mongodb://127.0.0.1:{self.port}/?directConnection=true"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the engine is not running")
        return self._process.pid

    @property
    def client(self) -> MongoClient[dict[str, Any]]:
        """A blocking client for set-up work; closed by `stop()`."""
        if self._client is None:
            self._client = MongoClient(self.uri, serverSelectionTimeoutMS=5_000)
        return self._client

    def start(self) -> Engine:
        """Start the process and wait until it answers `ping` (about a second)."""
        log = (self._directory / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                self._arguments, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        deadline = time.monotonic() + _START_TIMEOUT_S
        with MongoClient[dict[str, Any]](self.uri, serverSelectionTimeoutMS=200) as probe:
            while True:
                if self._process.poll() is not None:
                    raise RuntimeError(f"the engine ended at start:\n{self.log()}")
                try:
                    probe.admin.command("ping")
                    return self
                except PyMongoError:
                    if time.monotonic() > deadline:
                        self.kill()
                        raise RuntimeError(f"the engine does not answer:\n{self.log()}") from None

    def log(self) -> str:
        """The last 4,000 characters of what the process wrote."""
        return (self._directory / "log").read_text(errors="replace")[-4000:]

    def kill(self) -> None:
        """`kill -9`, as a crash; the directory stays."""
        self._end(signal.SIGKILL)

    def end(self) -> None:
        """SIGTERM, as an orderly shutdown; the directory stays."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Freeze the process: connections stay open and nothing answers, until `resume()`."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Start again on the same port and directory, after `kill()` or instead of it."""
        self._end(signal.SIGTERM)
        self.start()

    def require_users(self) -> None:
        """Start again and let in only users, which `client` has made before. It then checks their actions on databases,
        but for `changeStream`, which goes with `find`, and not on collections."""
        if self._client is not None:
            self._client.close()
            self._client = None
        self._arguments.append("--auth")
        self.restart()

    def stop(self) -> None:
        """End the process at once and remove its directory."""
        if self._client is not None:
            self._client.close()
            self._client = None
        self._end(signal.SIGKILL)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def first_entry(self) -> Timestamp | None:
        """The cluster time of the oplog's oldest entry."""
        entry = self.client.local["oplog.rs"].find_one({}, {"ts": 1}, sort=[("$natural", 1)])
        return None if entry is None else entry["ts"]

    def roll_oplog(self, past: Timestamp) -> None:
        """Write into another database until the oplog's first entry is newer than `past`."""
        filler = self.client["roll"].get_collection("filler", write_concern=WriteConcern(w=1))
        for _ in range(0, _ROLL_LIMIT, 1000):
            filler.insert_many([{} for _ in range(1000)])
            first = self.first_entry()
            if first is not None and first > past:
                return
        raise RuntimeError("the oplog does not roll: start the engine with a small oplog_max_entries")


def forget_driver_sockets() -> None:
    """Collect what PyMongo 4.20 leaves behind when a client is closed while it connects to a server that is gone:
    a socket that nobody closed, which would be reported in whatever test runs at the next collection."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """The engine that the tests of one worker share; use `fresh_database` to keep apart.

    Its oplog is short: it decodes all of it whenever a service asks for the newest entry, which is once a second.
    """
    engine = Engine(oplog_max_entries=4_000).start()
    yield engine
    engine.stop()


@pytest.fixture(scope="session")
def mongodb_uri(request: pytest.FixtureRequest) -> str:
    """A real replica set where the environment names one, else the shared engine."""
    uri = os.environ.get(URI_VARIABLE)
    if uri:
        return uri
    engine: Engine = request.getfixturevalue("engine")
    return engine.uri


@pytest.fixture
def fresh_database() -> str:
    """A database name that no other test uses."""
    return f"t_{secrets.token_hex(6)}"
