"""The child processes of the demo: each ends with the demo, however that ends.

They are in sessions of their own, so that Ctrl-C in the terminal reaches only the demo, which ends them in order.
Signals set a flag and interrupt nothing: there is no moment at which a child is started and not yet known.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType

_POLL_S = 0.1
_LAST_CHARS = 3000


class DemoFailed(Exception):
    """The demo cannot go on; the message is for the person at the terminal."""


class StopSignal:
    """Whether SIGINT or SIGTERM arrived since `install`."""

    def __init__(self) -> None:
        self.requested = False

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True

    def wait(self, seconds: float) -> bool:
        """Wait, but no longer than until a signal; whether there was one."""
        end = time.monotonic() + seconds
        while not self.requested and (left_s := end - time.monotonic()) > 0:
            time.sleep(min(_POLL_S, left_s))
        return self.requested


class Child:
    """A process that runs inside a `with`, its output in a file. At the end SIGTERM, and SIGKILL after `grace_s`."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        directory: Path,
        environment: Mapping[str, str],
        grace_s: float,
    ) -> None:
        self.name = name
        self._arguments = list(arguments)
        self._directory = directory
        self._environment = dict(environment)
        self._grace_s = grace_s
        self._log = directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Child:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._arguments,
                cwd=self._directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(self._grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def check(self) -> None:
        """Raises DemoFailed, with the end of its output, where the process has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            output = self._log.read_text(encoding="utf-8", errors="replace")[-_LAST_CHARS:]
            raise DemoFailed(f"{self.name} ended with {self._process.returncode}:\n{output}")


def free_port(wanted: int = 0) -> int:
    """`wanted` if nobody listens there on 127.0.0.1, else a port that is free now."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found: int = probe.getsockname()[1]
            return found
    raise DemoFailed("no port is free on 127.0.0.1")
