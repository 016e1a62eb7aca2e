"""Random writes into one collection: every kind of write and every update operator, from a seed.

The keys are few, so that each document is written several times and there is always one to insert, to change and to
remove; and not so few that a last write of some common kind repairs what went wrong before.
Types stay as they are where an operator needs them, so that most writes succeed; one that the engine refuses (`$push`
onto null, a key that exists) changes nothing and is counted by name. Values are those on which the engine's `find` is
right: no Decimal128, and no doubles beside the multiples of 1/4 that JSON carries exactly.

The embedded engine takes all of it. Not here, because it is not about documents: `drop` and `rename`. A pipeline never
removes a field and adds it again, which an update description cannot tell from an update in place (`core/images.py`).
"""

from __future__ import annotations

import datetime
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from bson import ObjectId
from pymongo import DeleteOne, InsertOne, ReplaceOne, UpdateOne
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError, OperationFailure

Rows = Collection[dict[str, Any]]
Document = dict[str, Any]
Write = Callable[[ClientSession | None], object]

STATUSES = ("open", "held", "closed")
TAGS = ("a", "b", "c", "d")
KINDS = ("x", "y", "z")
NAMES = ("ann", "anders", "bob", "Ann", "")
HIDDEN = "HIDDEN"
"""In each value of a field that the shared policy hides: `secret`, `deep.secret`, `items.cost`."""
_DAY = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class Update(NamedTuple):
    """`also`: what the query says beside the key, for the positional `$`."""

    change: Mapping[str, Any] | list[dict[str, Any]]
    also: Mapping[str, Any] = {}
    array_filters: Sequence[Mapping[str, Any]] | None = None


def item(rng: random.Random) -> Document:
    return {"k": rng.choice(KINDS), "q": rng.randint(0, 5), "cost": f"{HIDDEN}{rng.random()}"}


def document(rng: random.Random, tenant: str) -> Document:
    """A whole document; `maybe` is null, missing or of several types."""
    body: Document = {
        "tenantId": tenant,
        "status": rng.choice(STATUSES),
        "n": rng.randint(0, 10),
        "price": rng.randint(0, 20) / 4,
        "name": rng.choice(NAMES),
        "tags": rng.sample(TAGS, rng.randint(0, 3)),
        "scores": [rng.randint(0, 9) for _ in range(rng.randint(0, 3))],
        "items": [item(rng) for _ in range(rng.randint(0, 3))],
        "deep": {"a": rng.randint(0, 5), "b": {"c": rng.randint(0, 5)}, "secret": f"{HIDDEN}{rng.random()}"},
        "at": _DAY + datetime.timedelta(days=rng.randint(0, 9), milliseconds=rng.randint(0, 9)),
        "secret": f"{HIDDEN}{rng.random()}",
    }
    if rng.random() < 0.7:
        body["maybe"] = rng.choice((None, None, 1, "one", True, [], [None]))
    return body


