"""An environment for the doctor, and its report."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from feedsvc.doctor import Options, Report, diagnose
from feedsvc.doctor.catalogue import CATALOGUE
from feedsvc.doctor.findings import Finding
from tests.support.engine import forget_driver_sockets

SECRET = "hush-0123456789-hush-abcdefghijklmnop"
TOKEN_KEY = base64.urlsafe_b64encode(bytes(range(32))).decode()
POLICY = """
tenant: {{claim: tenant, database: {database}}}
collections:
  orders: {{filter: {{tenantId: "{{tenant}}"}}, fields: {{cost: 0}}}}
"""


def environment(
    directory: Path, uri: str, database: str = "shop", policy: str = POLICY, **variables: str
) -> dict[str, str]:
    """All that `serve` needs, without a warning. Variables by keyword: `max_tails="1"` is FEEDSVC_MAX_TAILS."""
    path = directory / "policy.yaml"
    path.write_text(policy.format(database=database))
    return {
        "FEEDSVC_MONGODB_URI": uri,
        "FEEDSVC_POLICY": str(path),
        "FEEDSVC_JWT_SECRET": SECRET,
        "FEEDSVC_JWT_ISSUER": "https://issuer.example",
        "FEEDSVC_JWT_AUDIENCE": "feedsvc",
        "FEEDSVC_JWT_ALGORITHMS": "HS256",
        "FEEDSVC_TOKEN_KEYS": TOKEN_KEY,
        **{f"FEEDSVC_{name.upper()}": value for name, value in variables.items()},
    }


async def examine(environ: Mapping[str, str], **options: object) -> Report:
    """The report; each id of the catalogue is in it, and no secret is. Time is plenty: the machine may be busy."""
    usual: dict[str, object] = {"file_limit": 65_536, "answer_s": 30.0, "timeout_s": 60.0}
    report = await diagnose(environ, Options(**{**usual, **options}))  # type: ignore[arg-type]
    if "mongodb_answers" in errors(report):
        forget_driver_sockets()
    assert {finding.id for finding in report.findings} == set(CATALOGUE)
    for value in (SECRET, TOKEN_KEY, "hush"):
        assert value not in str(report)
    return report


def found(report: Report, name: str) -> Sequence[Finding]:
    return [finding for finding in report.findings if finding.id == name]


def one(report: Report, name: str) -> Finding:
    (finding,) = found(report, name)
    return finding


def errors(report: Report) -> set[str]:
    return {finding.id for finding in report.findings if finding.status == "error"}


def command(environ: Mapping[str, str], *arguments: str, before: str = "") -> subprocess.Popen[str]:
    """`feedsvc doctor` as a process, in a shell that runs `before` first."""
    line = f'{before} exec "$0" -P -m feedsvc doctor "$@"'
    return subprocess.Popen(
        ["sh", "-c", line, sys.executable, *arguments],
        env={"PATH": os.environ["PATH"], **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
