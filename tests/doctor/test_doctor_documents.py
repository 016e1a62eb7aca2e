"""`docs/doctor.md` and `docs/mongodb-role.md` say what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Literal

import pytest

from feedsvc.doctor.catalogue import CATALOGUE, findings_table
from feedsvc.doctor.role import privileges, role_command
from feedsvc.doctor.show import report_schema
from feedsvc.settings.policy_file import parse_policy_file

DOCUMENTS = Path(__file__).parents[2] / "docs"
DOCTOR = (DOCUMENTS / "doctor.md").read_text()
ROLE = (DOCUMENTS / "mongodb-role.md").read_text()
PAIRS = re.findall(r"```yaml\n(.*?)\n```\n\n```javascript\n(.*?)\n```", ROLE, re.DOTALL)
LEVELS: tuple[Literal["collection", "database", "deployment"], ...] = (
    "collection",
    "collection",
    "deployment",
    "collection",
)


def test_each_finding_is_in_the_page_with_what_to_do() -> None:
    """Verbatim; to change the table, change the catalogue."""
    assert findings_table() in DOCTOR
    for name, entry in CATALOGUE.items():
        assert entry.looks_at and entry.remedy, name
        assert entry.warning or entry.error, name
        # A cell of the table.
        assert "|" not in entry.looks_at + entry.warning + entry.error + entry.remedy, name


def test_the_schema_is_in_the_page() -> None:
    (block,) = re.findall(r"```json\n(.*?)\n```", DOCTOR, re.DOTALL)
    assert json.loads(block) == report_schema()


@pytest.mark.parametrize(("pair", "level"), list(zip(PAIRS, LEVELS, strict=True)))
def test_each_role_of_the_page_is_what_is_printed(
    pair: tuple[str, str], level: Literal["collection", "database", "deployment"]
) -> None:
    policy = parse_policy_file(pair[0].encode())
    assert role_command(policy, level) == pair[1]
    for privilege in privileges(policy, level):
        for action in privilege.actions:
            assert f"`{action}`" in ROLE


def test_a_database_of_its_own_needs_no_right_beside_it() -> None:
    """Least privilege: with a fixed database, only a stream of the deployment reaches beyond it."""
    policy = parse_policy_file(PAIRS[0][0].encode())
    for level in ("collection", "database"):
        databases = {privilege.database for privilege in privileges(policy, level)}
        assert databases == {policy.database, "local", None}
    named = [privilege for privilege in privileges(policy, "collection") if "find" in privilege.actions]
    assert {privilege.collection for privilege in named} == {*policy.rules, "oplog.rs"}
    assert any(privilege.database == "" for privilege in privileges(policy, "deployment"))
