"""Look-ups: hash tables from the values of documents to the topics that ask for them.

A tree in which levels of two kinds alternate. A `_Level` holds the topics whose branch ends there, and for each view a
tree of path parts; where a path ends, a `_Node` has the table from value to the next level. Topics of one shape share
all but their last table; an entry that leads to one topic and nothing else is that topic, without a level.

`find` goes down both trees at once, along names that the document has, so what it costs does not depend on how many
topics, values, paths or shapes there are, but on the document, and on how many entries it hits:

* at each node it takes the smaller of the document's names and the tree's; at each table the smaller of the document's
  values and the table's;
* what a path reaches, and the keys of the values there, are computed once for each document (`Reading`), however many
  levels ask. An array costs its length once. Documents and arrays as values get keys only where the table has such.

A document without arrays that is looked up by n fields costs n hash look-ups. The worst case is a visit of every entry
of the index, which is what asking every topic would cost.

Adding and removing cost as much as the branches have keys and their paths parts. What is empty is removed.

The elements that a path reaches here are all that `filters.compile` would test, and some more: an element found by its
index is spread, too. Too many candidates do no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from feedsvc.core.access_paths import WHOLE, Branch, Field, Key
from feedsvc.core.changes import Document
from feedsvc.core.filters.values import ARRAY, DOCUMENT, as_document, bracket, value_key
from feedsvc.core.images import array_index
from feedsvc.core.projection import IDENTITY, Projection

T = TypeVar("T", bound=Hashable)

_COMPOUND = (DOCUMENT, ARRAY)
_FEW = 16
"""So many names are tried one by one in a document, before the names that arrays lead to are put together."""


class Reading:
    """One document as look-ups read it. Keep it while that document is looked up, and no longer."""

    __slots__ = ("_keys", "_names", "_reached")

    def __init__(self, document: Document) -> None:
        self._reached: dict[str, Sequence[Any]] = {"": (document,)}
        self._names: dict[str, Collection[str]] = {}
        self._keys: dict[tuple[str, bool], Collection[Key]] = {}

    def keys(self, path: str, compound: bool) -> Collection[Key]:
        """Of every value that the path can mean; of documents and arrays only if `compound`."""
        keys = self._keys.get((path, compound))
        if keys is None:
            keys = self._keys[path, compound] = _keys(self.reached(path), compound)
        return keys

    def reached(self, path: str) -> Sequence[Any]:
        """The values to which the path leads, arrays on the way entered by name and by index."""
        values = self._reached.get(path)
        if values is None:
            above, _, part = path.rpartition(".")
            values = self._reached[path] = _below(self.reached(above), part)
        return values

    def names(self, path: str) -> Collection[str]:
        """The parts that can follow the path."""
        names = self._names.get(path)
        if names is None:
            reached = self.reached(path)
            if len(reached) == 1 and isinstance(reached[0], dict):
                names = reached[0].keys()
            else:
                names = set().union(*map(_names, reached))
            self._names[path] = names
        return names


def _keys(values: Sequence[Any], compound: bool) -> Collection[Key]:
    if len(values) == 1 and type(values[0]) is not list and type(values[0]) is not dict:
        return (value_key(values[0]),)
    found = set()
    for value in values:
        for element in (value, *value) if type(value) is list else (value,):
            if compound or bracket(element) not in _COMPOUND:
                found.add(value_key(element))
    return found


def _below(values: Sequence[Any], part: str) -> Sequence[Any]:
    found: list[Any] = []
    for value in values:
        if type(value) is dict:
            if part in value:
                found.append(value[part])
        elif type(value) is list:
            documents = [document for element in value if (document := as_document(element)) is not None]
            found += [document[part] for document in documents if part in document]
            index = array_index(part)
            if index is not None and index < len(value):
                found.append(value[index])
        else:
            document = as_document(value) or {}
            if part in document:
                found.append(document[part])
    return found


def _names(value: Any) -> Iterable[str]:
    if type(value) is not list:
        return as_document(value) or ()
    names = {name for element in value for name in as_document(element) or ()}
    names.update(map(str, range(len(value))))
    return names


Readings = Callable[[bytes, Projection], Reading]
"""The reading of the document at hand in a view: whole, or behind a projection."""


class _Node(Generic[T]):
    """A part of a path. `entries`: what is below each value at the end of the path. `compounds` counts those under
    documents and arrays."""

    __slots__ = ("children", "compounds", "entries", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.children: dict[str, _Node[T]] = {}
        self.entries: dict[Key, _Level[T] | T] = {}
        self.compounds = 0

    def put(self, key: Key, entry: _Level[T] | T) -> None:
        self.compounds += key[0] in _COMPOUND and key not in self.entries
        self.entries[key] = entry

    def drop(self, key: Key) -> None:
        del self.entries[key]
        self.compounds -= key[0] in _COMPOUND

    def present(self, reading: Reading) -> Iterable[_Node[T]]:
        """The children whose name the document has here."""
        children = self.children
        reached = reading.reached(self.path)
        if len(reached) == 1 and type(reached[0]) is dict:
            names: Collection[str] = reached[0]
        elif len(children) <= _FEW:
            return list(children.values()) if reached else ()
        else:
            names = reading.names(self.path)
        if len(names) < len(children):
            return [children[name] for name in names if name in children]
        return [child for name, child in children.items() if name in names]


class _Level(Generic[T]):
    __slots__ = ("items", "views")

    def __init__(self) -> None:
        self.items: dict[T, None] = {}
        self.views: dict[bytes, tuple[Projection, _Node[T]]] = {}

    def __bool__(self) -> bool:
        return bool(self.items or self.views)


class Lookups(Generic[T]):
    """An index of items by branches. `remove` takes what `add` was given."""

    def __init__(self) -> None:
        self._root: _Level[T] = _Level()

    def __bool__(self) -> bool:
        return bool(self._root)

    def add(self, item: T, branches: Iterable[Branch], fields: Projection) -> None:
        """`fields` makes the view of those fields that are not of the whole document."""
        for branch in branches:
            _add(self._root, item, branch.fields, fields)

    def remove(self, item: T, branches: Iterable[Branch]) -> None:
        for branch in branches:
            _remove(self._root, item, branch.fields)

    def find(self, readings: Readings, found: dict[T, None]) -> None:
        """Put every item into `found` of which a branch may hold for the document of these readings."""
        levels = [self._root]
        while levels:
            level = levels.pop()
            if level.items:
                found.update(level.items)
            for view, (projection, root) in level.views.items():
                reading = readings(view, projection)
                nodes = [root]
                while nodes:
                    for child in nodes.pop().present(reading):
                        if child.children:
                            nodes.append(child)
                        if child.entries:
                            for entry in _hits(child, reading):
                                if type(entry) is _Level:
                                    levels.append(entry)
                                else:
                                    found[entry] = None  # type: ignore[index]


_Fields = Sequence[tuple[Field, tuple[Key, ...]]]


def _hits(node: _Node[T], reading: Reading) -> Iterable[_Level[T] | T]:
    entries = node.entries
    keys = reading.keys(node.path, node.compounds > 0)
    if len(keys) <= len(entries):
        return [entries[key] for key in keys if key in entries]
    return [entry for key, entry in entries.items() if key in keys]


def _add(level: _Level[T], item: T, branch: _Fields, projection: Projection) -> None:
    if not branch:
        level.items[item] = None
        return
    (field, keys), rest = branch[0], branch[1:]
    view = level.views.get(field.view)
    if view is None:
        view = level.views[field.view] = (IDENTITY if field.view == WHOLE else projection, _Node(""))
    node = view[1]
    for part in field.path.split("."):
        below = node.children.get(part)
        if below is None:
            below = node.children[part] = _Node(f"{node.path}.{part}" if node.path else part)
        node = below
    for key in keys:
        entry = node.entries.get(key)
        if not rest and (entry is None or entry is item):
            node.put(key, item)
            continue
        if type(entry) is not _Level:
            upgraded: _Level[T] = _Level()
            if entry is not None:
                upgraded.items[entry] = None  # type: ignore[index]
            node.put(key, upgraded)
            entry = upgraded
        _add(entry, item, rest, projection)


def _remove(level: _Level[T], item: T, branch: _Fields) -> None:
    """Two branches of an item may share places, so what is gone already is passed over."""
    if not branch:
        level.items.pop(item, None)
        return
    (field, keys), rest = branch[0], branch[1:]
    view = level.views.get(field.view)
    if view is None:
        return
    trail = [view[1]]
    parts = field.path.split(".")
    for part in parts:
        below = trail[-1].children.get(part)
        if below is None:
            return
        trail.append(below)
    node = trail[-1]
    for key in keys:
        entry = node.entries.get(key)
        if type(entry) is _Level:
            _remove(entry, item, rest)
            if not entry:
                node.drop(key)
        elif entry is item and not rest:
            node.drop(key)
    while parts and not (trail[-1].entries or trail[-1].children):
        trail.pop()
        del trail[-1].children[parts.pop()]
    if not trail[0].children:
        del level.views[field.view]
