"""A report for people, and for programs."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from feedsvc.doctor.catalogue import CATALOGUE, ROLE_REMEDY
from feedsvc.doctor.findings import Finding, Report

_WIDTH = 110
_INDENT = " " * 10
_SUBJECTS = 4
"""Named of those that are alike."""


def as_json(report: Report) -> str:
    """One JSON document, indented; `docs/doctor.md` has its schema."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def report_schema() -> dict[str, Any]:
    """JSON Schema of what `as_json` gives."""
    return msgspec.json.schema(Report)


def as_text(report: Report) -> str:
    """A line for each finding, below it what to do, at the end the role where a right is missing, and the verdict.

    What is alike is one line: collections with the same finding, and everything that was skipped for one reason.
    """
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    names = max(len(name) for name in CATALOGUE)
    findings = [*_alike_joined(_skipped_joined(report.findings)), None]
    for finding, following in itertools.pairwise(findings):
        assert finding is not None
        about = f"{finding.subject}: " if finding.subject else ""
        head = f"{finding.status:<8}  {finding.id:<{names}}  "
        yield _wrapped(head, " " * len(head), about + finding.found)
        repeated = following is not None and (following.id, following.remedy) == (finding.id, finding.remedy)
        if finding.remedy and not repeated:
            yield _wrapped(f"{_INDENT}{'':<{names}}  -> ", f"{_INDENT}{'':<{names}}     ", finding.remedy)
    lacking = any(ROLE_REMEDY in finding.remedy for finding in report.findings)
    if lacking and report.role is not None:
        yield "\nThe role that the user of feedsvc needs, for mongosh; then grant it (docs/mongodb-role.md):\n"
        yield report.role
    counts = {
        status: sum(finding.status == status for finding in report.findings)
        for status in ("error", "warning", "skipped", "ok")
    }
    yield "\n" + ", ".join(f"{count} {status}" for status, count in counts.items())


def _skipped_joined(findings: Iterable[Finding]) -> Iterator[Finding]:
    for key, group in itertools.groupby(findings, lambda each: (each.status, each.found, each.subject)):
        same = list(group)
        if key[0] == "skipped" and len(same) > 1:
            names = ", ".join(finding.id for finding in same)
            yield msgspec.structs.replace(same[0], id="", found=f"{names}: {key[1]}")
        else:
            yield from same


def _alike_joined(findings: Iterable[Finding]) -> Iterator[Finding]:
    for _, group in itertools.groupby(findings, lambda each: (each.id, each.status, each.found, each.remedy)):
        same = list(group)
        subjects = ", ".join(finding.subject for finding in same[:_SUBJECTS])
        others = f" and {len(same) - _SUBJECTS} others" if len(same) > _SUBJECTS else ""
        yield msgspec.structs.replace(same[0], subject=subjects + others)


def _wrapped(head: str, indent: str, text: str) -> str:
    return "\n".join(
        textwrap.wrap(
            text,
            _WIDTH,
            initial_indent=head,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )
