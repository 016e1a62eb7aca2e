"""MongoDB as the source of changes: the one owner of PyMongo."""

from __future__ import annotations

from feedsvc.adapters.mongo.driver import MongoSource

__all__ = ["MongoSource"]
