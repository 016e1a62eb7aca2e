"""Reads the policy file's mapping and collects every problem in it; `policy.py` builds on the result.

Each section is read by one method that notes problems with their place and goes on with a harmless value, so that one
run shows all of them. Filters are parsed with sample claims by the very parser that will read them later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from feedsvc.core.claim_templates import Template, TemplateError, compile_template
from feedsvc.core.extjson import ExtendedJsonError, decode
from feedsvc.core.filters.parse import FilterError, parse_filter
from feedsvc.core.limits import LIMITS
from feedsvc.core.projection import Projection, ProjectionError

WILDCARD = "*"
TENANT_MAX_CHARS = 38
SERVER_DATABASES = frozenset({"admin", "config", "local"})
_DATABASE_MAX_BYTES = 63
_NAMESPACE_MAX_BYTES = 255
_DATABASE_FORBIDDEN = re.compile(r'[/\\. "$*<>:|?\x00{}]')
_SCOPE = re.compile(r"[\x21\x23-\x5B\x5D-\x7E]+")
"""RFC 6749 section 3.3."""


class PolicyError(ValueError):
    """The policy file is wrong. `problems` are all of them, each with its place."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class PolicyLimits(msgspec.Struct, frozen=True):
    """Bounds per tenant and connection; also fields of `Limits`."""

    connections_per_tenant: int = int(LIMITS["connections_per_tenant"].default)
    subscriptions_per_connection: int = int(LIMITS["subscriptions_per_connection"].default)
    topics_per_tenant: int = int(LIMITS["topics_per_tenant"].default)


class CollectionRule(msgspec.Struct, frozen=True):
    """One entry of `collections`. `filter` is None where the policy gives none."""

    filter: Template | None = None
    fields: Mapping[str, Any] = {}
    scopes: frozenset[str] = frozenset()
    allow_partial: bool = False


class PolicyFile(msgspec.Struct, frozen=True):
    """The checked content. `database` holds `{tenant}` or is a fixed name; `warnings` are for the operator."""

    tenant_claim: str
    database: str
    rules: Mapping[str, CollectionRule]
    limits: PolicyLimits = PolicyLimits()
    warnings: tuple[str, ...] = ()


def parse_policy_file(data: object) -> PolicyFile:
    """The checked content of a loaded policy file. Raises `PolicyError` with all problems."""
    return _Parser().policy(data)


def collection_name_problem(name: str, database: str) -> str | None:
    """Why MongoDB, or the policy, has no collection of this name; None if it may exist.

    Source: MongoDB manual, "Naming Restrictions". `*` is not a name, and neither is one with a dot at its ends.
    """
    try:
        size_bytes = len(f"{database}.{name}".encode())
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if not name or name == WILDCARD:
        return "is empty or *"
    if "\0" in name or "$" in name:
        return "holds $ or NUL"
    if name.startswith(".") or name.endswith("."):
        return "starts or ends with a dot"
    if name.startswith("system.") or ".system." in name:
        return "belongs to the server"
    if size_bytes > _NAMESPACE_MAX_BYTES:
        return f"is too long: database and collection have {_NAMESPACE_MAX_BYTES} bytes"
    return None


