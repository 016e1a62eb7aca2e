"""What the policy serves, tried one by one: change streams, queries, collections and their images.

All of it is done by the code that the service does it with, with the rights of the configured user.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from feedsvc.adapters.mongo import MongoSource
from feedsvc.adapters.mongo.probe import Probe
from feedsvc.core.changes import Namespace, ScopeLevel, TailScope
from feedsvc.core.errors import Refusal
from feedsvc.core.policy import Policy
from feedsvc.core.policy_parser import TENANT_MAX_CHARS, WILDCARD
from feedsvc.core.positions import boundary
from feedsvc.doctor.catalogue import USER_REMEDY
from feedsvc.doctor.findings import Findings
from feedsvc.doctor.judgements import judge_images
from feedsvc.doctor.questions import UNAUTHORIZED, Questions, for_each
from feedsvc.ports import CollectionInfo, SourceRefused

_DATABASES = 3
_COLLECTIONS = 20
"""Of those that only a pattern or `*` names."""
_VIEW = 166


class Served:
    """`tenants` are those to look at where each has a database; `has_user`: the connection is somebody's."""

    def __init__(
        self,
        source: MongoSource,
        questions: Questions,
        findings: Findings,
        policy: Policy,
        level: ScopeLevel,
        *,
        tenants: Sequence[str],
        has_user: bool,
    ) -> None:
        self._source = source
        self._questions = questions
        self._probe = Probe(source)
        self._findings = findings
        self._policy = policy
        self._level: ScopeLevel = level
        self._tenants = tenants
        self._has_user = has_user

    async def examine(self, now: int | None) -> None:
        """`now`: the operation time; None: there are no streams here. Raises `Silent`."""
        policy = self._policy
        served = {database: await self._namespaces(database) for database in await self._databases()}
        if not served:
            self._findings.skip(
                ("find", "list_collections", "images"), "no database of a tenant is there: give --tenant NAME"
            )
        if now is not None:
            await for_each(_scopes(self._level, served), lambda scope: self._change_stream(scope, now))
            self._findings.skip(
                ("change_stream",), "no collection to watch: give --tenant NAME, or create one"
            )
        for database, namespaces in served.items():
            described = await self._describe(database, namespaces)
            if now is not None:
                await for_each(namespaces, lambda namespace: self._find(namespace, now))
            for namespace in namespaces:
                if described is not None:
                    rule = policy.rules.get(namespace.collection) or policy.rules[WILDCARD]
                    judge_images(self._findings, namespace, described.get(namespace.collection), rule)
        self._findings.skip(("find", "images"), "no collection was found")

    async def _databases(self) -> list[str]:
        """The databases to look at: that of the policy, those of the tenants asked for, or some that exist."""
        policy = self._policy
        if not policy.tenant_in_database:
            return [policy.database]
        if self._tenants:
            return [policy.database_for(tenant) for tenant in self._tenants]
        before, after = (re.escape(part) for part in policy.database.split("{tenant}"))
        form = re.compile(f"{before}[A-Za-z0-9_-]{{1,{TENANT_MAX_CHARS}}}{after}")
        try:
            found = await self._questions.answer(self._probe.databases())
        except SourceRefused:
            found = []  # listDatabases is no right that the service needs
        return [name for name in found if form.fullmatch(name)][:_DATABASES]

    async def _namespaces(self, database: str) -> list[Namespace]:
        """The collections that the policy names, and some of those that only `*` does."""
        policy = self._policy
        names = [name for name in policy.rules if name != WILDCARD]
        if WILDCARD in policy.rules:
            try:
                existing = await self._questions.answer(self._probe.collections(database, _COLLECTIONS))
            except SourceRefused:
                existing = []  # `list_collections` will say so
            names += [name for name in existing if name not in names]
        return [Namespace(database, name) for name in names]

    async def _change_stream(self, scope: TailScope, now: int) -> None:
        subject = ".".join(part for part in (scope.database, scope.collection) if part) or "deployment"
        try:
            stream = await self._questions.answer(self._source.open(scope, boundary(now)))
            try:
                await self._questions.answer(stream.read())
            finally:
                await stream.close()
        except SourceRefused as error:
            if error.code == _VIEW:
                self._findings.add(
                    "change_stream",
                    "error",
                    "is a view, which has no change stream",
                    subject=subject,
                    remedy="Name the collection that the view is made of in the policy.",
                )
            else:
                self._refused("change_stream", subject, error)
        else:
            self._findings.add("change_stream", "ok", "opened and read", subject=subject)

    async def _describe(
        self, database: str, namespaces: Sequence[Namespace]
    ) -> Mapping[str, CollectionInfo] | None:
        """What there is of the collections; None where that may not be asked."""
        names = [namespace.collection for namespace in namespaces]
        try:
            found = await self._questions.answer(self._source.describe(database, names))
        except SourceRefused as error:
            self._refused("list_collections", database, error)
            self._findings.add("images", "skipped", "the collections may not be listed", subject=database)
            return None
        self._findings.add(
            "list_collections", "ok", f"{len(found)} of {len(names)} collections exist", subject=database
        )
        return found

    async def _find(self, namespace: Namespace, after: int) -> None:
        subject = f"{namespace.database}.{namespace.collection}"
        try:
            cursor = await self._questions.answer(self._source.find(namespace, {"_id": {"$in": []}}, after))
            try:
                await self._questions.answer(cursor.read())
            finally:
                await cursor.close()
        except SourceRefused as error:
            self._refused("find", subject, error)
        else:
            self._findings.add("find", "ok", "may be read", subject=subject)

    def _refused(self, name: str, subject: str, error: SourceRefused) -> None:
        remedy = ""
        if error.code == UNAUTHORIZED and not self._has_user:
            remedy = USER_REMEDY
        self._findings.add(name, "error", str(error), subject=subject, remedy=remedy)


def _scopes(level: ScopeLevel, served: Mapping[str, Sequence[Namespace]]) -> list[TailScope]:
    """The change streams that the service would open for these databases."""
    if level == "deployment":
        return [TailScope(level)]
    if level == "database":
        return [TailScope(level, database) for database in served]
    return [
        TailScope(level, namespace.database, namespace.collection)
        for namespaces in served.values()
        for namespace in namespaces
    ]


def tenant_problem(policy: Policy, tenant: str) -> str | None:
    """Why a tenant given by hand is none of this policy."""
    try:
        policy.tenant({policy.tenant_claim: tenant})
    except Refusal as refusal:
        return refusal.message
    return None
