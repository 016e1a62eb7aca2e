"""Random writes: few documents, so that filters are entered and left all the time."""

from __future__ import annotations

from feedsvc.core.changes import Namespace
from tests.simulation.world import World


class Writer:
    def __init__(self, world: World, tenants: tuple[str, ...], collections: tuple[str, ...]) -> None:
        self._world = world
        self._oplog = world.oplog
        self._rng = world.rng
        self._databases = [f"app_{tenant}" for tenant in tenants]
        self._collections = collections

    def write(self) -> None:
        rng, oplog = self._rng, self._oplog
        database = rng.choice(self._databases)
        # One collection in five is one that nobody watches.
        collection = "unwatched" if rng.random() < 0.2 else rng.choice(self._collections)
        document_id, value = rng.randrange(4), rng.randrange(4)
        exists = oplog.document(Namespace(database, collection), document_id) is not None
        if not exists:
            oplog.insert(database, collection, {"_id": document_id, "v": value})
        else:
            chosen = rng.random()
            if chosen < 0.6:
                oplog.update(database, collection, document_id, {"v": value})
            elif chosen < 0.8:
                oplog.replace(database, collection, {"_id": document_id, "v": value})
            else:
                oplog.delete(database, collection, document_id)

    def transaction(self, writes: int) -> None:
        with self._oplog.transaction():
            for _ in range(writes):
                self.write()

    def drop(self) -> None:
        """End a collection or a database, or begin one that keeps images or does not."""
        rng, oplog = self._rng, self._oplog
        database, collection = rng.choice(self._databases), rng.choice(self._collections)
        exists = (database, collection) in oplog._documents
        chosen = rng.random()
        if chosen < 0.15:
            oplog.create(database, collection, images=rng.random() < 0.6)
        elif not exists:
            self.write()
        elif chosen < 0.6:
            oplog.drop(database, collection)
        elif chosen < 0.9:
            target = rng.choice(("unwatched", *self._collections))
            if target != collection:
                oplog.rename(database, collection, target)
        else:
            oplog.drop_database(database)
