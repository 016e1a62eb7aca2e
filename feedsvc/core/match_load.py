"""What the topics of one tenant on one collection may cost a change in vain, so that it can be bounded.

It is counted in conditions (`matcher.plan(topic).cost`). A topic that is scanned costs its conditions at every change.
One that look-ups find, but that has more to ask, costs them only where it is found: a document with one value for each
path leads to one entry of each table, so of the topics whose look-ups have the same fields the dearest entry counts.
Arrays lead to several entries; they are the writer's, and not counted.

`add` and `remove` cost what the topic has look-up keys; `conditions` the number of different combinations of fields.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import product

from feedsvc.core.access_paths import Branch, Field, Key, access_path
from feedsvc.core.matcher import cost_in_vain
from feedsvc.core.topics import Topic

_Shape = tuple[Field, ...]
_Entry = tuple[Key, ...]


class _Table:
    """The load of the entries of one shape. `_loads` counts how many have each load: the greatest is known at once."""

    __slots__ = ("_entries", "_loads")

    def __init__(self) -> None:
        self._entries: dict[_Entry, int] = {}
        self._loads: Counter[int] = Counter()

    @property
    def greatest(self) -> int:
        return max(self._loads, default=0)

    def change(self, entry: _Entry, by: int) -> None:
        before = self._entries.pop(entry, 0)
        after = before + by
        if before:
            self._loads[before] -= 1
            if not self._loads[before]:
                del self._loads[before]
        if after:
            self._entries[entry] = after
            self._loads[after] += 1


class MatchLoad:
    """The load of some topics. Pair each `add` with a `remove` of an equal topic."""

    __slots__ = ("_scanned", "_tables")

    def __init__(self) -> None:
        self._scanned = 0
        self._tables: dict[_Shape, _Table] = {}

    def __bool__(self) -> bool:
        return bool(self._scanned or self._tables)

    @property
    def conditions(self) -> int:
        """The most that one change may cost in vain, but for arrays."""
        return self._scanned + sum(table.greatest for table in self._tables.values())

    def add(self, topic: Topic) -> None:
        self._change(topic, 1)

    def remove(self, topic: Topic) -> None:
        self._change(topic, -1)

    def _change(self, topic: Topic, sign: int) -> None:
        path = access_path(topic)
        cost = cost_in_vain(topic, path) * sign
        if not cost:
            return
        if path.branches is None:
            self._scanned += cost
            return
        for shape, entry in _entries(path.branches):
            table = self._tables.get(shape)
            if table is None:
                table = self._tables[shape] = _Table()
            table.change(entry, cost)
            if not table.greatest:
                del self._tables[shape]


def _entries(branches: Iterable[Branch]) -> Iterator[tuple[_Shape, _Entry]]:
    for branch in branches:
        shape = tuple(field for field, _ in branch.fields)
        for entry in product(*(keys for _, keys in branch.fields)):
            yield shape, entry
