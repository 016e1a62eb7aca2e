"""Asks the deployment, in the order in which one answer makes the next question worth asking.

A server that stops answering ends it: what was not asked is skipped by the caller.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from feedsvc.adapters.mongo import MongoSource
from feedsvc.adapters.mongo.probe import Probe, sets_pool_size
from feedsvc.core.changes import ScopeLevel
from feedsvc.core.limits import Limits
from feedsvc.core.policy import Policy
from feedsvc.doctor.catalogue import ROLE_REMEDY, USER_REMEDY
from feedsvc.doctor.findings import Findings
from feedsvc.doctor.judgements import judge_clock, judge_expiry, judge_oplog, judge_pool, judge_version
from feedsvc.doctor.questions import UNAUTHORIZED, Questions
from feedsvc.doctor.served import Served
from feedsvc.ports import SourceError, SourceRefused

_LOGIN_CODES = (18, 8000)


class DeploymentDoctor:
    """`policy` None: it cannot be read, so nothing can be said of collections. `tenants` are those to look at."""

    def __init__(
        self,
        source: MongoSource,
        questions: Questions,
        findings: Findings,
        policy: Policy | None,
        level: ScopeLevel,
        limits: Limits,
        *,
        uri: str,
        tenants: Sequence[str],
        oplog_hours: float,
    ) -> None:
        self._source = source
        self._questions = questions
        self._probe = Probe(source)
        self._findings = findings
        self._policy = policy
        self._level: ScopeLevel = level
        self._limits = limits
        self._sets_pool_size = sets_pool_size(uri)
        self._tenants = tenants
        self._oplog_hours = oplog_hours
        self._has_user = False
        self._sharded = False

    async def examine(self) -> None:
        """Everything. Raises `Silent` where MongoDB stops answering in the middle."""
        if not await self._answers():
            return
        await self._version()
        streams = await self._replica_set()
        now = await self._clock()
        if self._policy is not None:
            served = Served(
                self._source,
                self._questions,
                self._findings,
                self._policy,
                self._level,
                tenants=self._tenants,
                has_user=self._has_user,
            )
            await served.examine(now if streams else None)
        if streams:
            await self._oplog()
            await self._expiry()
        await self._pool()

    async def _answers(self) -> bool:
        try:
            async with asyncio.timeout(self._questions.answer_s + 1):
                self._has_user = await self._probe.authenticated()
        except SourceRefused as error:
            if error.code in _LOGIN_CODES:
                self._findings.add(
                    "mongodb_answers",
                    "error",
                    f"the server answers and does not take the user: {error}",
                    remedy="Check user and password in FEEDSVC_MONGODB_URI, and authSource: the database in which the "
                    "user was made, mostly `admin`.",
                )
            elif error.code == UNAUTHORIZED:
                self._findings.add(
                    "mongodb_answers", "error", f"the server wants a user: {error}", remedy=USER_REMEDY
                )
            else:
                self._findings.add(
                    "mongodb_answers",
                    "error",
                    str(error),
                    remedy="Check the options of FEEDSVC_MONGODB_URI; the host of a mongodb+srv:// address needs SRV "
                    "records in the DNS.",
                )
        except (SourceError, TimeoutError):
            unreached = self._probe.unreached()
            for reason in unreached:
                self._findings.add("mongodb_answers", "error", reason)
            if not unreached:
                self._findings.add(
                    "mongodb_answers",
                    "error",
                    "no server of the URI belongs to the replica set that it names",
                    remedy="Set replicaSet in FEEDSVC_MONGODB_URI to the name that rs.status() tells.",
                )
        else:
            user = "takes the user" if self._has_user else "the connection has no user"
            self._findings.add("mongodb_answers", "ok", f"a server answers, {user}")
            return True
        return False

    async def _version(self) -> None:
        try:
            judge_version(self._findings, await self._questions.answer(self._probe.version()))
        except SourceRefused as error:
            self._findings.add("server_version", "warning", f"the server does not say it: {error}")

    async def _replica_set(self) -> bool:
        try:
            name = await self._questions.answer(self._source.identity())
        except SourceRefused as error:
            self._findings.add("replica_set", "error", str(error))
            self._findings.skip(
                ("change_stream", "find", "oplog_window", "image_expiry"),
                "a standalone has neither streams nor oplog",
            )
            return False
        kind = "a sharded cluster" if name == "sharded" else f"replica set {name}"
        self._findings.add("replica_set", "ok", kind)
        self._sharded = name == "sharded"
        return True

    async def _clock(self) -> int | None:
        """Judges the clocks; the operation time, where there is one."""
        before = time.time()
        try:
            server_ms = await self._questions.answer(self._probe.clock_ms())
        except SourceRefused:
            server_ms = None
        after = time.time()
        try:
            now = await self._questions.answer(self._source.operation_time())
        except SourceRefused:
            now = None  # a standalone has none
        if server_ms is None:
            self._findings.add("clock", "skipped", "the server does not say its time")
            return now
        server_s = server_ms / 1000
        cluster_ahead_s = None if now is None else (now >> 32) - server_s - (after - before)
        judge_clock(
            self._findings,
            (before + after) / 2 - server_s,
            (after - before) / 2,
            cluster_ahead_s,
            self._limits.stall_after_s,
        )
        return now

    async def _oplog(self) -> None:
        window = await self._questions.answer(self._source.oplog_window())
        if window is None and self._sharded:
            self._findings.skip(("oplog_window",), "through mongos it cannot be read: ask each shard")
        elif window is None:
            self._findings.add(
                "oplog_window",
                "warning",
                "local.oplog.rs may not be read: clients are not told how long they may be away",
                remedy=ROLE_REMEDY,
            )
        else:
            try:
                fill = await self._questions.answer(self._probe.oplog_fill())
            except SourceRefused:
                fill = None
            judge_oplog(self._findings, window, fill, self._oplog_hours)

    async def _expiry(self) -> None:
        try:
            judge_expiry(
                self._findings, await self._questions.answer(self._probe.image_expiry_s()), self._oplog_hours
            )
        except SourceRefused as error:
            if error.code == UNAUTHORIZED:
                self._findings.add(
                    "image_expiry",
                    "warning",
                    "may not be asked for: were it shorter than the oplog, clients would be told too long a window",
                    remedy=ROLE_REMEDY,
                )
            else:
                self._findings.add("image_expiry", "skipped", "the server has no such parameter")

    async def _pool(self) -> None:
        try:
            connections = await self._questions.answer(self._probe.connections())
        except SourceRefused:
            connections = None  # serverStatus is no right that the service needs
        judge_pool(
            self._findings,
            self._policy,
            self._level,
            self._limits,
            connections,
            sets_pool_size=self._sets_pool_size,
        )
