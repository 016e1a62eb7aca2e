"""Real users with real roles on the embedded engine: the role that the doctor prints is enough, and less is not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from feedsvc.core.policy import Policy
from feedsvc.doctor.role import Privilege, privileges
from feedsvc.settings.policy_file import parse_policy_file
from tests.doctor.examining import POLICY, environment, errors, examine, one
from tests.support.engine import Engine

pytestmark = pytest.mark.verify

ROLES: Mapping[str, Sequence[str]] = {
    "enough": (),
    "blind": ("listCollections",),
    "deaf": ("find", "changeStream"),
    "timeless": ("local",),
}
"""Users, and what is taken out of the role of each."""


def policy() -> Policy:
    return parse_policy_file(POLICY.format(database="shop").encode())


def command_document(role: str, granted: Sequence[Privilege]) -> dict[str, Any]:
    resources = [
        {"cluster": True}
        if privilege.database is None
        else {"db": privilege.database, "collection": privilege.collection}
        for privilege in granted
    ]
    return {
        "createRole": role,
        "privileges": [
            {"resource": resource, "actions": list(privilege.actions)}
            for resource, privilege in zip(resources, granted, strict=True)
        ],
        "roles": [],
    }


def without(taken: Sequence[str]) -> list[Privilege]:
    kept = []
    for privilege in privileges(policy(), "collection"):
        actions = tuple(action for action in privilege.actions if action not in taken)
        if actions and privilege.database not in taken:
            kept.append(Privilege(privilege.database, privilege.collection, actions))
    return kept


@pytest.fixture(scope="module")
def guarded() -> Iterator[Engine]:
    engine = Engine(sync_on_commit=False).start()
    engine.client["shop"].create_collection("orders", changeStreamPreAndPostImages={"enabled": True})
    for user, taken in ROLES.items():
        engine.client.admin.command(command_document(user, without(taken)))
        engine.client.admin.command("createUser", user, pwd="hush", roles=[user])
    engine.client.admin.command("createUser", "reader", pwd="hush", roles=[{"role": "read", "db": "shop"}])
    engine.require_users()
    yield engine
    engine.stop()


def uri(engine: Engine, user: str, password: str = "hush") -> str:
    return engine.uri.replace("mongodb://", f"mongodb://{user}:{password}@")


@pytest.mark.parametrize(
    ("user", "wrong", "warned"),
    [
        ("enough", set(), set()),
        ("reader", set(), {"oplog_window"}),
        ("blind", {"list_collections"}, set()),
        ("deaf", {"change_stream", "find"}, {"oplog_window"}),
        ("timeless", set(), {"oplog_window"}),
    ],
)
async def test_each_right_that_is_missing_has_its_finding(
    guarded: Engine, tmp_path: Path, user: str, wrong: set[str], warned: set[str]
) -> None:
    """`reader` has MongoDB's own role `read` on the database, and nothing else."""
    report = await examine(environment(tmp_path, uri(guarded, user)), oplog_hours=0)
    assert errors(report) == wrong
    found = {finding.id for finding in report.findings if finding.status == "warning"}
    assert found - {"open_files", "image_expiry"} == warned
    assert one(report, "mongodb_answers").found == "a server answers, takes the user"
    assert report.exit_code == (1 if wrong else 0)
    print(f"{user}: errors {sorted(wrong)}, warnings {sorted(warned)}")


@pytest.mark.parametrize("user", ["enough", "nobody"])
async def test_a_wrong_password(guarded: Engine, tmp_path: Path, user: str) -> None:
    report = await examine(environment(tmp_path, uri(guarded, user, "hush-hush")))
    finding = one(report, "mongodb_answers")
    assert errors(report) == {"mongodb_answers"} and "does not take the user" in finding.found
    assert "authSource" in finding.remedy


async def test_no_user_where_one_is_needed(guarded: Engine, tmp_path: Path) -> None:
    report = await examine(environment(tmp_path, guarded.uri))
    assert report.exit_code == 1 and errors(report) == {"mongodb_answers"}
    assert "Name a user in the URI" in one(report, "mongodb_answers").remedy
