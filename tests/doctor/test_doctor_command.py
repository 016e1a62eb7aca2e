"""`feedsvc doctor` as a command: what it prints, its exit codes, and how it ends."""

from __future__ import annotations

import json
import re
import signal
import socket
from pathlib import Path

import jsonschema_rs
import pytest

from feedsvc.cli import main
from feedsvc.doctor.show import report_schema
from tests.doctor.examining import SECRET, TOKEN_KEY, command, environment
from tests.support.engine import Engine
from tests.support.proxy import EngineProxy, Fault

WAIT_S = 30.0


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No database to ask, so that it is quick; the rest is right."""
    for name, value in environment(tmp_path, "").items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("configured")
def test_json_is_one_document_of_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 2
    out, err = capsys.readouterr()
    document = json.loads(out)
    jsonschema_rs.validate(report_schema(), document)
    assert document["exitCode"] == 2 and document["status"] == "error"
    assert document["role"].startswith('db.getSiblingDB("admin").createRole({')
    for secret in (SECRET, TOKEN_KEY):
        assert secret not in out + err


@pytest.mark.usefixtures("configured")
def test_text_says_what_to_do_below_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 2
    out, err = capsys.readouterr()
    assert err == ""
    assert re.search(r"^error +mongodb_uri +FEEDSVC_MONGODB_URI: is required", out, re.MULTILINE)
    assert re.search(r"^ +-> Set or correct FEEDSVC_MONGODB_URI, for example", out, re.MULTILINE)
    # What was skipped for one reason is one line.
    assert out.count("there is no URI to ask") <= 1 and "replica_set, server_version, clock" in out
    assert re.search(r"^\d error, \d warning, \d+ skipped, \d ok$", out, re.MULTILINE)
    # A role helps only where a right is missing.
    assert "createRole" not in out
    assert all(len(line) <= 112 for line in out.splitlines())


def test_the_role_is_printed_where_a_right_is_missing(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with EngineProxy(engine.port) as proxy:
        proxy.faults = [Fault("find", 13, collection="orders")]
        for name, value in environment(tmp_path, proxy.uri).items():
            monkeypatch.setenv(name, value)
        assert main(["doctor"]) == 1
    assert '{resource: {db: "shop", collection: "orders"}, actions: ["changeStream", "find"]}' in (
        capsys.readouterr().out
    )


def test_a_low_file_limit_is_an_error(tmp_path: Path) -> None:
    """The hard limit counts: the soft one is raised to it by `serve`."""
    environ = environment(tmp_path, "")
    with command(environ, "--json", before="ulimit -n 300;") as process:
        out, _ = process.communicate(timeout=WAIT_S)
    (finding,) = (each for each in json.loads(out)["findings"] if each["id"] == "open_files")
    assert finding["status"] == "error" and finding["found"] == "300 files: room for 0 clients"
    assert "LimitNOFILE" in finding["remedy"]


def test_ctrl_c_ends_it_at_once_and_clean(tmp_path: Path) -> None:
    """In the middle of a question that nobody answers: one line, no traceback, no half a report."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(WAIT_S)
        uri = f"mongodb://127.0.0.1:{silent.getsockname()[1]}/"
        with command(environment(tmp_path, uri)) as process:
            asked, _ = silent.accept()
            with asked:
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")