UPDATES: dict[str, Callable[[random.Random], Update]] = {
    "$set": lambda rng: Update({"$set": {"status": rng.choice(STATUSES)}}),
    "$set null": lambda rng: Update({"$set": {"maybe": rng.choice((None, 1, "one", [None]))}}),
    "$set dotted": lambda rng: Update({"$set": {"deep.b.c": rng.randint(0, 5), "n": rng.randint(0, 10)}}),
    "$set new parent": lambda rng: Update({"$set": {f"more.{rng.choice(KINDS)}.v": rng.randint(0, 5)}}),
    "$set hidden": lambda rng: Update({"$set": {"secret": HIDDEN, "deep.secret": f"{HIDDEN}{rng.random()}"}}),
    "$set parent": lambda rng: Update({"$set": {"deep": {"a": 1, "b": {"c": 1}, "secret": HIDDEN}}}),
    "$set array": lambda rng: Update({"$set": {"items": [item(rng) for _ in range(rng.randint(0, 2))]}}),
    "$set index": lambda rng: Update({"$set": {f"tags.{rng.randint(0, 4)}": rng.choice(TAGS)}}),
    "$set positional": lambda rng: Update(
        {"$set": {"items.$.q": rng.randint(0, 5)}}, {"items.k": rng.choice(KINDS)}
    ),
    "$set all positional": lambda rng: Update({"$inc": {"items.$[].q": rng.choice((-1, 1))}}),
    "arrayFilters": lambda rng: Update(
        {"$set": {"items.$[one].k": rng.choice(KINDS)}}, {}, [{"one.q": {"$gte": rng.randint(0, 4)}}]
    ),
    "$unset": lambda rng: Update({"$unset": {rng.choice(("maybe", "name", "deep.a", "more", "secret")): 1}}),
    "$unset index": lambda rng: Update({"$unset": {"tags.0": 1}}),
    "$inc": lambda rng: Update({"$inc": {"n": rng.randint(-3, 3), "deep.a": 1}}),
    "$mul": lambda rng: Update({"$mul": {"price": rng.choice((0.5, 2, -1)), "zero": 3}}),
    "$min": lambda rng: Update({"$min": {"n": rng.randint(0, 5)}}),
    "$max": lambda rng: Update({"$max": {"n": rng.randint(3, 10)}}),
    "$rename": lambda rng: Update({"$rename": rng.choice(({"name": "title"}, {"title": "name"}))}),
    "$rename into": lambda rng: Update({"$rename": {"deep.a": "deep.z"}}),
    "$currentDate": lambda rng: Update({"$currentDate": {"at": True}}),
    "$push": lambda rng: Update({"$push": {"tags": rng.choice(TAGS)}}),
    "$push each": lambda rng: Update(
        {"$push": {"items": {"$each": [item(rng), item(rng)], "$position": rng.randint(0, 2), "$slice": 4}}}
    ),
    "$push sorted": lambda rng: Update(
        {"$push": {"scores": {"$each": [rng.randint(0, 9)], "$sort": rng.choice((1, -1)), "$slice": 3}}}
    ),
    "$push sorted by field": lambda rng: Update(
        {"$push": {"items": {"$each": [item(rng)], "$sort": {"q": 1}, "$slice": -3}}}
    ),
    "$pull": lambda rng: Update({"$pull": {"tags": rng.choice(TAGS)}}),
    "$pull by condition": lambda rng: Update(
        {"$pull": {"scores": {"$gte": rng.randint(3, 9)}, "items": {"k": rng.choice(KINDS)}}}
    ),
    "$pullAll": lambda rng: Update({"$pullAll": {"tags": rng.sample(TAGS, 2)}}),
    "$pop": lambda rng: Update({"$pop": {rng.choice(("tags", "scores", "items")): rng.choice((1, -1))}}),
    "$addToSet": lambda rng: Update({"$addToSet": {"tags": {"$each": rng.sample(TAGS, 2)}}}),
    "$bit": lambda rng: Update({"$bit": {"n": {rng.choice(("and", "or", "xor")): rng.randint(0, 7)}}}),
    "pipeline": lambda rng: Update(
        [{"$set": {"n": {"$mod": [{"$add": ["$n", rng.randint(1, 5)]}, 11]}, "deep.b.c": "$n"}}]
    ),
    "pipeline on arrays": lambda rng: Update(
        [{"$set": {"scores": {"$concatArrays": [{"$slice": ["$scores", 2]}, [rng.randint(0, 9)]]}}}]
    ),
    "pipeline $unset": lambda rng: Update([{"$unset": rng.choice((["name"], ["maybe", "title"]))}]),
    "pipeline $replaceWith": lambda rng: Update(
        [{"$replaceWith": {"$mergeObjects": ["$$ROOT", {"status": rng.choice(STATUSES)}]}}]
    ),
}


