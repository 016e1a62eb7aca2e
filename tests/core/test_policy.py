from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from bson import ObjectId

from feedsvc.core.errors import Refusal
from feedsvc.core.limits import Limits
from feedsvc.core.policy import Grant, Policy, PolicyError

OID = "0123456789abcdef01234567"

FILE: dict[str, Any] = {
    "tenant": {"claim": "tenant", "database": "app_{tenant}"},
    "collections": {
        "orders": {
            "filter": {"tenantId": "{tenant}", "status": {"$in": "{claims.statuses}"}},
            "fields": {"cost": 0},
            "scopes": ["orders:read"],
            "allowPartial": True,
        },
        "*": {},
    },
    "limits": {"connectionsPerTenant": 5},
}


def changed(**sections: Any) -> dict[str, Any]:
    return {**copy.deepcopy(FILE), **sections}


def problems(data: object) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        Policy.parse(data)
    return caught.value.problems


def grant(policy: Policy, collection: str, database: str | None = None, **claims: Any) -> Grant:
    scopes = frozenset(claims.pop("scopes", ["orders:read"]))
    return policy.grant("t1", "u1", scopes, claims, database, collection)


def refusal(call: Callable[[], object]) -> Refusal:
    with pytest.raises(Refusal) as caught:
        call()
    return caught.value


def test_a_grant() -> None:
    """The grant holds the tenant's database, the filter with the claims in place, and the policy's projection."""
    granted = grant(Policy.parse(FILE), "orders", "app_t1", statuses=["open"])
    assert granted == Grant(
        "t1", "app_t1", "orders", {"tenantId": "t1", "status": {"$in": ["open"]}}, {"cost": 0}, True
    )


def test_two_tenants_never_share_a_grant() -> None:
    """AUT-08: the same request of two tenants differs in tenant, database and filter."""
    policy = Policy.parse(FILE)
    scopes = frozenset({"orders:read"})
    one, two = (policy.grant(t, None, scopes, {"statuses": ["a"]}, None, "orders") for t in ("t1", "t2"))
    assert (one.tenant, one.database, one.filter["tenantId"]) == ("t1", "app_t1", "t1")
    assert (two.tenant, two.database, two.filter["tenantId"]) == ("t2", "app_t2", "t2")


@pytest.mark.parametrize("database", ["app_t2", "", "APP_T1", "admin", "app_{tenant}", "app_t1 "])
def test_another_database_is_forbidden(database: str) -> None:
    """A client may name the tenant's own database and no other."""
    assert refusal(lambda: grant(Policy.parse(FILE), "orders", database, statuses=["a"])).code == "forbidden"


@pytest.mark.parametrize("scopes", [[], ["orders"], ["orders:reads", "ORDERS:READ"]])
def test_missing_scopes(scopes: list[str]) -> None:
    """All scopes of the collection are needed, compared as whole strings."""
    policy = Policy.parse(FILE)
    assert refusal(lambda: grant(policy, "orders", scopes=scopes, statuses=["a"])).code == "forbidden"
    assert grant(policy, "other", scopes=scopes).filter == {}
    two = Policy.parse(changed(collections={"a": {"scopes": ["one", "two"]}}))
    assert refusal(lambda: grant(two, "a", scopes=["one"])).code == "forbidden"
    assert grant(two, "a", scopes=["two", "one", *scopes]).collection == "a"


@pytest.mark.parametrize(
    "collection",
    [
        "",
        "*",
        "system.views",
        "system.",
        "a.system.b",
        "a\0b",
        "a$b",
        "$cmd",
        ".a",
        "a.",
        "x" * 300,
        "\ud800",
    ],
)
def test_names_that_the_wildcard_does_not_cover(collection: str) -> None:
    """`*` covers names that a collection can have, the server's own excepted."""
    assert refusal(lambda: grant(Policy.parse(FILE), collection)).code == "unknown_collection"


def test_the_wildcard() -> None:
    """`*` covers any other name; without it what is not named does not exist, in no spelling."""
    assert grant(Policy.parse(FILE), "a.b-c é").collection == "a.b-c é"
    closed = Policy.parse(changed(collections={"orders": {}}))
    assert grant(closed, "orders").fields == {}
    for name in ("other", "Orders", "orders ", "ORDERS", "order"):
        assert refusal(lambda name=name: grant(closed, name)).code == "unknown_collection"  # type: ignore[misc]


