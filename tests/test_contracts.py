"""The import contracts hold, and each of them fails when the import it forbids is added.

A contract that was misspelt is kept by every package, so this file breaks them one by one in a copy.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parent.parent
LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")

CORE_MAY_IMPORT = {
    # the pure part of the standard library
    *(
        "__future__",
        "abc",
        "collections",
        "copy",
        "dataclasses",
        "enum",
        "functools",
        "itertools",
        "operator",
    ),
    *("contextlib", "heapq", "bisect", "array", "types", "typing", "numbers", "math", "decimal", "fractions"),
    "zlib",  # compression is a function of bytes
    *("base64", "binascii", "hashlib", "hmac", "struct", "json", "re", "string", "unicodedata", "urllib"),
    *("datetime", "ipaddress", "uuid"),
    # what architecture.md grants
    *("bson", "msgspec", "cryptography", "re2"),
}
"""A new name is a decision, not an accident."""


@pytest.fixture
def copied_project(tmp_path: Path) -> Path:
    """A directory with pyproject.toml and a copy of the package."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "feedsvc", tmp_path / "feedsvc", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def lint_imports(project: Path) -> tuple[int, str]:
    """Exit code and output of lint-imports on a copy."""
    environment = {**os.environ, "PYTHONPATH": str(project), "NO_COLOR": "1", "COLUMNS": "400"}
    done = subprocess.run(
        [LINT_IMPORTS, "--no-cache", "--config", "pyproject.toml"],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def add_import(project: Path, module: str, imported: str) -> None:
    """Let `module` import `imported`; what of ours does not exist yet is made, empty."""
    ours = imported.split(".")[0] == "feedsvc"
    for name in (module, imported) if ours else (module,):
        source_file(project, name).touch()
    with source_file(project, module).open("a", encoding="utf-8") as source:
        source.write(f"\nimport {imported}\n")


def source_file(project: Path, module: str) -> Path:
    """Where a module is or would be; its packages exist afterwards."""
    directory = project
    *packages, name = module.split(".")
    for package in packages:
        directory /= package
        directory.mkdir(exist_ok=True)
        (directory / "__init__.py").touch()
    if (directory / name).is_dir():
        return directory / name / "__init__.py"
    return directory / f"{name}.py"


def test_the_package_as_it_is_keeps_all_contracts(copied_project: Path) -> None:
    code, output = lint_imports(copied_project)
    assert code == 0, output
    assert "0 broken" in output


@pytest.mark.parametrize(
    ("module", "imported", "contract"),
    [
        ("feedsvc.core.positions", "asyncio", "core purity"),
        ("feedsvc.core.changes", "time", "core purity"),
        ("feedsvc.core.filters", "pymongo", "core purity"),
        ("feedsvc.core.errors", "feedsvc.ports", "layers"),
        ("feedsvc.ports", "feedsvc.runtime.hub", "layers"),
        ("feedsvc.runtime.hub", "feedsvc.adapters.mongo", "layers"),
        ("feedsvc.runtime.hub", "feedsvc.settings", "layers"),
        ("feedsvc.adapters.web.ws", "feedsvc.testing", "layers"),
        ("feedsvc.surprise", "json", "layers"),
        ("feedsvc.adapters.mongo.stream", "feedsvc.runtime.hub", "ports only"),
        ("feedsvc.testing", "feedsvc.runtime.hub", "ports only"),
        ("feedsvc.adapters.web.ws", "feedsvc.adapters.mongo.stream", "adapters"),
        ("feedsvc.adapters.jwt.jwks", "feedsvc.adapters.telemetry.metrics", "adapters"),
        ("feedsvc.runtime.hub", "orjson", "runtime purity"),
        ("feedsvc.app", "pymongo", "one owner: pymongo"),
        ("feedsvc.cli", "jwt", "one owner: PyJWT"),
        ("feedsvc.core.positions", "cryptography", "one owner: cryptography"),
        ("feedsvc.core.topics", "re2", "one owner: the regex engine"),
        ("feedsvc.core.filters.parse", "re2", "one owner: the regex engine"),
        ("feedsvc.runtime.hub", "structlog", "one owner: prometheus_client, structlog and opentelemetry"),
        ("feedsvc.runtime.hub", "starlette", "one owner: starlette"),
        ("feedsvc.cli", "websockets", "one owner: websockets"),
        ("feedsvc.app", "yaml", "one owner: YAML"),
    ],
)
def test_a_forbidden_import_breaks_its_contract(
    copied_project: Path, module: str, imported: str, contract: str
) -> None:
    add_import(copied_project, module, imported)
    code, output = lint_imports(copied_project)
    broken = [line for line in output.splitlines() if line.startswith(contract) and "BROKEN" in line]
    assert code == 1, output
    assert broken, output


def test_core_imports_nothing_outside_its_list() -> None:
    """The contract names what is forbidden; this names what is allowed, so that nothing slips between."""
    graph = grimp.build_graph("feedsvc", include_external_packages=True, cache_dir=None)
    core = {"feedsvc.core", *graph.find_descendants("feedsvc.core")}
    imported = {target for module in core for target in graph.find_modules_directly_imported_by(module)}
    assert {name for name in imported if name not in core} <= CORE_MAY_IMPORT


@pytest.mark.parametrize("library", ["cryptography", "re2"])
def test_engines_of_core_live_in_one_module_each(library: str) -> None:
    graph = grimp.build_graph("feedsvc", include_external_packages=True, cache_dir=None)
    importers = graph.find_modules_that_directly_import(library) if library in graph.modules else set()
    assert len([module for module in importers if module.startswith("feedsvc.core")]) <= 1