class RandomWriter:
    """Writes into `rows`, one write or transaction for each call. `done` and `refused` count by name.

    `tenants`: the values of `tenantId`, between which documents move.
    """

    def __init__(self, rows: Rows, rng: random.Random, tenants: Sequence[str], keys: int = 40) -> None:
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._rows = rows
        self._rng = rng
        self._tenants = tenants
        self._keys: list[Any] = [*range(keys - 2), "a key", ObjectId(rng.randbytes(12))]
        self._operators = self._endless_operators()
        self._others: dict[str, tuple[int, Write]] = {
            "insert": (6, self._insert),
            "insertMany": (2, self._insert_many),
            "replaceOne": (4, self._replace),
            "findOneAndReplace": (2, self._find_one_and_replace),
            "findOneAndUpdate": (2, self._find_one_and_update),
            "upsert with $setOnInsert": (4, self._upsert),
            "updateMany": (3, self._update_many),
            "bulkWrite": (2, self._bulk),
            "deleteOne": (4, self._delete),
            "deleteMany": (1, self._delete_many),
            "change of tenant": (5, self._move),
        }

    def fill(self) -> None:
        """A document for every key, in one write."""
        self._rows.insert_many([self._new(key) for key in self._keys])

    def write(self) -> None:
        """One random write, or a transaction of some."""
        if self._rng.random() < 0.15:
            self._transaction()
        else:
            self._count(*self._one(None))

    @property
    def names(self) -> list[str]:
        """All that `done` can count."""
        return [*UPDATES, *self._others, "commit", "abort"]

    def _count(self, name: str, taken: bool) -> None:
        (self.done if taken else self.refused)[name] += 1

    def _one(self, session: ClientSession | None) -> tuple[str, bool]:
        """What was tried, and whether the engine took it."""
        if self._rng.random() < 0.6:
            name = next(self._operators)
            update = UPDATES[name](self._rng)
            write: Write = partial(self._update, update)
        else:
            (name,) = self._rng.choices(list(self._others), [weight for weight, _ in self._others.values()])
            write = self._others[name][1]
        try:
            write(session)
        except (OperationFailure, BulkWriteError):
            return name, False
        return name, True

    def _transaction(self) -> None:
        """Up to five writes, committed or aborted; one that is refused aborts them all."""
        with self._rows.database.client.start_session() as session:
            session.start_transaction()
            tried: list[tuple[str, bool]] = []
            for _ in range(self._rng.randint(2, 5)):
                tried.append(self._one(session))
                if not tried[-1][1]:
                    break
            commits = tried[-1][1] and self._rng.random() < 0.75
            if commits:
                session.commit_transaction()
            else:
                session.abort_transaction()
        self.done["commit" if commits else "abort"] += 1
        for name, taken in tried:
            if commits or not taken:
                self._count(name, taken)

    def _endless_operators(self) -> Iterator[str]:
        """Every operator in turn, each round in another order."""
        while True:
            yield from self._rng.sample(list(UPDATES), len(UPDATES))

    def _new(self, key: Any) -> Document:
        return {"_id": key, **document(self._rng, self._rng.choice(self._tenants))}

    def _key(self) -> Any:
        return self._rng.choice(self._keys)

    def _missing(self, session: ClientSession | None) -> list[Any]:
        """Keys that can be inserted, or one that cannot."""
        held = [row["_id"] for row in self._rows.find({}, {"_id": 1}, session=session)]
        return [key for key in self._keys if key not in held] or [self._key()]

    def _update(self, update: Update, session: ClientSession | None) -> None:
        query = {"_id": self._key(), **update.also}
        self._rows.update_one(query, update.change, array_filters=update.array_filters, session=session)

    def _insert(self, session: ClientSession | None) -> None:
        self._rows.insert_one(self._new(self._missing(session)[0]), session=session)

    def _insert_many(self, session: ClientSession | None) -> None:
        self._rows.insert_many([self._new(key) for key in self._missing(session)[:3]], session=session)

    def _replace(self, session: ClientSession | None) -> None:
        new = document(self._rng, self._rng.choice(self._tenants))
        self._rows.replace_one({"_id": self._key()}, new, upsert=self._rng.random() < 0.3, session=session)

    def _find_one_and_replace(self, session: ClientSession | None) -> None:
        new = document(self._rng, self._rng.choice(self._tenants))
        self._rows.find_one_and_replace({"_id": self._key()}, new, session=session)

    def _find_one_and_update(self, session: ClientSession | None) -> None:
        change = {"$set": {"status": self._rng.choice(STATUSES)}, "$push": {"tags": self._rng.choice(TAGS)}}
        self._rows.find_one_and_update({"_id": self._key()}, change, session=session)

    def _upsert(self, session: ClientSession | None) -> None:
        new = document(self._rng, self._rng.choice(self._tenants))
        change = {"$set": {"n": new.pop("n")}, "$setOnInsert": new}
        self._rows.update_one({"_id": self._key()}, change, upsert=True, session=session)

    def _update_many(self, session: ClientSession | None) -> None:
        change = {"$inc": {"n": 1}, "$set": {"status": self._rng.choice(STATUSES)}}
        self._rows.update_many({"status": self._rng.choice(STATUSES)}, change, session=session)

    def _bulk(self, session: ClientSession | None) -> None:
        first, second = self._rng.sample(self._keys, 2)
        new = document(self._rng, self._rng.choice(self._tenants))
        self._rows.bulk_write(
            [
                DeleteOne({"_id": first}),
                InsertOne(self._new(first)),
                UpdateOne({"_id": first}, {"$inc": {"n": 1}}),
                ReplaceOne({"_id": second}, new),
            ],
            session=session,
        )

    def _delete(self, session: ClientSession | None) -> None:
        self._rows.delete_one({"_id": self._key()}, session=session)

    def _delete_many(self, session: ClientSession | None) -> None:
        self._rows.delete_many({"_id": {"$in": self._rng.sample(self._keys, 3)}}, session=session)

    def _move(self, session: ClientSession | None) -> None:
        """Another tenant, and new values in the same write."""
        tenant = self._rng.choice(self._tenants)
        change = {
            "$set": {"tenantId": tenant, "secret": f"{HIDDEN}{self._rng.random()}", "name": f"of {tenant}"}
        }
        self._rows.update_one({"_id": self._key()}, change, session=session)
