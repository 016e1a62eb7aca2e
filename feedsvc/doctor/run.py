"""One examination: everything that the configuration allows to be asked, within a time.

The configuration comes first and costs nothing. The key server and MongoDB are asked at the same time; each question
has a time-out of its own (`questions.ANSWER_S`, `jwks_timeout_s`), and all of them together have one. What was not
reached is `skipped`, with the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from feedsvc import __version__
from feedsvc.adapters.jwt import jwt_key_problems
from feedsvc.adapters.mongo import MongoSource
from feedsvc.adapters.mongo.uri import uri_problems
from feedsvc.doctor.catalogue import CATALOGUE, OPLOG_HOURS
from feedsvc.doctor.configuration import configuration_findings, file_limit_findings
from feedsvc.doctor.deployment import DeploymentDoctor
from feedsvc.doctor.findings import Findings, Report
from feedsvc.doctor.key_server import key_server_findings
from feedsvc.doctor.questions import ANSWER_S, AT_ONCE, Questions, Silent
from feedsvc.doctor.role import role_command
from feedsvc.doctor.served import tenant_problem
from feedsvc.ports import SourceError
from feedsvc.settings import Reading, read_settings

TIMEOUT_S = 30.0
_AWAIT_S = 0.1
"""How long a stream waits for changes, of which none is expected."""
_OF_COLLECTIONS = ("change_stream", "find", "list_collections", "images")
_ALL = tuple(CATALOGUE)
_ALL_OF_MONGODB = tuple(
    name for name in CATALOGUE if name not in ("jwks", "open_files") and not CATALOGUE[name].configuration
)


class Options(msgspec.Struct, frozen=True):
    """`timeout_s` bounds all questions together; closing may take 3 s more where a server hangs. `strict`: warnings
    count as a failure. `answer_s`: what each question may take. `file_limit`: instead of this process's own."""

    tenants: tuple[str, ...] = ()
    oplog_hours: float = OPLOG_HOURS
    timeout_s: float = TIMEOUT_S
    strict: bool = False
    answer_s: float = ANSWER_S
    file_limit: int | None = None


async def diagnose(environ: Mapping[str, str], options: Options) -> Report:
    """Examine what an environment configures. Raises nothing of what it asks; a cancellation closes everything."""
    findings = Findings()
    reading = read_settings(environ, key_problems=jwt_key_problems, uri_problems=uri_problems)
    configuration_findings(findings, reading)
    file_limit_findings(findings, reading.limits, options.file_limit)
    tenants = _known_tenants(findings, reading, options)
    try:
        async with asyncio.timeout(options.timeout_s), asyncio.TaskGroup() as group:
            group.create_task(key_server_findings(findings, reading.jwt, reading.limits))
            group.create_task(_examine(findings, reading, tenants, options))
    except TimeoutError:
        # What was never looked at is not good: one error for each of the two that were asked.
        reason = f"not all was answered within {options.timeout_s:g} s (--timeout)"
        for name, last in (("jwks", "jwks"), ("mongodb_answers", _ALL_OF_MONGODB[-1])):
            if not findings.has(last):
                findings.add(name, "error", reason, subject="in the middle" if findings.has(name) else "")
        findings.skip(_ALL, reason)
    role = None if reading.policy is None else role_command(reading.policy, reading.tail_scope)
    return findings.report(__version__, role, strict=options.strict)


async def _examine(findings: Findings, reading: Reading, tenants: tuple[str, ...], options: Options) -> None:
    if reading.mongodb_uri is None:
        findings.skip(_ALL_OF_MONGODB, "there is no URI to ask")
        return
    if reading.policy is None:
        findings.skip(_OF_COLLECTIONS, "the policy cannot be read")
    uri = reading.mongodb_uri.reveal()
    source = MongoSource(
        uri,
        driver=reading.mongo_driver,
        max_streams=AT_ONCE,
        max_reads=AT_ONCE,
        await_s=_AWAIT_S,
        server_selection_s=min(options.answer_s, options.timeout_s / 2),
    )
    try:
        await source.start()
        doctor = DeploymentDoctor(
            source,
            Questions(options.answer_s),
            findings,
            reading.policy,
            reading.tail_scope,
            reading.limits,
            uri=uri,
            tenants=tenants,
            oplog_hours=options.oplog_hours,
        )
        await doctor.examine()
    except (Silent, SourceError) as error:
        findings.add("mongodb_answers", "error", str(error), subject="in the middle")
    except Exception as error:
        # The answers are somebody else's. What was found until then is worth more than a traceback.
        findings.add(
            "mongodb_answers",
            "error",
            f"an answer was not understood ({type(error).__name__})",
            subject="in the middle",
            remedy="Is it MongoDB 6.0 or later, itself? Then this is a defect of feedsvc doctor.",
        )
    finally:
        await source.close()
    if findings.has_error("mongodb_answers"):
        findings.skip(_ALL_OF_MONGODB, "MongoDB could not be asked")


def _known_tenants(findings: Findings, reading: Reading, options: Options) -> tuple[str, ...]:
    """Those of `--tenant` that can be tenants of the policy."""
    if reading.policy is None:
        return ()
    kept = []
    for tenant in options.tenants:
        problem = tenant_problem(reading.policy, tenant)
        if problem is None:
            kept.append(tenant)
        else:
            findings.add(
                "policy", "error", f"--tenant: {problem}", remedy="Give a tenant as the JWT names it."
            )
    return tuple(kept)
