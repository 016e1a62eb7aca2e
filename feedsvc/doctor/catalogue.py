"""What `feedsvc doctor` looks at: each id once, with what a warning and an error mean and what to do about them.

`docs/doctor.md` shows `findings_table()` verbatim, and every report has every id: what could not be looked at is
`skipped`.
"""

from __future__ import annotations

import msgspec

OPLOG_HOURS = 24.0
"""How long clients may be away, where the operator says nothing: a night, or a day of maintenance."""
SHORT_OPLOG_S = 3600
"""A full oplog that reaches less far back loses clients in an ordinary restart of theirs, or at a burst of writes."""
ROLE_REMEDY = "Give the user the role that doctor prints (docs/mongodb-role.md)."
"""The role is printed where a finding has it."""
USER_REMEDY = f"Name a user in the URI: mongodb://USER:PASSWORD@HOST/?authSource=admin. {ROLE_REMEDY}"
SKEW_WARN_S = 2.0
FEWEST_CLIENTS = 1000
"""A machine that has no room for so many sockets is not set up for the service."""


class Entry(msgspec.Struct, frozen=True):
    """`configuration`: an error of it is one that `serve` would exit for with 2."""

    looks_at: str
    warning: str
    error: str
    remedy: str
    configuration: bool = False


CATALOGUE: dict[str, Entry] = {
    "service": Entry(
        "The variables that no other finding is about: address, bounds, origins, scope, driver.",
        "a `FEEDSVC_` name that means nothing",
        "a value that cannot be used",
        "Correct the variable that is named; `docs/configuration.md` has all of them.",
        configuration=True,
    ),
    "policy": Entry(
        "The policy file, line by line.",
        "a collection that is open wider than you may want",
        "no file, or a rule that cannot be used",
        "Set `FEEDSVC_POLICY` to the path of the file, or correct the line that is named; its form is in "
        "`docs/configuration.md`.",
        configuration=True,
    ),
    "jwt_keys": Entry(
        "How JWTs are verified: exactly one kind of key, its strength, the algorithms that it is pinned to.",
        "issuer, audience or algorithms are left open; a secret of few different characters",
        "no key or more than one, too weak a key, an algorithm that does not fit it",
        "Set exactly one of `FEEDSVC_JWT_SECRET`, `FEEDSVC_JWT_PUBLIC_KEY` and `FEEDSVC_JWKS_URL`, and beside it "
        "`FEEDSVC_JWT_ISSUER`, `FEEDSVC_JWT_AUDIENCE` and `FEEDSVC_JWT_ALGORITHMS`. A new secret: "
        "`openssl rand -base64 48`.",
        configuration=True,
    ),
    "jwks": Entry(
        "The key server: one request, as the service makes it.",
        "a published key that cannot be used",
        "no answer, no key set, or no usable key in it",
        "Open `FEEDSVC_JWKS_URL` from this machine; proxies of the environment are not used. Until it answers, no JWT "
        "is accepted.",
    ),
    "token_keys": Entry(
        "The keys that seal resume tokens.",
        "a key that is no random one",
        "no key, or one that is not 32 bytes in base64url",
        "Make one with `python3 -c 'import secrets; print(secrets.token_urlsafe(32))'`, and give the same "
        "`FEEDSVC_TOKEN_KEYS` to every instance.",
        configuration=True,
    ),
    "open_files": Entry(
        "The limit of open files (`RLIMIT_NOFILE`); `serve` raises the soft limit to the hard one by itself.",
        "one tenant with all the connections of its quota does not fit",
        f"fewer than {FEWEST_CLIENTS:,} clients fit",
        "Raise the hard limit: `LimitNOFILE=` in systemd, `--ulimit nofile=` in Docker, `ulimit -Hn` in a shell.",
    ),
    "mongodb_uri": Entry(
        "The URI of MongoDB, as it is written.",
        "an option that the driver does not know, or a value that it does not take",
        "missing, or not a URI of MongoDB",
        "Set or correct `FEEDSVC_MONGODB_URI`, for example `mongodb://feedsvc:...@db1,db2,db3/?replicaSet=rs0&authSource=admin`.",
        configuration=True,
    ),
    "mongodb_answers": Entry(
        "Whether a server answers and takes the user and the password.",
        "",
        "no server is reached, or it refuses the user",
        "Check hosts, ports, firewall and TLS (`tls=true`); for a user that is refused: password and `authSource`.",
    ),
    "replica_set": Entry(
        "Whether it is a replica set or a sharded cluster: only those have change streams.",
        "",
        "a standalone server",
        "Start `mongod` with `--replSet rs0` and run `rs.initiate()` once; one member is enough.",
    ),
    "server_version": Entry(
        "The version of the server; 6.0 is the first with pre-images.",
        "before 6.0.9: a change whose event is larger than 16 MB cannot be delivered",
        "before 6.0",
        "Upgrade MongoDB.",
    ),
    "clock": Entry(
        "The clock of this machine against that of the server, and the server's against its own cluster time.",
        f"{SKEW_WARN_S:g} s apart or more",
        "`FEEDSVC_STALL_AFTER` apart or more: clients are told `stalled` though nothing is wrong, or are not told when "
        "it is",
        "Let both machines keep time (`chronyc tracking`, `timedatectl`). Expiry of JWTs goes by this machine's clock.",
    ),
    "change_stream": Entry(
        "Opens each change stream that the policy and `FEEDSVC_TAIL_SCOPE` ask for, and reads once.",
        "",
        "refused: the actions `changeStream` and `find` are missing, or it is a view",
        ROLE_REMEDY,
    ),
    "find": Entry(
        "A query without a result on each collection, as snapshots make them.",
        "",
        "refused: the action `find` is missing",
        ROLE_REMEDY,
    ),
    "list_collections": Entry(
        "Asks each database for its collections: it tells which of them keep images.",
        "",
        "refused: the action `listCollections` is missing, so nobody can subscribe",
        ROLE_REMEDY,
    ),
    "images": Entry(
        "Pre- and post-images of each collection, as its policy needs them (`docs/images.md`).",
        "off with `allowPartial: true`: deletes are not sent; or the collection does not exist yet",
        "off with a policy filter: every topic is refused (`images_required`)",
        "Switch them on with the command that is shown, or set `allowPartial: true` and read what that means.",
    ),
    "oplog_window": Entry(
        "How far back the oplog reaches: so long may a client be away and still resume with its token.",
        f"less than `--oplog-hours` ({OPLOG_HOURS:g} by default), or the user may not read `local.oplog.rs`",
        f"full, and less than {SHORT_OPLOG_S // 3600} hour",
        "Make it larger, or keep it for a time: `db.adminCommand({replSetResizeOplog: 1, size: <MB>, "
        "minRetentionHours: <hours>})` on each member.",
    ),
    "image_expiry": Entry(
        "How long pre-images are kept (`expireAfterSeconds`): exact topics resume no longer than that.",
        "less than `--oplog-hours`, or the user may not ask",
        "",
        "Leave it at `off` unless space is short, and give the user `getClusterParameter` (`docs/images.md`).",
    ),
    "connection_pool": Entry(
        "The connections that this process may hold to MongoDB, against `FEEDSVC_MAX_TAILS`, policy and server.",
        "more collections in the policy than change streams; fewer free connections at the server; a `maxPoolSize` in "
        "the URI, which has no effect",
        "",
        "Set `FEEDSVC_MAX_TAILS` to the number of collections, or take `FEEDSVC_TAIL_SCOPE=database`; pools follow.",
    ),
}


def findings_table() -> str:
    """The catalogue as Markdown, as `docs/doctor.md` shows it. Ends without a newline."""
    rows = ["| id | what is looked at | warning | error | what to do |", "|---|---|---|---|---|"]
    for name, entry in CATALOGUE.items():
        rows.append(
            f"| `{name}` | {entry.looks_at} | {entry.warning} | {entry.error} | {entry.remedy} |".replace(
                "|  |", "| |"
            )
        )
    return "\n".join(rows)
