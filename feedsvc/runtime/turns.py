"""Turns: a bounded number of slots that tenants take in turn, whoever came first.

Behind a queue in order of arrival one tenant whose thousand clients come back would make everybody else wait for all
of them. Here each tenant has a queue of its own, the next free slot goes to the next tenant in the circle, and no
tenant holds more than its share. Nothing waits in here: who leaves says so, and who is next is told by `next`.

O(1) for everything, but for tenants at their share, which `next` passes over.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """`slots` in all, at most `share` of them for one tenant."""

    def __init__(self, slots: int, share: int) -> None:
        self._slots = slots
        self._share = share
        self._taken: Counter[str] = Counter()
        self._queues: OrderedDict[str, OrderedDict[T, None]] = OrderedDict()

    @property
    def taken(self) -> int:
        return self._taken.total()

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    def wait(self, tenant: str, item: T) -> None:
        """Queue. One that is queued already keeps its place."""
        self._queues.setdefault(tenant, OrderedDict()).setdefault(item, None)

    def leave(self, tenant: str, item: T) -> None:
        """No longer queued; it may never have been."""
        queue = self._queues.get(tenant)
        if queue is not None:
            queue.pop(item, None)
            if not queue:
                del self._queues[tenant]

    def next(self) -> T | None:
        """Whose turn it is; it has a slot now, to be given back with `free`. None where nobody can have one."""
        if self.taken >= self._slots:
            return None
        for tenant, queue in self._queues.items():
            if self._taken[tenant] >= self._share:
                continue
            item, _ = queue.popitem(last=False)
            if queue:
                self._queues.move_to_end(tenant)
            else:
                del self._queues[tenant]
            self._taken[tenant] += 1
            return item
        return None

    def wanted(self, tenant: str) -> bool:
        """Whether a slot that a tenant gave back would be somebody's at once. O(tenants that wait)."""
        all_taken = self.taken >= self._slots
        return any(name == tenant or (all_taken and self._taken[name] < self._share) for name in self._queues)

    def free(self, tenant: str) -> None:
        self._taken[tenant] -= 1
        if not self._taken[tenant]:
            del self._taken[tenant]
