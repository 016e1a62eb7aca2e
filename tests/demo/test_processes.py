"""Children of the demo end with it, whatever they do, and say why when they end before."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from feedsvc.demo.processes import Child, DemoFailed, StopSignal, free_port

PATIENCE_S = 20.0


def child(directory: Path, program: str, grace_s: float = PATIENCE_S) -> Child:
    return Child("worker", [sys.executable, "-c", program], directory, {"PYTHONUNBUFFERED": "1"}, grace_s)


def wait_for(directory: Path, text: str) -> str:
    """What the child has written, once `text` is in it."""
    end = time.monotonic() + PATIENCE_S
    while text not in (output := (directory / "worker.log").read_text()):
        assert time.monotonic() < end, output
        time.sleep(0.01)
    return output


def check_for_long(running: Child) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        running.check()


def test_a_child_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    program = (
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(os.getpid(), 'deaf')\ntime.sleep(600)"
    )
    with child(tmp_path, program, grace_s=0.1):
        pid = int(wait_for(tmp_path, "deaf").split()[0])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_child_may_finish_what_sigterm_asks_for(tmp_path: Path) -> None:
    program = (
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(print('orderly')))\n"
        "print('up')\ntime.sleep(600)"
    )
    with child(tmp_path, program):
        wait_for(tmp_path, "up")
    assert "orderly" in (tmp_path / "worker.log").read_text()


def test_a_child_that_ended_by_itself_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with child(tmp_path, "raise SystemExit('no space left')") as ended:
        wait_for(tmp_path, "no space left")
        with pytest.raises(DemoFailed, match=r"(?s)worker ended with 1:.*no space left"):
            check_for_long(ended)


def test_a_signal_is_noted_and_ends_the_wait() -> None:
    stop = StopSignal()
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        stop.install()
        assert stop.wait(0) is False
        signal.raise_signal(signal.SIGINT)
        assert stop.wait(600) is True
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)


def test_the_wanted_port_is_given_unless_it_is_taken() -> None:
    port = free_port()
    assert free_port(port) == port
    with socket.create_server(("127.0.0.1", port)):
        assert free_port(port) not in (0, port)
