"""The role that the service's user needs in MongoDB, and nothing more, for one policy and one tail scope.

Sources: MongoDB manual, "Change Streams" (access control) and "Resource Document": an empty `db` or `collection` stands
for every database, or every collection but the system's.
"""

from __future__ import annotations

import json

import msgspec

from feedsvc.core.changes import ScopeLevel
from feedsvc.core.policy import Policy
from feedsvc.core.policy_parser import WILDCARD

ROLE = "feedsvc"


class Privilege(msgspec.Struct, frozen=True):
    """`database` None is the cluster as a resource of its own."""

    database: str | None
    collection: str
    actions: tuple[str, ...]


def privileges(policy: Policy, level: ScopeLevel) -> list[Privilege]:
    """All that is needed: streams and look-ups, snapshots, images and their expiry, the oplog's window."""
    database = "" if policy.tenant_in_database else policy.database
    watched = "" if level == "deployment" else database
    each = sorted(name for name in policy.rules if name != WILDCARD)
    if level != "collection" or WILDCARD in policy.rules:
        needed = [Privilege(watched, "", ("changeStream", "find", "listCollections"))]
    else:
        needed = [Privilege(database, name, ("changeStream", "find")) for name in each]
        needed.append(Privilege(database, "", ("listCollections",)))
    needed.append(Privilege("local", "oplog.rs", ("find",)))
    needed.append(Privilege(None, "", ("getClusterParameter",)))
    return needed


def role_command(policy: Policy, level: ScopeLevel) -> str:
    """The role as a command for `mongosh`. It is made in `admin`, where a role may name any database."""
    rows = [f"    {_shown(privilege)}" for privilege in privileges(policy, level)]
    return (
        'db.getSiblingDB("admin").createRole({\n'
        f"  role: {json.dumps(ROLE)},\n"
        "  privileges: [\n" + ",\n".join(rows) + "\n  ],\n"
        "  roles: []\n"
        "})"
    )


def _shown(privilege: Privilege) -> str:
    actions = ", ".join(json.dumps(action) for action in privilege.actions)
    if privilege.database is None:
        resource = "{cluster: true}"
    else:
        resource = f"{{db: {json.dumps(privilege.database)}, collection: {json.dumps(privilege.collection)}}}"
    return f"{{resource: {resource}, actions: [{actions}]}}"