class _Parser:
    def __init__(self) -> None:
        self.problems: list[str] = []

    def policy(self, data: object) -> PolicyFile:
        top = self._mapping(data, "policy", ("tenant", "collections", "limits"))
        claim, database = self._tenant(top.get("tenant"))
        rules = self._collections(top.get("collections"), database)
        limits = self._limits(top["limits"]) if "limits" in top else PolicyLimits()
        if self.problems:
            raise PolicyError(self.problems)
        return PolicyFile(claim, database, rules, limits, tuple(_warnings(database, rules)))

    def _problem(self, place: str, rule: str) -> None:
        self.problems.append(f"{place}: {rule}")

    def _mapping(self, value: object, place: str, known: tuple[str, ...] | None) -> Mapping[str, Any]:
        """The mapping at `place`, without the keys that are a problem. `known` None allows every string."""
        if not isinstance(value, Mapping):
            self._problem(place, "is missing" if value is None else "must be a mapping")
            return {}
        kept: dict[str, Any] = {}
        for key, child in value.items():
            if not isinstance(key, str):
                self._problem(place, f"the key {key!r} is not a string; quote it")
            elif known is not None and key not in known:
                self._problem(place, f"unknown key {key!r}; known are {', '.join(known)}")
            else:
                kept[key] = child
        return kept

    def _text(self, value: object, place: str) -> str:
        if isinstance(value, str) and value:
            return value
        self._problem(place, "is missing" if value is None else "must be a non-empty string")
        return ""

    def _tenant(self, value: object) -> tuple[str, str]:
        section = self._mapping(value, "tenant", ("claim", "database"))
        if not isinstance(value, Mapping):
            return "", ""
        claim = self._text(section.get("claim"), "tenant.claim")
        database = self._text(section.get("database"), "tenant.database")
        if not database:
            return claim, ""
        fixed = database.replace("{tenant}", "")
        if _DATABASE_FORBIDDEN.search(fixed):
            self._problem("tenant.database", "is not a database name, with {tenant} as its only placeholder")
        elif database.count("{tenant}") > 1:
            self._problem("tenant.database", "holds {tenant} more than once")
        elif database.lower() in SERVER_DATABASES:
            self._problem("tenant.database", "is one of the server's own databases")
        else:
            room_bytes = TENANT_MAX_CHARS if fixed != database else 0
            if len(fixed.encode("utf-8", "replace")) + room_bytes > _DATABASE_MAX_BYTES:
                self._problem(
                    "tenant.database",
                    f"is too long: a name has {_DATABASE_MAX_BYTES} bytes, {TENANT_MAX_CHARS} of them for {{tenant}}",
                )
        return claim, database

    def _collections(self, value: object, database: str) -> dict[str, CollectionRule]:
        section = self._mapping(value, "collections", None)
        if isinstance(value, Mapping) and not value:
            self._problem("collections", "names no collection, so every client would be refused")
        longest_database = database.replace("{tenant}", "t" * TENANT_MAX_CHARS)
        rules: dict[str, CollectionRule] = {}
        for name, rule in section.items():
            reason = None if name == WILDCARD else collection_name_problem(name, longest_database)
            if reason is not None:
                self._problem(f"collections.{name}", reason)
            rules[name] = self._rule(rule, f"collections.{name}")
        return rules

    def _rule(self, value: object, place: str) -> CollectionRule:
        if value is None:
            self._problem(place, "has no value; write {} for a collection without rules")
            return CollectionRule()
        section = self._mapping(value, place, ("filter", "fields", "scopes", "allowPartial"))
        return CollectionRule(
            self._filter(section["filter"], f"{place}.filter") if "filter" in section else None,
            self._fields(section["fields"], f"{place}.fields") if "fields" in section else {},
            self._scopes(section["scopes"], f"{place}.scopes") if "scopes" in section else frozenset(),
            self._flag(section.get("allowPartial", False), f"{place}.allowPartial"),
        )

    def _filter(self, value: object, place: str) -> Template | None:
        if not isinstance(value, Mapping) or not value:
            self._problem(place, "must be a non-empty mapping; leave it out to allow every document")
            return None
        try:
            template = compile_template(value, decode)
            parse_filter(template.example())
        except TemplateError as error:
            self._problem(f"{place}.{error.path}" if error.path else place, error.rule)
        except FilterError as error:
            self._problem(f"{place}.{error.path}" if error.path else place, error.rule)
        except ExtendedJsonError as error:
            self._problem(place, str(error))
        else:
            return template
        return None

    def _fields(self, value: object, place: str) -> Mapping[str, Any]:
        section = self._mapping(value, place, None)
        try:
            Projection.parse(section)
        except ProjectionError as error:
            self._problem(place, str(error))
        return section

    def _scopes(self, value: object, place: str) -> frozenset[str]:
        if not isinstance(value, list) or not value:
            self._problem(place, "must be a non-empty list; leave it out to need none")
            return frozenset()
        scopes = [scope for scope in value if isinstance(scope, str) and _SCOPE.fullmatch(scope)]
        if len(scopes) != len(value):
            self._problem(place, "each scope must be a string without spaces")
        return frozenset(scopes)

    def _flag(self, value: object, place: str) -> bool:
        if isinstance(value, bool):
            return value
        self._problem(place, "must be true or false")
        return False

    def _limits(self, value: object) -> PolicyLimits:
        by_key = {limit.policy_key: limit for limit in LIMITS.values() if limit.policy_key is not None}
        section = self._mapping(value, "limits", tuple(by_key))
        chosen: dict[str, int] = {}
        for key, number in section.items():
            limit = by_key[key]
            if type(number) is int and limit.minimum <= number <= limit.maximum:
                chosen[limit.name] = number
            else:
                self._problem(f"limits.{key}", f"must be a whole number of at least {limit.minimum}")
        return PolicyLimits(**chosen)


def _warnings(database: str, rules: Mapping[str, CollectionRule]) -> Iterator[str]:
    shared = "{tenant}" not in database
    for name, rule in rules.items():
        place = f"collections.{name}"
        if shared and rule.filter is None:
            yield f"{place}: no filter, and all tenants share one database: every tenant can read all of it"
        elif shared and rule.filter is not None and not rule.filter.placeholders:
            yield f"{place}: the filter names no claim, and all tenants share one database"
        if rule.allow_partial and rule.filter is None:
            yield f"{place}: allowPartial has no effect without a filter"
    if WILDCARD in rules:
        yield "collections.*: every collection is open to clients, those of the future too"
    whole = [name for name, rule in rules.items() if not rule.fields]
    if whole:
        yield f"collections without `fields` deliver whole documents: {', '.join(whole)}"
