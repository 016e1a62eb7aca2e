"""The processes of a fan-out benchmark: one server on one core, everything else on the others.

The load client is C (`bench/load/load_client.c`, built with `cc` when it is first needed), since one in Python would
be the bottleneck: it counts what arrives for about what `recv()` costs. Peers are in `bench/peers`. With one core only,
nothing is pinned and a run says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
SERVER_CORE = 0
PEERS = {
    "uvloop transport.write": [sys.executable, "-m", "bench.peers.uvloop_write"],
    "Node ws": ["node", str(_HERE / "peers" / "node" / "ws_send.mjs")],
    "websockets.broadcast": [sys.executable, "-m", "bench.peers.websockets_broadcast"],
    "Starlette send_text": [sys.executable, "-m", "bench.peers.starlette_send"],
}


def pin_server(pid: int) -> None:
    """The whole process, threads that it has already too."""
    _pin(pid, {SERVER_CORE})


def pin_load(pid: int = 0) -> None:
    _pin(pid, set(range(os.cpu_count() or 1)) - {SERVER_CORE})


def _pin(pid: int, cores: set[int]) -> None:
    if (os.cpu_count() or 1) < 2:
        return
    for thread in os.listdir(f"/proc/{pid or os.getpid()}/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)


def rss_bytes(pid: int) -> int:
    """Resident memory of one process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


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


def install_node_peer() -> None:
    """`npm ci` in the folder of the Node peer, once."""
    folder = _HERE / "peers" / "node"
    if not (folder / "node_modules").is_dir():
        subprocess.run(["npm", "ci", "--silent", "--no-audit", "--no-fund"], cwd=folder, check=True)


class _Spoken:
    """A process that is told lines and answers each with a line of JSON."""

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

    def answer(self) -> dict[str, Any]:
        """The next answer; RuntimeError where the process ended instead."""
        assert self._process.stdout is not None
        text = self._process.stdout.readline()
        if not text:
            raise RuntimeError(f"{self._process.args!r} ended with {self._process.wait()}")
        said: dict[str, Any] = json.loads(text)
        return said

    def ask(self, line: str) -> dict[str, Any]:
        self.tell(line)
        return self.answer()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


class Peer(_Spoken):
    """A server of `bench/peers`, on the server's core."""

    def __init__(self, name: str) -> None:
        super().__init__(PEERS[name])
        self.port: int = self.answer()["port"]
        pin_server(self.pid)


class Load(_Spoken):
    """`count` connections to a port; see load_client.c for what it can be told."""

    def __init__(self, port: int, path: str, count: int, headers: Path | None, frames: Path | None) -> None:
        super().__init__(
            [
                str(load_client()),
                str(port),
                path,
                str(count),
                "0",
                str(headers or ""),
                *([str(frames)] if frames else []),
            ]
        )
        self.count = count
        pin_load(self.pid)

    def ready(self) -> dict[str, Any]:
        """Wait until each connection went live."""
        return self.ask(f"ready {self.count}")


@contextlib.contextmanager
def peer(name: str) -> Iterator[Peer]:
    if name == "Node ws":
        install_node_peer()
    made = Peer(name)
    try:
        yield made
    finally:
        made.end()


@contextlib.contextmanager
def load(
    port: int, path: str, count: int, headers: Path | None = None, frames: Path | None = None
) -> Iterator[Load]:
    made = Load(port, path, count, headers, frames)
    try:
        yield made
    finally:
        made.end()
