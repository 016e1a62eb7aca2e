"""What the answers of a deployment mean. Each function turns one into a finding, and asks nobody."""

from __future__ import annotations

import json
import re
from typing import Literal

from feedsvc.adapters.mongo.probe import Connections, pool_sizes
from feedsvc.core.changes import Namespace, ScopeLevel
from feedsvc.core.limits import Limits
from feedsvc.core.policy import Policy
from feedsvc.core.policy_parser import WILDCARD, CollectionRule
from feedsvc.doctor.catalogue import SHORT_OPLOG_S, SKEW_WARN_S
from feedsvc.doctor.findings import Findings
from feedsvc.ports import CollectionInfo, OplogWindow

_FIRST_VERSION = (6, 0, 0)
_SPLITS_EVENTS = (6, 0, 9)
_FULL = 0.9
"""The oldest part of an oplog goes in one piece, so a full one is a little less than full."""
_HOUR_S = 3600


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * _HOUR_S:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / _HOUR_S:,.1f} hours"


def judge_version(findings: Findings, version: str) -> None:
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if numbers is None:
        findings.add("server_version", "warning", "the server does not say its version")
        return
    parts = tuple(int(number) for number in numbers.groups())
    shown = f"MongoDB {numbers[0]}"
    if parts < _FIRST_VERSION:
        findings.add("server_version", "error", f"{shown}; feedsvc needs 6.0")
    elif parts < _SPLITS_EVENTS:
        findings.add("server_version", "warning", f"{shown} cannot split events that are larger than 16 MB")
    else:
        findings.add("server_version", "ok", shown)


def judge_clock(
    findings: Findings, ahead_s: float, unsure_s: float, cluster_ahead_s: float | None, stall_after_s: float
) -> None:
    """`ahead_s`: this machine's clock less the server's, known to `unsure_s`; `cluster_ahead_s`: cluster time less the
    server's clock."""
    apart_s = max(0.0, abs(ahead_s) - unsure_s)
    if apart_s < SKEW_WARN_S:
        findings.add("clock", "ok", f"{abs(ahead_s):.1f} s from the server's, known to {unsure_s:.1f} s")
    else:
        side = "ahead of" if ahead_s > 0 else "behind"
        status: Literal["warning", "error"] = "error" if apart_s >= stall_after_s else "warning"
        findings.add("clock", status, f"this machine is {abs(ahead_s):.1f} s {side} the server")
    # It may be behind: nothing moves it on an idle server. It is ahead after the clock was put back.
    if cluster_ahead_s is not None and cluster_ahead_s >= SKEW_WARN_S:
        findings.add(
            "clock",
            "warning",
            f"the cluster's time is {cluster_ahead_s:.0f} s ahead of the server's clock",
            subject="cluster time",
            remedy="A clock of the deployment was put back. Until it has caught up, delays are told as none.",
        )


def judge_oplog(findings: Findings, window: OplogWindow, fill: float | None, wanted_h: float) -> None:
    """`fill`: the part of its size that is used, where that is known."""
    hours = window.seconds / _HOUR_S
    reach = f"reaches back {_span(window.seconds)}"
    if hours >= wanted_h:
        findings.add("oplog_window", "ok", reach)
        return
    away = f"a client that is away for longer starts over (resync); wanted are {wanted_h:g} hours"
    if fill is not None and fill < _FULL:
        whole_h = hours / fill
        found = f"{reach} and is {fill:.0%} full: about {_span(whole_h * _HOUR_S)} once it is"
        if whole_h >= wanted_h:
            findings.add("oplog_window", "ok", found)
        else:
            findings.add("oplog_window", "warning", f"{found}; {away}")
    elif fill is not None and window.seconds < SHORT_OPLOG_S:
        findings.add("oplog_window", "error", f"{reach} and is full; {away}")
    else:
        full = "and is full" if fill is not None else "(whether it is full, or only young, is not told)"
        findings.add("oplog_window", "warning", f"{reach} {full}; {away}")


def judge_expiry(findings: Findings, expire_s: int | None, wanted_h: float) -> None:
    if expire_s is None:
        findings.add("image_expiry", "ok", "off: as long as the oplog")
        return
    hours = expire_s / _HOUR_S
    found = f"pre-images are kept {_span(expire_s)}"
    if hours < wanted_h:
        findings.add(
            "image_expiry",
            "warning",
            f"{found}: a client of an exact topic that is away for longer starts over; wanted are {wanted_h:g} hours",
        )
    else:
        findings.add("image_expiry", "ok", found)


def judge_images(
    findings: Findings, namespace: Namespace, info: CollectionInfo | None, rule: CollectionRule
) -> None:
    """`info` None: there is no such collection."""
    subject = f"{namespace.database}.{namespace.collection}"
    database = f"db.getSiblingDB({json.dumps(namespace.database)})"
    name = json.dumps(namespace.collection)
    images = "changeStreamPreAndPostImages: {enabled: true}"
    if info is not None and info.images:
        findings.add("images", "ok", "on: exact membership", subject=subject)
    elif rule.filter is None:
        state = "off" if info is not None else "the collection does not exist yet"
        findings.add(
            "images",
            "ok",
            f"{state}; the policy has no filter, so nothing is refused, and `left` is approximate",
            subject=subject,
        )
    elif info is None:
        findings.add(
            "images",
            "warning",
            "the collection does not exist yet, and its policy filter needs images",
            subject=subject,
            remedy=f"Create it with images: {database}.createCollection({name}, {{{images}}})",
        )
    else:
        command = f"{database}.runCommand({{collMod: {name}, {images}}})"
        if rule.allow_partial:
            findings.add(
                "images",
                "warning",
                "off, with a policy filter and allowPartial: no deletes, no moves away, no snapshots",
                subject=subject,
                remedy=f"If clients need them: {command}",
            )
        else:
            findings.add(
                "images",
                "error",
                "off, and the policy has a filter: every topic is refused (images_required)",
                subject=subject,
                remedy=f"{command} - or allowPartial: true in the policy, which docs/images.md explains",
            )


def judge_pool(
    findings: Findings,
    policy: Policy | None,
    level: ScopeLevel,
    limits: Limits,
    connections: Connections | None,
    *,
    sets_pool_size: bool,
) -> None:
    """`connections` None: the server does not say."""
    streams, reads = pool_sizes(limits.max_tails + limits.catch_up_tails)
    need = streams + reads
    found = f"up to {need} connections of this process to a server ({streams} for streams, {reads} for reads)"
    named = 0 if policy is None else sum(name != WILDCARD for name in policy.rules)
    if level == "collection" and named > limits.max_tails:
        findings.add(
            "connection_pool",
            "warning",
            f"the policy names {named} collections, and FEEDSVC_MAX_TAILS allows {limits.max_tails} change streams",
            subject="streams",
        )
    if sets_pool_size:
        findings.add(
            "connection_pool",
            "warning",
            "maxPoolSize in the URI has no effect",
            subject="uri",
            remedy="Take it out of FEEDSVC_MONGODB_URI; FEEDSVC_MAX_TAILS decides.",
        )
    # The embedded engine says 0, which cannot be: this connection was just taken.
    if connections is not None and 0 < connections.available < need:
        findings.add(
            "connection_pool",
            "warning",
            f"{found}; the server would take {connections.available:,} more",
            subject="server",
            remedy="Raise net.maxIncomingConnections of mongod and its limit of open files, or run fewer instances.",
        )
    else:
        room = (
            ""
            if connections is None or not connections.available
            else f"; the server would take {connections.available:,} more"
        )
        findings.add("connection_pool", "ok", found + room)
