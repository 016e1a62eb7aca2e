"""nginx and HAProxy of the distribution, each as a process of its own in front of some services.

The configuration is Debian's own file, where what only root may have (user, pid, logs, sockets) is moved into a
directory, and in it the blocks of docs/proxies.md with other addresses. No time-out is touched unless a test says so.
A front has the address of a service, so that clients of tests go through it.
"""

from __future__ import annotations

import contextlib
import csv
import getpass
import os
import resource
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.proxies.page import blocks, replaced
from tests.support.ports import free_port
from tests.support.service import Service

_START_WITHIN_S = 10.0
_PACKAGES = "/usr/sbin"
"""Where Debian puts both; it is not on the path of every user."""


class Front(ABC):
    """One proxy on one port. `timeouts`: directives in place of the distribution's defaults, as the proxy spells them.

    `certificate`: a PEM file with key and certificate; without one the front speaks plain HTTP.
    """

    reload_signal: signal.Signals

    def __init__(
        self,
        directory: Path,
        services: Sequence[Service],
        timeouts: Mapping[str, str] | None = None,
        certificate: Path | None = None,
    ) -> None:
        self.port = free_port()
        self._services = services
        self._timeouts = timeouts or {}
        self._certificate = certificate
        self._directory = directory / f"{type(self).__name__.lower()}-{self.port}"
        self._directory.mkdir()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/ws"

    @abstractmethod
    def _configure(self) -> Sequence[str]:
        """Write the configuration; returns the command that runs the proxy in the foreground."""

    def start(self) -> None:
        """Start and wait until it accepts. RuntimeError with its log where it does not."""
        command = self._configure()
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        deadline = time.monotonic() + _START_WITHIN_S
        while not self._accepts():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} does not start:\n{self.log()}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.02)

    def reload(self) -> None:
        """As after an edit of its configuration: new workers accept, the old ones keep what they have for a while."""
        assert self._process is not None
        self._process.send_signal(self.reload_signal)

    def stop(self) -> None:
        """SIGTERM, which closes every socket too, and in the end `kill`."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
        self.kill()

    def kill(self) -> None:
        """`kill -9` of master and workers: every socket is gone at once."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def kill_and_start(self) -> None:
        """As a crash, and what keeps it running."""
        self.kill()
        self.start()

    def log(self) -> str:
        return (self._directory / "log").read_text(errors="replace")

    def _accepts(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


class Nginx(Front):
    reload_signal = signal.SIGHUP

    def _configure(self) -> Sequence[str]:
        here = self._directory
        site, main = blocks("nginx")[:2]
        (here / "feedsvc.conf").write_text(self._site(site))
        text = Path("/etc/nginx/nginx.conf").read_text()
        text = replaced(text, r"^user .*;", f"user {getpass.getuser()};" if os.geteuid() == 0 else "")
        text = replaced(text, r"^pid .*;", f"pid {here}/pid;\ndaemon off;")
        text = replaced(text, r"^error_log .*;", "error_log stderr;")
        text = replaced(text, r"^events \{[^}]*\}", self._main(main))
        text = replaced(text, r"^\s*access_log .*;", f"\taccess_log {here}/access.log;")
        text = replaced(text, r"^\s*include /etc/nginx/sites-enabled/.*;", "")
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        inside = [f"{kind}_temp_path {here}/{kind};" for kind in kinds]
        inside += [f"{name} {value};" for name, value in self._timeouts.items() if name not in main]
        inside += [f"include {here}/feedsvc.conf;"]
        text = replaced(text, r"^\s*include /etc/nginx/conf.d/.*;", "\n".join(inside))
        (here / "nginx.conf").write_text(text)
        return [f"{_PACKAGES}/nginx", "-e", "stderr", "-c", str(here / "nginx.conf")]

    def _main(self, text: str) -> str:
        for name, value in self._timeouts.items():
            if name in text:
                text = replaced(text, rf"^{name} .*;", f"{name} {value};")
        return text

    def _site(self, text: str) -> str:
        servers = "".join(f"    server 127.0.0.1:{service.port} max_fails=0;\n" for service in self._services)
        text = replaced(text, r"(^    server 10\..* max_fails=0;\n)+", servers)
        if self._certificate is None:
            text = replaced(text, r"^ +ssl_.*\n", "")
            return replaced(text, r"listen 443 ssl http2;", f"listen 127.0.0.1:{self.port};")
        text = replaced(text, r"/etc/ssl/feedsvc/\w+.pem", str(self._certificate))
        return replaced(text, r"listen 443 ssl http2;", f"listen 127.0.0.1:{self.port} ssl http2;")


class HAProxy(Front):
    reload_signal = signal.SIGUSR2

    def _configure(self) -> Sequence[str]:
        here = self._directory
        in_global, block = blocks("haproxy")
        text = Path("/etc/haproxy/haproxy.cfg").read_text()
        text = replaced(text, r"^\s*(log /dev/log|chroot|user|group|daemon)\b.*$", "")
        text = replaced(text, r"^global\n", f"global\n{in_global}")
        text = replaced(text, r"stats socket \S+", f"stats socket {here}/admin.sock")
        text = replaced(text, r"^\s*log\s+global$", "")
        for name, value in self._timeouts.items():
            if name in text:
                text = replaced(text, rf"{name}\s.*", f"{name} {value}")
        (here / "haproxy.cfg").write_text(text + self._block(block))
        return [f"{_PACKAGES}/haproxy", "-W", "-f", str(here / "haproxy.cfg")]

    def up(self) -> list[bool]:
        """Of each service, in their order: whether its health check passes, and it gets new connections."""
        with socket.socket(socket.AF_UNIX) as admin:
            admin.connect(str(self._directory / "admin.sock"))
            admin.sendall(b"show stat\n")
            page = b"".join(iter(lambda: admin.recv(65_536), b"")).decode()
        rows = list(csv.DictReader(page.removeprefix("# ").splitlines()))
        states = {row["svname"]: row["status"] for row in rows if row["pxname"] == "feedsvc"}
        return [states[f"s{index}"].startswith("UP") for index in range(len(self._services))]

    def wait_for(self, index: int, up: bool, within_s: float) -> None:
        """Until a service is up, or down. AssertionError where that takes longer."""
        process, deadline = self._process, time.monotonic() + within_s
        assert process is not None
        while self.up()[index] is not up:
            assert time.monotonic() < deadline, self.log()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)

    def _block(self, text: str) -> str:
        servers = "".join(
            f"    server s{index} 127.0.0.1:{service.port}\n" for index, service in enumerate(self._services)
        )
        text = replaced(text, r"(^    server \w+ +10\..*\n)+", servers)
        certified = "" if self._certificate is None else f" ssl crt {self._certificate} alpn h2,http/1.1"
        return replaced(text, r"bind :443 ssl crt \S+ alpn \S+", f"bind 127.0.0.1:{self.port}{certified}")


FRONTS: tuple[type[Front], ...] = (Nginx, HAProxy)


@contextlib.contextmanager
def running(*fronts: Front) -> Iterator[None]:
    """Start them, and end them whatever happens."""
    try:
        for front in fronts:
            front.start()
        yield
    finally:
        for front in fronts:
            front.stop()


@contextlib.contextmanager
def many_files() -> Iterator[None]:
    """Room for some thousand sockets in this process and in what it starts: the soft limit is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
