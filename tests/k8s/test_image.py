"""The image: linted, locked, its entry point the server itself; and its steps and its command, without an engine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.k8s.built import OVERLAYS, ROOT, Manifests
from tests.k8s.dockerfile import DOCKERFILE, Build, environment_of, host_names, in_context, stages, values
from tests.k8s.rules import settings_of
from tests.support.engine import Engine
from tests.support.processes import (
    catches_sigterm,
    children,
    may_unshare,
    number_in_its_namespace,
    root_is_read_only,
    state,
)
from tests.support.service import Service, client_of

LOCKS = ("requirements.lock", "requirements-build.lock")


def test_hadolint_has_nothing_to_say() -> None:
    own = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([own, "--no-color", DOCKERFILE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_pid_1_is_the_server() -> None:
    """DEP-05: exec form, no shell in between, and no manifest that puts one there."""
    final = stages()[-1]
    (entry,), (command,) = values(final, "ENTRYPOINT"), values(final, "CMD")
    assert json.loads(entry) + json.loads(command) == ["feedsvc", "serve"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"feedsvc": "feedsvc.cli:main"}
    assert values(final, "STOPSIGNAL") == ["SIGTERM"]
    for overlay in OVERLAYS:
        assert not Manifests(overlay).container.keys() & {"command", "args"}


def test_user_and_port_are_those_of_the_manifests() -> None:
    final = stages()[-1]
    (user,), (port,) = values(final, "USER"), values(final, "EXPOSE")
    for overlay in OVERLAYS:
        manifests = Manifests(overlay)
        context = manifests.pod["securityContext"]
        assert user == f"{context['runAsUser']}:{context['runAsGroup']}"
        assert int(port) == settings_of(manifests).port


def test_nothing_is_installed_that_is_not_locked() -> None:
    """Whatever may ask an index asks with hashes; no host is named; the last stage installs nothing."""
    build, final = stages()
    assert values(final, "RUN") == []
    for line in values(build, "RUN"):
        for step in line.split("&&"):
            if "pip install" in step:
                assert "--require-hashes" in step or "--no-index" in step
            if "pip wheel" in step:
                assert "--no-deps" in step and "--no-build-isolation" in step
    assert list(host_names(DOCKERFILE.read_text())) == []
    for name in LOCKS:
        text = (ROOT / name).read_text()
        assert list(host_names(text)) == []
        pinned = re.findall(r"^[a-zA-Z0-9._-]+==", text, re.MULTILINE)
        assert pinned
        assert len(pinned) == len(re.findall(r"^[a-zA-Z]", text, re.MULTILINE))
        assert text.count("--hash=sha256:") >= len(pinned)


def test_both_stages_start_from_one_tag() -> None:
    first, second = (values(stage, "FROM")[0].split()[0] for stage in stages())
    assert first == second
    assert re.search(r"^ARG PYTHON=\d+\.\d+-slim-\w+$", DOCKERFILE.read_text(), re.MULTILINE)


def test_the_context_holds_what_is_copied_and_nothing_else() -> None:
    names = {path.relative_to(ROOT).parts[0] for path in in_context()}
    copied = {
        name
        for line in values(stages()[0], "COPY")
        for name in line.split()[:-1]
        if not name.startswith("--")
    }
    assert names == copied
    assert not any("__pycache__" in path.parts for path in in_context())


# -- the steps and the command, carried out ----------------------------------------------------------------

UID = 10001
DRAIN_S = 1.0


def interpreter() -> str:
    """One that any user may run: that of this environment may lie in somebody's home."""
    system = "/usr/bin/python3"
    fits = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))"
    if os.path.exists(system) and subprocess.run([system, "-c", fits], capture_output=True).returncode == 0:
        return system
    return os.path.realpath(sys.executable)


@pytest.fixture(scope="module")
def built() -> Iterator[Build]:
    directory = Path(tempfile.mkdtemp(prefix="feedsvc-image-"))
    directory.chmod(0o755)
    build = Build(directory, interpreter())
    build.run()
    yield build
    shutil.rmtree(directory)


@pytest.mark.verify
def test_the_steps_of_the_image_install_the_program(built: Build) -> None:
    """With another base than the image's: the machine's own Python, and no engine."""
    command = [str(built.root / "opt/feedsvc/bin/feedsvc"), "--version"]
    version = subprocess.run(command, capture_output=True, text=True, env={"PATH": "/usr/bin"}).stdout
    size = sum(path.stat().st_size for path in (built.root / "opt/feedsvc").rglob("*") if path.is_file())
    files = {path.name for path in (built.root / "opt/feedsvc").rglob("*") if path.is_file()}
    print(f"\n{version.strip()}, {size / 2**20:.0f} MiB in /opt/feedsvc, by {interpreter()}")
    assert {"openapi.yaml", "py.typed"} <= files
    assert not (built.root / "opt/feedsvc/bin/pip").exists()


@pytest.mark.verify
async def test_the_command_of_the_image_runs_and_ends_as_in_a_container(
    built: Build, engine: Engine, tmp_path: Path, fresh_database: str
) -> None:
    """DEP-05: PID 1, a user without a name, no capability, no new privileges, a root that cannot be written to."""
    final = stages()[-1]
    command = [*json.loads(values(final, "ENTRYPOINT")[0]), *json.loads(values(final, "CMD")[0])]
    confined = may_unshare() and os.geteuid() == 0
    wrapper: tuple[str, ...] = ()
    if confined:
        # A read-only view of every file system, in a mount and a PID namespace of their own.
        inside = 'mount --bind / / && mount -o remount,ro,bind / && exec "$@"'
        drop = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--bounding-set=-all",
                "--inh-caps=-all", "--no-new-privs")  # fmt: skip
        wrapper = ("unshare", "--pid", "--fork", "--mount", "--mount-proc", "sh", "-ec", inside, "sh", *drop)
    else:
        print("no right to make namespaces: the command runs unconfined, as the leader of a session")
    service = Service(engine.uri, tmp_path, drain=str(DRAIN_S), wrapper=wrapper, command=command)
    service.environment = (
        {name: value for name, value in service.environment.items() if name.startswith("FEEDSVC_")}
        | environment_of(final)
        | {"PATH": built.path_variable(final)}
    )
    for directory in (tmp_path, *tmp_path.parents[:-2]):
        directory.chmod(directory.stat().st_mode | 0o055)
    try:
        await asyncio.to_thread(service.start)
        (pid,) = children(service.pid) if confined else [service.pid]
        if confined:
            assert number_in_its_namespace(pid) == 1
            assert state(pid, "Uid").split() == [str(UID)] * 4
            assert int(state(pid, "CapEff"), 16) == int(state(pid, "CapBnd"), 16) == 0
            assert state(pid, "NoNewPrivs") == "1"
            assert root_is_read_only(pid)
        assert catches_sigterm(pid)
        async with client_of(service, fresh_database) as client:
            await client.subscribe("orders")
            began = time.monotonic()
            os.kill(pid, signal.SIGTERM)
            assert (await client.closed())[0] == 4200
        assert await asyncio.to_thread(service.wait) == 0
        took_s = time.monotonic() - began
        assert "service.draining" in service.log() and "service.stopped" in service.log()
        assert "Traceback" not in service.log()
        print(f"\n{' '.join(command)}, {'confined' if confined else 'unconfined'}: out in {took_s:.1f} s")
        assert took_s < DRAIN_S + 9
    finally:
        service.kill()
