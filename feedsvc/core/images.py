"""The document after an update: pre-image plus `updateDescription`, exact at that event.

An update description names places by dotted paths, in which `a.0` can be an index or a field, and `a.b` a field in a
field or one field whose name has a dot. Two things decide, in this order:

* `disambiguatedPaths` (streams opened with showExpandedEvents, all streams from MongoDB 8.2). Where the key is there,
  it lists every path that has a field name with a dot, or a numeric field name behind the first part; in a path
  that it does not list, a number behind the first part is an index;
* the pre-image: an update goes through containers that exist, so every part but the last must lead into one. A name
  with a dot counts only if the pre-image has it. Two readings, or none, are an `AmbiguousDeltaError`.

Fields keep their place and new ones go to the end, as the server does. Two things the event does not say: that a
pipeline moved a field to the end by removing it and adding it again (the image keeps the old place), and that
`a.b` was written both as a field in `a` and as one name (the event has one entry for the two).

Sources: mongo/db/update/document_diff_applier.cpp, db/pipeline/change_stream_document_diff_parser.cpp; manual,
change events, update.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bson.dbref import DBRef

Place = tuple[str | int, ...]
"""A path that is decided: a str is a field name, an int an array index."""

_MAX_INDEX_DIGITS = 9
_MAX_PADDING = 1_500_000
"""Nulls put before a far index. MongoDB itself refuses to pad further ($set beyond 1,500,000 new elements)."""


class AmbiguousDeltaError(Exception):
    """The update description does not say what the document is now.

    A topic that needs no membership takes the lookup instead. An exact one is lost (`images_lost`): the lookup may be
    of any later state, so that membership decided on it would tell of a later event, and once more at that event.
    """


def after_image(before: Mapping[str, Any], update_description: Mapping[str, Any]) -> dict[str, Any]:
    """The document after the update. Neither argument is changed; parts that did not change are shared with `before`.

    Raises `AmbiguousDeltaError` where the two do not fit together or can be read in two ways.
    """
    updated: Mapping[str, Any] = update_description.get("updatedFields") or {}
    removed: Sequence[str] = update_description.get("removedFields") or ()
    truncated: Sequence[Mapping[str, Any]] = update_description.get("truncatedArrays") or ()
    known: Mapping[str, Any] | None = update_description.get("disambiguatedPaths")
    after = _Copy(before)
    for path in removed:
        after.remove(place_of(path, before, known))
    for entry in truncated:
        after.resize(place_of(entry["field"], before, known), entry["newSize"])
    for path, value in updated.items():
        if "." in path:
            after.put(place_of(path, before, known), value)
        else:
            after.root[path] = value
    return after.root


def place_of(path: str, before: Mapping[str, Any], known: Mapping[str, Any] | None = None) -> Place:
    """The one place that a path of an update description means in a document; `known` is `disambiguatedPaths`.

    Any image of the document will do that has the containers on the way (the pre-image always has them).
    """
    if "." not in path:
        return (path,)
    if known is not None:
        return stated_place(path, known)
    readings = _readings(before, path.split("."))
    place = next(readings, None)
    if place is None or next(readings, None) is not None:
        raise AmbiguousDeltaError("a path of the update has no single meaning in the pre-image")
    return place


def stated_place(path: str, known: Mapping[str, Any]) -> Place:
    """The place of a path by `disambiguatedPaths` alone. A path that is not listed has neither names with dots nor
    numeric names behind the first part."""
    if path in known:
        return tuple(part if isinstance(part, str) else int(part) for part in known[path])
    return usual_place(path)


def usual_place(path: str) -> Place:
    """Plain names, and numbers behind the first part as indexes."""
    first, *others = path.split(".")
    indexes = [array_index(part) for part in others]
    return (first, *(part if index is None else index for part, index in zip(others, indexes, strict=True)))


def _readings(node: object, parts: list[str]) -> Iterator[Place]:
    """Every way to read the parts from a node on, shortest names first."""
    if isinstance(node, DBRef):
        node = node.as_doc()
    if isinstance(node, list):
        part = parts[0]
        index = array_index(part)
        if index is None:
            return
        if len(parts) == 1:
            yield (index,)
        elif index < len(node):
            for rest in _readings(node[index], parts[1:]):
                yield (index, *rest)
        return
    if not isinstance(node, Mapping):
        return
    if len(parts) == 1:
        yield (parts[0],)
        return
    name = parts[0]
    if name in node:
        for rest in _readings(node[name], parts[1:]):
            yield (name, *rest)
    for end in range(2, len(parts) + 1):
        name = ".".join(parts[:end])
        if name not in node:
            continue
        if end == len(parts):
            yield (name,)
            continue
        for rest in _readings(node[name], parts[end:]):
            yield (name, *rest)


def array_index(part: str) -> int | None:
    """The index that a part of a path can mean; "00" and what no array is long enough for are names only."""
    if not part.isdigit() or not part.isascii() or len(part) > _MAX_INDEX_DIGITS:
        return None
    return int(part) if part[0] != "0" or part == "0" else None


class _Copy:
    """A document that is copied only along the paths that are written."""

    def __init__(self, before: Mapping[str, Any]) -> None:
        self.root: dict[str, Any] = dict(before)
        # Identities of the containers that belong to this copy; they live as long as the root does.
        self._owned = {id(self.root)}

    def put(self, place: Place, value: Any) -> None:
        container = self._own(place[:-1])
        last = place[-1]
        if isinstance(container, list):
            index = _as_index(last)
            missing = index + 1 - len(container)
            if missing > _MAX_PADDING:
                raise AmbiguousDeltaError("an array index of the update is too far away")
            container.extend([None] * missing)
            container[index] = value
        else:
            container[_as_name(last)] = value

    def remove(self, place: Place) -> None:
        container = self._own(place[:-1])
        if isinstance(container, list):
            raise AmbiguousDeltaError("the update removes an element of an array")
        if container.pop(_as_name(place[-1]), self) is self:
            raise AmbiguousDeltaError("the update removes a field that the pre-image does not have")

    def resize(self, place: Place, size: int) -> None:
        array = self._own(place)
        if not isinstance(array, list) or not 0 <= size <= len(array) + _MAX_PADDING:
            raise AmbiguousDeltaError("the update resizes an array that the pre-image does not have")
        del array[size:]
        array.extend([None] * (size - len(array)))

    def _own(self, place: Place) -> dict[str, Any] | list[Any]:
        """The container at a place, made writable on the way."""
        container: Any = self.root
        for part in place:
            try:
                child = container[_as_index(part) if isinstance(container, list) else _as_name(part)]
            except (KeyError, IndexError):
                raise AmbiguousDeltaError("the update goes through a field that is not there") from None
            if id(child) not in self._owned:
                if isinstance(child, Mapping):
                    child = dict(child)
                elif isinstance(child, list):
                    child = child.copy()
                elif isinstance(child, DBRef):
                    child = dict(child.as_doc())
                else:
                    raise AmbiguousDeltaError("the update goes through a value that is no container")
                self._owned.add(id(child))
                container[part] = child
            container = child
        return container  # type: ignore[no-any-return]


def _as_index(part: str | int) -> int:
    if isinstance(part, int) and part >= 0:
        return part
    raise AmbiguousDeltaError("the update names a field of an array")


def _as_name(part: str | int) -> str:
    if isinstance(part, str):
        return part
    raise AmbiguousDeltaError("the update names an index of a document")
