"""schemathesis asks a served process what openapi.yaml allows and what it does not, and finds no difference."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from feedsvc import openapi
from tests.e2e.conftest import StartService
from tests.support.service import Service

ROOT = Path(__file__).parent.parent.parent
CONFIGURATION = Path(__file__).with_name("schemathesis.toml")
SHORT = os.environ.get("VERIFY_SCALE") == "short"

pytestmark = pytest.mark.verify


@pytest.fixture(scope="module")
def service(start_for_module: StartService) -> Iterator[Service]:
    service = start_for_module(allowed_origins="https://app.example")
    yield service
    service.kill()


def run(service: Service, document: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and output; 0 where every check of every operation passed, 1 where one failed."""
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "schemathesis.cli",
                f"--config-file={CONFIGURATION}",
                "run",
                str(document),
            ),
            *("--url", f"http://127.0.0.1:{service.port}", "--no-color", "--generation-database=none"),
            *arguments,
        ],
        cwd=ROOT,
        env={**os.environ, "SCHEMATHESIS_HOOKS": "tests.e2e.schemathesis_tenants"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_the_service_is_what_the_document_says(service: Service) -> None:
    """Every operation: examples, boundaries of each schema and their violations, and what is made up; 10 made-up
    requests for each operation with VERIFY_SCALE=short, else 100."""
    code, output = run(service, ROOT / "openapi.yaml", f"--max-examples={10 if SHORT else 100}")
    operations = sum(len(item) for item in openapi.document()["paths"].values())
    assert code == 0, output
    assert f"Tested: {operations}\n" in output, output
    (count,) = re.findall(r"(\d+) generated", output)
    print(f"\n{operations} operations, {count} requests, no difference")
    assert int(count) > 20 * operations
    assert "request.failed" not in service.log() and "client.failed" not in service.log()


def test_it_finds_a_document_that_is_wrong(service: Service, tmp_path: Path) -> None:
    """A value that is not listed, a status that is not there, credentials that nobody looks at."""
    document = openapi.document()
    document["components"]["schemas"]["Health"]["properties"]["status"]["enum"] = ["failing"]
    live = document["paths"]["/healthz/live"]
    live["post"] = {**live["get"], "operationId": "post"}
    document["paths"]["/metrics"]["get"]["security"] = [{"bearer": []}]
    wrong = tmp_path / "openapi.yaml"
    wrong.write_text(yaml.safe_dump(document))
    asked = ("--include-path=/healthz/live", "--include-path=/metrics")
    code, output = run(service, wrong, *asked, "--max-examples=1")
    assert code == 1, output
    for found in ("Response violates schema", "Undocumented status code", "without authentication"):
        assert found in output, output