def test_the_wildcard_does_not_soften_a_named_rule() -> None:
    """A named collection has its own rule only."""
    assert refusal(lambda: grant(Policy.parse(FILE), "orders", scopes=[])).code == "forbidden"


def test_claims_that_do_not_fit() -> None:
    """A missing claim, and one too large for a filter, refuse the topic."""
    policy = Policy.parse(FILE)
    assert refusal(lambda: grant(policy, "orders")).code == "forbidden"
    many = refusal(lambda: grant(policy, "orders", statuses=[str(n) for n in range(201)]))
    assert (many.code, many.message) == ("forbidden", "the claims are too large for the policy's filter")
    assert grant(policy, "orders", statuses=[str(n) for n in range(200)]).database == "app_t1"


@pytest.mark.parametrize(
    "claims", [{"statuses": {"$ne": None}}, {"statuses": [{"$ne": None}]}, {"statuses": None}]
)
def test_operators_in_claims(claims: dict[str, Any]) -> None:
    """An operator that a claim brings along is never part of the filter."""
    assert refusal(lambda: grant(Policy.parse(FILE), "orders", **claims)).code == "forbidden"


@pytest.mark.parametrize("tenant", ["t1", "A-b_9", "x" * 38])
def test_tenants(tenant: str) -> None:
    """A tenant is the claim's string."""
    policy = Policy.parse(FILE)
    assert policy.tenant({"tenant": tenant}) == tenant
    assert policy.database_for(tenant) == f"app_{tenant}"


@pytest.mark.parametrize(
    "tenant", ["", "x" * 39, "a b", "a.b", "a/b", "a$", "t1\n", "é", "１", None, 5, ["t1"], {}, True]
)
def test_unfit_tenants(tenant: object) -> None:
    """AUT-07: anything but 1 to 38 plain characters in a string is refused, and so is a missing claim."""
    policy = Policy.parse(FILE)
    assert refusal(lambda: policy.tenant({"tenant": tenant})).code == "auth_invalid"
    assert refusal(lambda: policy.tenant({"Tenant": "t1"})).code == "auth_invalid"


@pytest.mark.parametrize("tenant", ["admin", "LOCAL", "config"])
def test_tenants_cannot_name_the_servers_databases(tenant: str) -> None:
    """With `{tenant}` as the whole database name, a tenant is not one of MongoDB's own databases."""
    policy = Policy.parse(changed(tenant={"claim": "tenant", "database": "{tenant}"}))
    assert refusal(lambda: policy.tenant({"tenant": tenant})).code == "auth_invalid"
    assert refusal(lambda: policy.grant(tenant, None, frozenset(), {}, None, "a")).code == "forbidden"
    assert policy.tenant({"tenant": "t1"}) == "t1"


def test_nested_tenant_claim() -> None:
    """The claim that names the tenant may be a path or a URL."""
    for claim, claims in (
        ("org.id", {"org": {"id": "t1"}}),
        ("https://x.example/t", {"https://x.example/t": "t1"}),
    ):
        assert Policy.parse(changed(tenant={"claim": claim, "database": "d"})).tenant(claims) == "t1"


def test_database_kinds() -> None:
    """Whether the tenant is part of the database's name decides the default scope of tails."""
    assert Policy.parse(FILE).tenant_in_database
    fixed = Policy.parse(changed(tenant={"claim": "t", "database": "shop"}))
    assert not fixed.tenant_in_database
    assert fixed.database_for("t1") == "shop"


def test_limits() -> None:
    """Limits that the file leaves out have the defaults of the table."""
    limits = Policy.parse(FILE).limits
    assert limits.connections_per_tenant == 5
    assert limits.topics_per_tenant == Limits().topics_per_tenant
    assert (
        Policy.parse({k: v for k, v in FILE.items() if k != "limits"}).limits.connections_per_tenant == 20_000
    )


def test_typed_placeholders() -> None:
    """A typed placeholder becomes a BSON value."""
    policy = Policy.parse(changed(collections={"a": {"filter": {"org": "{claims.org:oid}"}}}))
    assert grant(policy, "a", org=OID).filter == {"org": ObjectId(OID)}


