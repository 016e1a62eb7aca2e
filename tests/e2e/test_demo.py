"""`feedsvc demo` as a newcomer meets it: a process, its output, and what it leaves behind (nothing)."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.support.frames import received

ROOT = Path(__file__).parents[2]
LAST_LINE = "Health and metrics"
PATIENCE_S = 30

StartDemo = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start_demo(tmp_path: Path) -> Iterator[StartDemo]:
    """Starts the demo with a TMPDIR of its own; at the end nothing of it is left, neither there nor running."""
    started: list[subprocess.Popen[str]] = []
    temporary = tmp_path / "tmp"
    temporary.mkdir()

    def start(*options: str, python: str = sys.executable, **variables: str) -> subprocess.Popen[str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FEEDSVC_")}
        process = subprocess.Popen(
            [python, "-m", "feedsvc", "demo", *options],
            cwd=ROOT,
            env={**inherited, "TMPDIR": str(temporary), "FEEDSVC_PORT": "0", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=PATIENCE_S)
    assert list(temporary.iterdir()) == []
    processes = subprocess.run(["ps", "axww", "-o", "command"], capture_output=True, text=True, check=True)
    assert str(temporary) not in processes.stdout


def read_until(process: subprocess.Popen[str], start: str) -> list[str]:
    """The lines of stdout up to one that begins so; what stderr says where it never comes."""
    assert process.stdout is not None and process.stderr is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if line.startswith(start):
            return lines
    raise AssertionError(f"the demo ended without {start!r}:\n{process.stderr.read()}")


def printed(lines: list[str]) -> tuple[str, list[str]]:
    """The URL of the printed command, and the printed frames."""
    (command,) = (line for line in lines if " -m websockets " in line)
    return command.split()[-1], [line for line in lines if line.startswith("{")]


def receive(client: ClientConnection, wanted: str) -> dict[str, Any]:
    """The next frame of a type; what comes before it is passed over."""
    while True:
        frame = received(client.recv(timeout=PATIENCE_S))
        assert frame["type"] != "error", frame
        if frame["type"] == wanted:
            return frame


def metrics_page(url: str) -> dict[str, float]:
    """The series of `/metrics` on the service behind the URL of its feed."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_S)
    connection.request("GET", "/metrics")
    response = connection.getresponse()
    assert response.status == 200
    lines = response.read().decode().splitlines()
    connection.close()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
    }


def test_what_is_printed_works_when_pasted_and_ctrl_c_ends_it(start_demo: StartDemo) -> None:
    process = start_demo("--seconds", "90")
    url, (auth, subscribe, resume) = printed(read_until(process, LAST_LINE))
    with connect(url) as client:
        client.send(auth)
        client.send(subscribe)
        assert receive(client, "welcome")["server"].startswith("feedsvc/")
        assert receive(client, "subscribed")["fidelity"] == {"membership": "exact", "deletes": True}
        event = receive(client, "event")["event"]
        while "fullDocument" not in event:
            event = receive(client, "event")["event"]
        assert event["fullDocument"]["tenantId"] == "acme" and "cost" not in event["fullDocument"]
    with connect(url) as client:
        client.send(auth)
        client.send(resume.replace("TOKEN", event["_id"]))
        subscribed = receive(client, "subscribed")
        assert subscribed["resumed"] is True and subscribed["token"] == event["_id"]
        assert receive(client, "event")["event"]["_id"] != event["_id"]
        page = metrics_page(url)
        assert page["feedsvc_connections"] == page["feedsvc_subscriptions"] == page["feedsvc_tails"] == 1
        assert page['feedsvc_changes_read_total{level="collection"}'] > 1
        assert page["feedsvc_sent_bytes_total"] > page["feedsvc_frames_sent_total"] > 1
        assert page["feedsvc_metric_mistakes_total"] == 0
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (0, "")
    assert "The demo has ended." in out


def test_it_ends_by_itself_after_the_given_seconds(start_demo: StartDemo) -> None:
    process = start_demo("--seconds", "1")
    _, err = process.communicate(timeout=2 * PATIENCE_S)
    assert (process.returncode, err) == (0, "")


def test_a_signal_while_it_starts_ends_it_too(start_demo: StartDemo) -> None:
    process = start_demo()
    read_until(process, "Starting")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (0, "")
    assert LAST_LINE not in out


def test_a_taken_port_is_said_and_another_one_used(start_demo: StartDemo) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start_demo(FEEDSVC_PORT=str(port))
        lines = read_until(process, LAST_LINE)
    url, _ = printed(lines)
    assert any(line.startswith(f"Port {port} is taken") for line in lines)
    assert f":{port}/" not in url


def test_a_failure_behind_the_start_of_the_database_leaves_nothing(start_demo: StartDemo) -> None:
    process = start_demo(FEEDSVC_PORT="99999")
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert err == "feedsvc demo: FEEDSVC_PORT must be a number up to 65535\n"


def test_without_the_embedded_database_it_says_what_to_install(start_demo: StartDemo, tmp_path: Path) -> None:
    """The engine is looked for beside the interpreter; this one lies alone in a directory."""
    python = tmp_path / "python3"
    python.symlink_to(Path(sys.executable).resolve())
    process = start_demo(python=str(python), PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "pip install 'feedsvc[embedded]'" in err and "Traceback" not in err


def test_a_uri_of_your_own_is_used_in_place_of_the_embedded_database(
    start_demo: StartDemo, mongodb_uri: str
) -> None:
    process = start_demo("--seconds", "1", FEEDSVC_MONGODB_URI=mongodb_uri)
    out, err = process.communicate(timeout=2 * PATIENCE_S)
    assert (process.returncode, err) == (0, "")
    assert "embedded" not in out and LAST_LINE in out


def test_a_uri_that_cannot_be_used_is_not_repeated(start_demo: StartDemo) -> None:
    process = start_demo(FEEDSVC_MONGODB_URI="mongodb://app:hunter22@/x/y")
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "FEEDSVC_MONGODB_URI" in err and "hunter22" not in err and "Traceback" not in err
