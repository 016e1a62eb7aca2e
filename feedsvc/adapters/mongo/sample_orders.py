"""Sample orders for `feedsvc demo`: a shop that is always open, one change at a time.

Synchronous, because it runs beside the service and not in it. Two tenants share the collection, so that the demo shows
that a client of one sees nothing of the other, and each order has a `cost` that the policy hides.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from bson import ObjectId
from pymongo import MongoClient
from pymongo.errors import CollectionInvalid, PyMongoError

TENANTS = ("acme", "globex")
COLLECTION = "orders"
_STATUSES = ("open", "paid", "shipped")
_KEPT = 20
_PRODUCTS = ("lamp", "chair", "desk", "shelf", "mirror", "rug")


class SampleError(Exception):
    """MongoDB does not do what the demo needs; the message is for people and holds no credentials."""


class SampleOrders:
    """Writes into `database`.orders behind `uri`. `prepare` until it succeeds, then `step` about once a second."""

    def __init__(self, uri: str, database: str, *, wait_s: float = 1.0) -> None:
        """`wait_s`: how long one call may look for the server. Raises SampleError for a bad URI."""
        try:
            self._client: MongoClient[dict[str, Any]] = MongoClient(
                uri, serverSelectionTimeoutMS=int(wait_s * 1000), appname="feedsvc-demo"
            )
        except (PyMongoError, ValueError) as error:
            raise SampleError(f"the URI of MongoDB cannot be used ({type(error).__name__})") from None
        self._database = self._client[database]
        self._orders = self._database[COLLECTION]
        self._open: deque[tuple[ObjectId, int]] = deque()
        """The orders of this run, oldest first, with the index of their status."""

    def prepare(self) -> None:
        """Create the collection empty of old samples, with pre- and post-images. Raises SampleError: try again."""
        try:
            try:
                self._database.create_collection(COLLECTION)
            except CollectionInvalid:
                self._orders.delete_many({})
            self._database.command("collMod", COLLECTION, changeStreamPreAndPostImages={"enabled": True})
        except PyMongoError as error:
            raise SampleError(_said(error)) from None

    def step(self) -> None:
        """One change: mostly an order that comes or moves on, and the oldest goes once there are many."""
        try:
            if len(self._open) > _KEPT:
                self._orders.delete_one({"_id": self._open.popleft()[0]})
            elif not self._open or random.random() < 0.5:
                self._insert()
            else:
                self._advance()
        except PyMongoError as error:
            raise SampleError(_said(error)) from None

    def close(self) -> None:
        self._client.close()

    def _insert(self) -> None:
        order = ObjectId()
        self._orders.insert_one(
            {
                "_id": order,
                "tenantId": random.choice(TENANTS),
                "product": random.choice(_PRODUCTS),
                "status": _STATUSES[0],
                "total": random.randint(10, 500),
                "cost": random.randint(1, 9),
            }
        )
        self._open.append((order, 0))

    def _advance(self) -> None:
        """Move a random order on to its next status; the last one stays."""
        at = random.randrange(len(self._open))
        order, status = self._open[at]
        status = min(status + 1, len(_STATUSES) - 1)
        self._open[at] = (order, status)
        self._orders.update_one({"_id": order}, {"$set": {"status": _STATUSES[status]}, "$inc": {"total": 1}})


def _said(error: PyMongoError) -> str:
    code = getattr(error, "code", None)
    return type(error).__name__ if code is None else f"{type(error).__name__}, code {code}"