def test_all_problems_at_once() -> None:
    """Every problem is named with its place in one run."""
    found = problems(
        {
            "tenant": {"claim": 5, "database": "a/b", "extra": 1},
            "collections": {
                "system.x": {},
                "a": {"filtre": {}},
                "b": {"filter": {"$where": "1"}, "fields": {"x": 2}, "scopes": "s", "allowPartial": "no"},
                "c": None,
                "d": {"filter": {"t": "{tenat}"}},
                "e": {"filter": {"t": {"$oid": "x"}}},
            },
            "limits": {"connectionsPerTenant": 0, "other": 1},
            "Tenant": {},
        }
    )
    places = [problem.split(":")[0] for problem in found]
    assert places == [
        "policy",
        "tenant",
        "tenant.claim",
        "tenant.database",
        "collections.system.x",
        "collections.a",
        "collections.b.filter.$where",
        "collections.b.fields",
        "collections.b.scopes",
        "collections.b.allowPartial",
        "collections.c",
        "collections.d.filter.t",
        "collections.e.filter",
        "limits",
        "limits.connectionsPerTenant",
    ]


@pytest.mark.parametrize("data", [None, [], "text", 5, {}, {"tenant": None, "collections": None}])
def test_not_a_policy(data: object) -> None:
    """A file of another kind has problems and no traceback."""
    assert problems(data)


@pytest.mark.parametrize(
    "database",
    ["", 5, None, "admin", "Local", "a b", "a.b", "a$b", 'a"b', "{sub}", "{claims.x}", "{tenant}{tenant}", "{Tenant}",
     "x" * 64, "x" * 26 + "{tenant}", "é" * 32],
)  # fmt: skip
def test_database_names(database: object) -> None:
    """The database's name is possible for every tenant, and `{tenant}` is its only placeholder."""
    found = problems(changed(tenant={"claim": "t", "database": database}))
    assert all(problem.startswith("tenant.database") for problem in found)
    Policy.parse(changed(tenant={"claim": "t", "database": "x" * 25 + "{tenant}"}))


@pytest.mark.parametrize(
    "rule",
    [
        {"filter": {}},
        {"filter": None},
        {"filter": []},
        {"filter": {"a": {"$foo": 1}}},
        {"filter": {"a": {"$regex": "{tenant}"}}},
        {"filter": {"a": {"$in": "text"}}},
        {"filter": {"a": {"$gt": ["{tenant}"], "b": 1}}},
        {"filter": {"{tenant}": 1}},
        {"filter": {"a": "x" * 20_000}},
        {"fields": None},
        {"fields": {"a": 1, "b": 0}},
        {"fields": {"a": "{tenant}"}},
        {"fields": {1: 0}},
        {"scopes": []},
        {"scopes": ["a b"]},
        {"scopes": [""]},
        {"scopes": [5]},
        {"allowPartial": 1},
        {"allowPartial": None},
        {1: 2},
        [],
        "text",
    ],
)
def test_unfit_rules(rule: object) -> None:
    """A rule that says something else than it seems to is a problem at start."""
    assert all(problem.startswith("collections.a") for problem in problems(changed(collections={"a": rule})))


@pytest.mark.parametrize("number", [0, -1, 1.5, "5", True, None, 2**60])
def test_unfit_limits(number: object) -> None:
    """Limits are whole numbers of at least 1."""
    (problem,) = problems(changed(limits={"topicsPerTenant": number}))
    assert problem.startswith("limits.topicsPerTenant")


def warnings(database: str, collections: Mapping[str, Any]) -> str:
    data = {"tenant": {"claim": "t", "database": database}, "collections": collections}
    return "\n".join(Policy.parse(data).warnings)


def test_warnings() -> None:
    """What is allowed but often a mistake is told to the operator."""
    own, safe = {"filter": {"t": "{tenant}"}, "fields": {"x": 0}}, {"fields": {"x": 0}}
    assert warnings("shop", {"a": own}) == ""
    assert warnings("d_{tenant}", {"a": safe}) == ""
    assert "collections.a: no filter" in warnings("shop", {"a": safe, "b": own})
    assert "names no claim" in warnings("shop", {"a": {**safe, "filter": {"t": 1}}})
    assert "collections.*" in warnings("d_{tenant}", {"*": safe})
    assert "whole documents: a, b" in warnings("d_{tenant}", {"a": {}, "b": {}})
    assert "allowPartial" in warnings("d_{tenant}", {"a": {**safe, "allowPartial": True}})
