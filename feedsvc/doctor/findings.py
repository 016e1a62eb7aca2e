"""Findings, and the report that they make."""

from __future__ import annotations

from typing import Literal

import msgspec

from feedsvc.doctor.catalogue import CATALOGUE

Status = Literal["ok", "warning", "error", "skipped"]

GOOD, FAILED, WRONG = 0, 1, 2
"""Exit codes: those of the other verbs."""


class Finding(msgspec.Struct, frozen=True, rename="camel"):
    """`id` is one of the catalogue; `subject` is what it is about where there are several (a collection, a database).

    `remedy` is empty where there is nothing to do. No field holds a secret.
    """

    id: str
    status: Status
    found: str
    subject: str = ""
    remedy: str = ""


class Report(msgspec.Struct, frozen=True, rename="camel"):
    """What `--json` prints. `status` is the worst of the findings; `role` is a command for `mongosh` that makes the
    role which the user of the service needs, null where the policy cannot be read."""

    version: str
    status: Literal["ok", "warning", "error"]
    exit_code: int
    findings: tuple[Finding, ...]
    role: str | None


class Findings:
    """Collects findings; each id of the catalogue has at least one at the end."""

    def __init__(self) -> None:
        self._found: dict[str, list[Finding]] = {name: [] for name in CATALOGUE}

    def add(self, name: str, status: Status, found: str, *, subject: str = "", remedy: str = "") -> None:
        """Where there is something to do and no `remedy` is given, it is that of the catalogue."""
        if status in ("warning", "error") and not remedy:
            remedy = CATALOGUE[name].remedy
        plain = remedy.replace("`", "")  # the catalogue is Markdown
        self._found[name].append(Finding(name, status, found, subject, plain))

    def skip(self, names: tuple[str, ...], reason: str) -> None:
        """`skipped` for those that have no finding yet."""
        for name in names:
            if not self._found[name]:
                self.add(name, "skipped", reason)

    def has(self, name: str) -> bool:
        return bool(self._found[name])

    def has_error(self, name: str) -> bool:
        return any(finding.status == "error" for finding in self._found[name])

    def report(self, version: str, role: str | None, *, strict: bool) -> Report:
        """In the order of the catalogue, those of one id by subject. `strict`: warnings count as a failure."""
        by_subject = (sorted(found, key=lambda each: each.subject) for found in self._found.values())
        findings = tuple(finding for found in by_subject for finding in found)
        errors = {finding.id for finding in findings if finding.status == "error"}
        warned = any(finding.status == "warning" for finding in findings)
        if any(CATALOGUE[name].configuration for name in errors):
            exit_code = WRONG
        elif errors or (strict and warned):
            exit_code = FAILED
        else:
            exit_code = GOOD
        status: Literal["ok", "warning", "error"] = "error" if errors else "warning" if warned else "ok"
        return Report(version, status, exit_code, findings, role)
