"""The processes of a fan-out benchmark: one server on one core, everything else on the others.

The load client is C (`bench/load/load_client.c`, built with `cc` when it is first needed), since one in Python would
be the bottleneck: it counts what arrives for about what `recv()` costs. Peers are in `bench/peers`. With one core only,
nothing is pinned and a run says so.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import msgspec

_HERE = Path(__file__).parent
SERVER_CORE = 0
_ANSWER_WITHIN_S = 120
FLOOR = "uvloop transport.write"
NODE = "Node ws"
STARLETTE = "Starlette send_text"
PEERS = {
    FLOOR: [sys.executable, "-m", "bench.peers.uvloop_write"],
    NODE: ["node", str(_HERE / "peers" / "node" / "ws_send.mjs")],
    "websockets.broadcast": [sys.executable, "-m", "bench.peers.websockets_broadcast"],
    STARLETTE: [sys.executable, "-m", "bench.peers.starlette_send"],
}


class Counts(msgspec.Struct, frozen=True):
    """What the load client answers; load_client.c says what each is."""

    events: int
    reads: int
    welcome: int
    live: int
    resync: int
    error: int
    bytes: int
    open: int
    closed: int
    close_code: int
    p50_us: int
    p99_us: int
    max_us: int
    beats: int
    beat_gap_us: int
    started_us: int
    at_us: int
    cpu_us: int


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Keep this process, and what it starts, off the server's core; with enough files for 10,000 sockets."""
    before = os.sched_getaffinity(0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    _pin(os.getpid(), set(range(os.cpu_count() or 1)) - {SERVER_CORE})
    try:
        yield
    finally:
        _pin(os.getpid(), before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def pin_server(pid: int) -> None:
    """The whole process, threads that it has already too."""
    _pin(pid, {SERVER_CORE})


def _pin(pid: int, cores: set[int]) -> None:
    if (os.cpu_count() or 1) < 2:
        return
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)


def need_files(connections: int) -> None:
    """RuntimeError where a server could not hold so many sockets."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if allowed != resource.RLIM_INFINITY and allowed < connections + 200:
        raise RuntimeError(
            f"{connections:,} connections need more open files than {allowed:,}: raise `ulimit -Hn`"
        )


def rss_bytes(pid: int) -> int:
    """Resident memory of one process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def writes(pid: int) -> int:
    """How often a process has called write(2) or writev(2), which is how libuv sends."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("syscw"))


@cache
def load_client() -> Path:
    """The built client; RuntimeError without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise RuntimeError("the load client is C: install a C compiler (cc)")
    binary = Path(tempfile.mkdtemp(prefix="feedsvc-load-")) / "load_client"
    source = _HERE / "load" / "load_client.c"
    subprocess.run([compiler, "-O2", "-Wall", "-o", str(binary), str(source)], check=True)
    return binary


@cache
def peers() -> tuple[str, ...]:
    """The names of the peers that can run here."""
    if shutil.which("node") and shutil.which("npm"):
        return tuple(PEERS)
    print(f"{NODE} is left out: it needs node and npm", file=sys.stderr)
    return tuple(name for name in PEERS if name != NODE)


def install_node_peer() -> None:
    """`npm ci` in the folder of the Node peer, once."""
    folder = _HERE / "peers" / "node"
    if not (folder / "node_modules").is_dir():
        subprocess.run(["npm", "ci", "--silent", "--no-audit", "--no-fund"], cwd=folder, check=True)


class _Spoken:
    """A process that is told lines and answers with lines of JSON."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            arguments,
            cwd=_HERE.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        """The next answer; RuntimeError where the process ended instead, or has none for two minutes."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], _ANSWER_WITHIN_S)[0]:
            raise RuntimeError(f"{self._process.args!r} waits for something that does not come")
        text = self._process.stdout.readline()
        if not text:
            raise RuntimeError(f"{self._process.args!r} ended with {self._process.wait()}")
        return text

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


class Peer(_Spoken):
    """A server of `bench/peers`, on the server's core."""

    def __init__(self, name: str) -> None:
        super().__init__(PEERS[name])
        said: dict[str, int] = msgspec.json.decode(self.answer())
        self.port = said["port"]
        pin_server(self.pid)


class Load(_Spoken):
    """`count` connections to a port, which are being made from now on."""

    def __init__(self, port: int, path: str, count: int, *options: str) -> None:
        need_files(count)
        super().__init__([str(load_client()), *options, str(port), path, str(count)])
        self.count = count

    def ask(self, line: str) -> Counts:
        self.tell(line)
        return msgspec.json.decode(self.answer(), type=Counts)

    def welcome(self) -> Counts:
        """Wait until each connection is authenticated."""
        return self.ask(f"welcome {self.count}")

    def ready(self) -> Counts:
        """Wait until each connection went live."""
        return self.ask(f"ready {self.count}")

    def arrived(self, count: int) -> Counts:
        """Wait for so many events since the last reset. RuntimeError where there are more, or anything went wrong."""
        said = self.ask(f"events {count}")
        if said.events != count or said.closed or said.resync or said.error:
            raise RuntimeError(f"{count} events were sent to clients that say {said}")
        return said


@contextlib.contextmanager
def peer(name: str) -> Iterator[Peer]:
    if name == NODE:
        install_node_peer()
    made = Peer(name)
    try:
        yield made
    finally:
        made.end()


@contextlib.contextmanager
def load(port: int, path: str, count: int, *options: str) -> Iterator[Load]:
    made = Load(port, path, count, *options)
    try:
        yield made
    finally:
        made.end()
