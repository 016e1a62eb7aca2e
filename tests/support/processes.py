"""What the kernel says about a process, and a namespace in which it is PID 1."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc")


def may_unshare() -> bool:
    try:
        return subprocess.run([*UNSHARE, "true"], capture_output=True, timeout=10).returncode == 0
    except FileNotFoundError:
        return False


def children(pid: int) -> list[int]:
    """The children of a process, as the kernel lists them for each of its threads."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (thread / "children").read_text().split())
    return found


def exists(pid: int) -> bool:
    """Zombies do."""
    return Path(f"/proc/{pid}").exists()


def catches_sigterm(pid: int) -> bool:
    return bool(int(state(pid, "SigCgt"), 16) >> (signal.SIGTERM - 1) & 1)


def number_in_its_namespace(pid: int) -> int:
    return int(state(pid, "NSpid").split()[-1])


def state(pid: int, name: str) -> str:
    """A line of `/proc/PID/status` behind its name, such as `Uid` or `CapEff`."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (found,) = (line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:"))
    return found


def root_is_read_only(pid: int) -> bool:
    """Whether the process can write nothing below `/`, as its mount namespace has it."""
    return " / / ro" in Path(f"/proc/{pid}/mountinfo").read_text()
