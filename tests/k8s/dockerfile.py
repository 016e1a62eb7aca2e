"""The Dockerfile as its instructions, and its steps carried out in a directory where no container engine is."""

from __future__ import annotations

import fnmatch
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.k8s.built import ROOT

DOCKERFILE = ROOT / "Dockerfile"
Instruction = tuple[str, str]


def instructions() -> list[Instruction]:
    """(name, arguments), continued lines joined, comments left out."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    found = (line.strip().partition(" ") for line in joined.splitlines() if line.strip())
    return [(name, " ".join(rest.split())) for name, _, rest in found]


def stages() -> list[list[Instruction]]:
    """The instructions of each FROM, itself first; what stands before the first is left out."""
    found: list[list[Instruction]] = []
    for name, rest in instructions():
        if name == "FROM":
            found.append([])
        if found:
            found[-1].append((name, rest))
    return found


def values(stage: list[Instruction], name: str) -> list[str]:
    return [rest for each, rest in stage if each == name]


def environment_of(stage: list[Instruction]) -> dict[str, str]:
    pairs = (pair.partition("=") for line in values(stage, "ENV") for pair in shlex.split(line))
    return {name: value for name, _, value in pairs}


def in_context() -> list[Path]:
    """What `docker build` would send: .dockerignore denies everything and then admits some names."""
    admitted, refused = [], []
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line.startswith("!"):
            admitted.append(line[1:])
        elif line and not line.startswith("#"):
            refused.append(line)
    assert refused[0] == "*"
    names = [name.removeprefix("**/") for name in refused[1:]]
    return [
        path
        for name in admitted
        for path in ([ROOT / name] if (ROOT / name).is_file() else sorted((ROOT / name).rglob("*")))
        if path.is_file() and not any(fnmatch.fnmatch(part, each) for part in path.parts for each in names)
    ]


class Build:
    """The RUN and COPY of the first stage, with `root` in the place of `/` for what they write to.

    `python` is the interpreter of the base image. RUN lines are what Docker would run, but for the paths.
    """

    def __init__(self, root: Path, python: str) -> None:
        self.root = root
        self._programs = root / "programs"
        self._programs.mkdir()
        (self._programs / "python").symlink_to(python)
        self._directory = root
        self._stage = stages()[0]

    def run(self) -> None:
        for name, rest in self._stage:
            if name == "WORKDIR":
                self._directory = self.root / rest.lstrip("/")
                self._directory.mkdir(parents=True)
            elif name == "COPY":
                self._copy(*rest.split())
            elif name == "RUN":
                self._shell(re.sub(r"--mount=\S+ ", "", rest))

    def path_variable(self, stage: list[Instruction]) -> str:
        """PATH of a container of `stage`, with what the image's own has left out but for `/usr/bin`."""
        first, _, _ = environment_of(stage)["PATH"].partition(":")
        return f"{self.root}{first}:/usr/bin:/bin"

    def _copy(self, *names: str) -> None:
        *sources, target = names
        for source in sources:
            for path in in_context():
                inside = path.relative_to(ROOT)
                if inside.parts[0] == source:
                    where = (
                        self._directory
                        / target
                        / (inside if len(sources) > 1 or target == "./" else Path(*inside.parts[1:]))
                    )
                    where.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, where)

    def _shell(self, line: str) -> None:
        command = re.sub(r"(?<=\s)/(opt|dist)", rf"{self.root}/\1", f" {line}")
        done = subprocess.run(
            ["/bin/sh", "-ec", command],
            cwd=self._directory,
            env=self._environment(),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _environment(self) -> Mapping[str, str]:
        return {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("PYTHON", "VIRTUAL"))
            },
            **environment_of(self._stage),
            "PATH": f"{self._programs}:/usr/bin:/bin",
        }


def host_names(text: str) -> Iterator[str]:
    yield from re.findall(r"https?://[^/\s]+", text)
