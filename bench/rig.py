"""The processes of a benchmark: the engine, `feedsvc serve`, and readers, all on this machine.

`time.monotonic()` is one clock for all of them (CLOCK_MONOTONIC counts from the boot), so times of different
processes may be subtracted. CPU is user plus system time of one whole process. Linux only.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.collection import Collection

from tests.support.engine import URI_VARIABLE, Engine
from tests.support.service import Service, make_jwt

Documents = Collection[dict[str, Any]]

COLLECTION = "changes"
_PROJECT = Path(__file__).parent.parent


class Rig:
    """An engine and a fresh database, which is the tenant's of the same name."""

    def __init__(self, uri: str, client: MongoClient[dict[str, Any]], directory: Path) -> None:
        self.uri = uri
        self.database = f"bench_{secrets.token_hex(4)}"
        self.documents: Documents = client[self.database][COLLECTION]
        self._directory = directory

    def service(self, uri: str = "", **environment: Any) -> Service:
        """A service that is not started; a context manager. Environment as that of `Service`."""
        return Service(uri or self.uri, self._directory, **environment)

    @contextlib.contextmanager
    def reader(self, kind: str, count: int, *arguments: str) -> Iterator[Reader]:
        """A process of `bench.readers` that is ready to read `count` changes of the collection."""
        reader = Reader([kind, self.uri, self.database, COLLECTION, str(count), *arguments])
        try:
            reader.line()
            yield reader
        finally:
            reader.end()

    def subscriber(
        self, service: Service, count: int, **topic: Any
    ) -> contextlib.AbstractContextManager[Reader]:
        """A client process with one subscription to the collection, which has gone live."""
        request = json.dumps({"collection": COLLECTION, **topic})
        return self.reader("subscriber", count, service.url, make_jwt(self.database), request)


@contextlib.contextmanager
def rig(oplog_max_entries: int = 10_000) -> Iterator[Rig]:
    """The engine of the tests, or the replica set that `FEEDSVC_TEST_MONGODB_URI` names.

    SecantusDB reads its whole oplog to find the first entry, or a time in it: 40 us for each entry, several times
    for each stream that is opened. So keep the oplog short. It does not sync its journal at each commit here: a disk
    that others use would be what is measured.
    """
    uri = os.environ.get(URI_VARIABLE)
    with contextlib.ExitStack() as stack:
        if not uri:
            engine = Engine(oplog_max_entries=oplog_max_entries, sync_on_commit=False).start()
            stack.callback(engine.stop)
            uri = engine.uri
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="feedsvc-bench-"))
        client = stack.enter_context(MongoClient[dict[str, Any]](uri))
        made = Rig(uri, client, Path(directory))
        stack.callback(client.drop_database, made.database)
        made.documents.insert_one({"seq": -1})
        yield made


class Reader:
    """A reader process; what it says, line by line, is in `bench.readers`."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.readers", *arguments],
            cwd=_PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def line(self) -> dict[str, Any]:
        """The next line that it says; RuntimeError where it ended instead (it gives up by itself in the end)."""
        assert self._process.stdout is not None
        text = self._process.stdout.readline()
        if not text:
            raise RuntimeError(f"a reader ended with {self._process.wait()}")
        said: dict[str, Any] = json.loads(text)
        return said

    def finish(self, count: int) -> None:
        """Wait until it has read all. RuntimeError where the last change is not the last of `count`."""
        last_seq = self.line()["last_seq"]
        if last_seq != count - 1:
            raise RuntimeError(f"the last change read is {last_seq}, not {count - 1}")

    def arrivals(self) -> list[float]:
        """The arrival times, after `finish`."""
        times: list[float] = self.line()["times"]
        return times

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def cpu_s(pid: int) -> float:
    """User and system time that a process has used, in seconds: its CPU clock (clock_getcpuclockid(3))."""
    return time.clock_gettime((~pid << 3) | 2)


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Stop a process, so that changes pile up for it."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
