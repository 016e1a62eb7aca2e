"""The policy: which tenant a JWT speaks for, and what of a collection it may see.

`Policy.parse` takes the policy file as loaded (protocol.md section 11), checks all of it and reports every problem at
once; after that nothing about the file can fail. At run time there are two questions: `tenant` (at
authentication) and `grant` (at each subscribe, replay and snapshot, with the claims of the connection that
asks). What is not named is denied, an unknown key is a problem and not a remark, for a misspelt `filter` would open
a collection. How claims enter a filter: `claim_templates.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from feedsvc.core.claim_templates import ClaimValues, find_claim
from feedsvc.core.errors import Refusal
from feedsvc.core.filters.parse import FilterError, parse_filter
from feedsvc.core.policy_parser import (
    SERVER_DATABASES,
    TENANT_MAX_CHARS,
    WILDCARD,
    CollectionRule,
    PolicyError,
    PolicyFile,
    PolicyLimits,
    collection_name_problem,
    parse_policy_file,
)

__all__ = ["Grant", "Policy", "PolicyError", "PolicyLimits"]

_TENANT = re.compile(rf"[A-Za-z0-9_-]{{1,{TENANT_MAX_CHARS}}}")


class Grant(msgspec.Struct, frozen=True):
    """What one connection may see of one collection.

    `filter` is a BSON document with the claims in place ({} allows every document) and is AND-ed to the client's;
    `fields` is the projection that runs before the client's ({} hides nothing).
    """

    tenant: str
    database: str
    collection: str
    filter: Mapping[str, Any]
    fields: Mapping[str, Any]
    allow_partial: bool


class Policy(PolicyFile, frozen=True):
    """A checked policy file, and what follows from it."""

    @classmethod
    def parse(cls, data: object) -> Policy:
        """The policy of a loaded file. Raises `PolicyError` with all problems."""
        return cls(**msgspec.structs.asdict(parse_policy_file(data)))

    @property
    def tenant_in_database(self) -> bool:
        """Whether each tenant has a database of its own."""
        return "{tenant}" in self.database

    def database_for(self, tenant: str) -> str:
        """The database of a tenant. Raises `Refusal` where that is one of the server's own."""
        database = self.database.replace("{tenant}", tenant)
        if database.lower() in SERVER_DATABASES:
            raise Refusal("forbidden", "the tenant's database is one of the server's own")
        return database

    def tenant(self, claims: Mapping[str, Any]) -> str:
        """The tenant that verified claims name. Raises `Refusal` (`auth_invalid`)."""
        value = find_claim(claims, self.tenant_claim)
        if value is None:
            raise Refusal("auth_invalid", f"the JWT lacks the claim {self.tenant_claim}")
        if not isinstance(value, str) or not _TENANT.fullmatch(value):
            raise Refusal(
                "auth_invalid",
                f"the claim {self.tenant_claim} is not 1 to {TENANT_MAX_CHARS} of the characters A-Z a-z 0-9 _ -",
            )
        try:
            self.database_for(value)
        except Refusal as refusal:
            raise Refusal("auth_invalid", refusal.message) from None
        return value

    def grant(
        self,
        tenant: str,
        subject: str | None,
        scopes: frozenset[str],
        claims: Mapping[str, Any],
        database: str | None,
        collection: str,
    ) -> Grant:
        """What these claims may see of `collection`. `database` is what the client named, if anything.

        `tenant` comes from `tenant()`. Raises `Refusal`: `forbidden` or `unknown_collection`.
        """
        own_database = self.database_for(tenant)
        if database is not None and database != own_database:
            raise Refusal("forbidden", "topic.database is not the database of this tenant")
        rule = self._rule(own_database, collection)
        if not rule.scopes <= scopes:
            raise Refusal("forbidden", "the JWT's scope does not allow topic.collection")
        document: Mapping[str, Any] = {}
        if rule.filter is not None:
            document = rule.filter.fill(ClaimValues(tenant, subject, claims))
            try:
                parse_filter(document)
            except FilterError:
                raise Refusal("forbidden", "the claims are too large for the policy's filter") from None
        return Grant(tenant, own_database, collection, document, rule.fields, rule.allow_partial)

    def _rule(self, database: str, collection: str) -> CollectionRule:
        if collection_name_problem(collection, database) is None:
            rule = self.rules.get(collection, self.rules.get(WILDCARD))
            if rule is not None:
                return rule
        raise Refusal("unknown_collection", "topic.collection is not one that the policy names")
