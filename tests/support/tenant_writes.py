"""Writes of several owners and topics of several askers, for the property that nobody sees another's bytes.

Every value of a document carries its owner's marker; hidden values carry one more.
"""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
from hypothesis import strategies as st
from pymongo.collection import Collection

Rows = Collection[dict[str, Any]]


class Owner(msgspec.Struct, frozen=True):
    """Whom a document belongs to."""

    tenant: str
    team: str

    def mark(self, number: int) -> str:
        return f"<{self.tenant}/{self.team}/{number}>"


OWNERS = [Owner("alpha", "red"), Owner("alpha", "blue"), Owner("beta", "red")]
NUMBER = itertools.count()


def document(owner: Owner, number: int) -> dict[str, Any]:
    """Every value names its owner; what is hidden is marked as such."""
    mark = owner.mark(number)
    return {
        "tenantId": owner.tenant,
        "team": owner.team,
        "text": mark,
        "tags": [mark, {"text": mark}],
        "deep": {"text": mark, "cost": f"HIDDEN{mark}"},
        "cost": f"HIDDEN{mark}",
    }


# -- writes -----------------------------------------------------------------------------------------------------

owners = st.sampled_from(OWNERS)
keys = st.integers(0, 3)
writes = st.one_of(
    st.tuples(st.just("put"), keys, owners),
    st.tuples(st.just("replace"), keys, owners),
    st.tuples(st.just("move"), keys, owners),
    st.tuples(st.sampled_from(["change", "hide", "unset", "push", "delete"]), keys, owners),
)


class Database:
    """Carries out writes and keeps account of which keys an owner ever had."""

    def __init__(self, rows: dict[str, Rows]) -> None:
        self._rows = rows
        self._holder: dict[int, Owner] = {}
        self.known: dict[Owner, set[int]] = {owner: set() for owner in OWNERS}

    def write(self, what: str, key: int, owner: Owner) -> None:
        """A write into the tenant's own collection, or into the one that all share."""
        number = next(NUMBER)
        rows = self._rows[owner.tenant]
        holder = self._holder.get(key)
        if (
            self._rows["alpha"] is not self._rows["beta"]
            and holder is not None
            and holder.tenant != owner.tenant
        ):
            owner, rows = holder, self._rows[holder.tenant]
        if what in ("put", "replace"):
            rows.replace_one({"_id": key}, document(owner, number), upsert=True)
        elif holder is None:
            return
        elif what == "move":
            rows.update_one({"_id": key}, {"$set": document(owner, number)})
        elif what == "delete":
            rows.delete_one({"_id": key})
            del self._holder[key]
            return
        else:
            mark, owner = holder.mark(number), holder
            updates: dict[str, dict[str, Any]] = {
                "change": {"$set": {"text": mark, "deep.text": mark}},
                "hide": {"$set": {"cost": f"HIDDEN{mark}", "deep.cost": f"HIDDEN{mark}"}},
                "unset": {"$unset": {"deep.cost": 1, "cost": 1, "text": 1}},
                "push": {"$push": {"tags": mark}},
            }
            rows.update_one({"_id": key}, updates[what])
        self._holder[key] = owner
        self.known[owner].add(key)


# -- topics -----------------------------------------------------------------------------------------------------

marks = st.sampled_from(["<alpha/red/", "<alpha/blue/", "<beta/red/", "HIDDEN"])
fields = st.sampled_from(
    ["tenantId", "team", "text", "tags", "tags.text", "deep.text", "cost", "deep.cost", "deep"]
)
values = st.sampled_from(["alpha", "beta", "red", "blue", None, 1, "HIDDEN"])
conditions = st.one_of(
    values,
    st.builds(lambda value: {"$ne": value}, values),
    st.builds(lambda value: {"$gte": value}, st.just("")),
    st.builds(lambda value: {"$exists": value}, st.booleans()),
    st.builds(lambda value: {"$in": value}, st.lists(values, max_size=3)),
    st.builds(lambda value: {"$nin": value}, st.lists(values, max_size=3)),
    st.builds(lambda mark: {"$gte": mark, "$lt": f"{mark}~"}, marks),
    st.builds(lambda mark: {"$not": {"$gte": mark}}, marks),
)
simple = st.dictionaries(fields, conditions, max_size=2)
filters = st.recursive(
    simple,
    lambda inner: st.builds(
        lambda operator, parts: {operator: parts},
        st.sampled_from(["$or", "$and", "$nor"]),
        st.lists(inner, min_size=1, max_size=2),
    ),
    max_leaves=3,
)
projections: st.SearchStrategy[dict[str, int]] = st.one_of(
    st.just({}),
    st.dictionaries(fields.filter(lambda name: "." not in name), st.just(1), min_size=1, max_size=3),
    st.dictionaries(fields.filter(lambda name: "." not in name), st.just(0), min_size=1, max_size=3),
)
operations = st.one_of(
    st.none(), st.lists(st.sampled_from(["insert", "update", "replace", "delete"]), min_size=1, max_size=4)
)
topics = st.builds(
    lambda query, projection, wanted: {
        "filter": query,
        "fields": projection,
        **({} if wanted is None else {"operations": wanted}),
    },
    filters,
    projections,
    operations,
)
PRINCIPALS: list[tuple[str, list[str]]] = [
    ("alpha", ["red"]),
    ("alpha", ["red", "blue"]),
    ("beta", ["red", "blue"]),
    ("beta", ["blue"]),
    ("gamma", ["red", "blue"]),
]
