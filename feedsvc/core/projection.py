"""Projections: what of a document, and of an update description, may be seen.

A projection is a chain of stages, the policy's first. Each stage is a tree of names that either includes or excludes,
with MongoDB's `find` semantics: paths cross arrays (nested ones, too), a number in a path is a field name and never
an index, and an inclusion drops the scalars of an array that it goes through. `_id` always stays, whole.

Update descriptions are projected value by value, and the rule is that nothing hidden may leak through a reading that
was guessed. So each path is first placed (`images.place_of`): by `disambiguatedPaths`, else in an image of the
document. Where neither is at hand, all readings are followed, and if they disagree on what is visible the whole
description is left out. Paths of the result name places of the *stored* document, as MongoDB's do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from bson.decimal128 import Decimal128

from feedsvc.core.images import AmbiguousDeltaError, Place, array_index, place_of, stated_place
from feedsvc.core.projection_stage import GONE, HIDDEN, Stage, Tree

_PARTS = ("updatedFields", "removedFields", "truncatedArrays")
_MAX_READINGS = 4_096
"""Of all paths of a description together: one of n parts has up to 3^(n-1) without any help, and each topic follows
them. Some 10 ms at the most."""

_MAX_REPORTED_PATH = 256
"""Characters. A path is made of the client's own keys, which may be as long as a frame."""


class ProjectionError(ValueError):
    """A projection is refused; `path` is where, `rule` is why. Neither carries a value."""

    def __init__(self, path: str, rule: str) -> None:
        path = path if len(path) <= _MAX_REPORTED_PATH else path[:_MAX_REPORTED_PATH] + "..."
        super().__init__(f"{path}: {rule}" if path else rule)
        self.path = path
        self.rule = rule


class Projection(msgspec.Struct, frozen=True):
    """What a topic shows. Make one with `parse`, or use `IDENTITY`."""

    stages: tuple[Stage, ...] = ()

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Projection:
        """From `{"a": 1, "b.c": 1}` or `{"a": 0}`; raises `ProjectionError`."""
        if not isinstance(fields, Mapping):
            raise ProjectionError("", "a projection must be a document")
        modes: dict[str, bool] = {}
        for path, value in fields.items():
            _check_path(path)
            modes[path] = _mode(path, value)
        if modes.pop("_id", None) is False:
            raise ProjectionError("_id", "cannot be projected away")
        if not fields:
            return IDENTITY
        if len(set(modes.values())) > 1:
            raise ProjectionError("", "inclusion and exclusion cannot be mixed")
        include = False not in modes.values()
        tree = _tree(modes)
        if include:
            tree["_id"] = None
        return cls((Stage(include, tuple(sorted(modes)), tree),))

    def then(self, other: Projection) -> Projection:
        """This projection first, then the other one on what is left."""
        return Projection(self.stages + tuple(stage for stage in other.stages if stage not in self.stages))

    def canonical(self) -> object:
        """A JSON-able value that is equal for projections that are written differently but mean the same stages."""
        return [["include" if stage.include else "exclude", *stage.paths] for stage in self.stages]

    def apply(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """The visible part of a document. The argument is not changed; unchanged parts are shared with it."""
        out = document
        for stage in self.stages:
            out = stage.document(out)
        return out if isinstance(out, dict) else dict(out)

    def apply_update(
        self, update_description: Mapping[str, Any], image: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """The visible part of an update description, without `disambiguatedPaths`; None where it must be left out.

        `image` is the stored document before the update, or else after it, not projected. A parent whose new value
        has no visible part becomes a removed field, which is what it is for the reader.
        """
        if not self.stages:
            return {name: update_description[name] for name in _PARTS if name in update_description}
        try:
            return self._update(update_description, image)
        except AmbiguousDeltaError:
            return None

    def _update(self, description: Mapping[str, Any], image: Mapping[str, Any] | None) -> dict[str, Any]:
        known = description.get("disambiguatedPaths")
        if known is None and image is None:
            _check_readings(description)
        updated: dict[str, Any] = {}
        removed: list[str] = []
        truncated: list[dict[str, Any]] = []
        for path in description.get("removedFields") or ():
            if self._shows(_places(path, known, image)):
                removed.append(path)
        for entry in description.get("truncatedArrays") or ():
            if self._shows(_places(entry["field"], known, image)):
                truncated.append({"field": entry["field"], "newSize": entry["newSize"]})
        for path, value in (description.get("updatedFields") or {}).items():
            places = _places(path, known, image)
            if not self._shows(places):
                continue
            visible = self._value_at(places[0], value)
            if visible is not GONE:
                updated[path] = visible
            elif isinstance(places[0][-1], str):
                removed.append(path)
            else:
                raise AmbiguousDeltaError("an element of an array is hidden, which moves those behind it")
        out = {"updatedFields": updated, "removedFields": removed, "truncatedArrays": truncated}
        return {name: part for name, part in out.items() if part or name in description}

    def _shows(self, places: list[Place]) -> bool:
        """Whether a path is visible by its first reading; AmbiguousDeltaError where another one shows it otherwise."""
        seen = [stage.at(places[0]) for stage in self.stages]
        if HIDDEN in seen:
            return False
        for place in places[1:]:
            if seen != [stage.at(place) for stage in self.stages]:
                raise AmbiguousDeltaError("what is visible depends on how a path is read")
        return True

    def _value_at(self, place: Place, value: Any) -> Any:
        for stage in self.stages:
            tree = stage.at(place).tree
            if tree is not None and value is not GONE:
                value = stage.value(value, tree)
        return value


IDENTITY = Projection()
"""Shows everything."""


def _check_path(path: object) -> None:
    if not isinstance(path, str):
        raise ProjectionError("", "a path must be a string")
    for part in path.split("."):
        if not part or part[0] == "$" or "\0" in part:
            raise ProjectionError(path, "a path has no empty part, no NUL and no part that begins with $")
    if path.startswith("_id."):
        raise ProjectionError(path, "_id is always shown whole")


def _mode(path: str, value: object) -> bool:
    if isinstance(value, Decimal128) or not isinstance(value, (bool, int, float)) or value not in (0, 1):
        raise ProjectionError(path, "must be 0, 1, true or false")
    return bool(value)


def _tree(paths: Iterable[str]) -> Tree:
    root: Tree = {}
    for path in paths:
        *parents, last = path.split(".")
        node = root
        for part in parents:
            below = node.setdefault(part, {})
            if below is None:
                raise ProjectionError(path, "collides with a path above it")
            node = below
        if last in node:
            raise ProjectionError(path, "collides with a path below it")
        node[last] = None
    return root


def _places(path: str, known: Mapping[str, Any] | None, image: Mapping[str, Any] | None) -> list[Place]:
    """The places that a path can mean, the usual reading (plain names, numbers as indexes) first."""
    if "." not in path:
        return [(path,)]
    if known is not None:
        return [stated_place(path, known)]
    if image is not None:
        return [place_of(path, image)]
    return list(_guesses(path.split("."), 0))


def _check_readings(description: Mapping[str, Any]) -> None:
    """AmbiguousDeltaError where following every reading would take too long."""
    left = _MAX_READINGS
    for path in _paths(description):
        left -= 3 ** min(path.count("."), 8)
        if left < 0:
            raise AmbiguousDeltaError("the paths of the update have too many readings")


def _paths(description: Mapping[str, Any]) -> Iterator[str]:
    yield from description.get("removedFields") or ()
    yield from description.get("updatedFields") or ()
    for entry in description.get("truncatedArrays") or ():
        yield entry["field"]


def _guesses(parts: list[str], start: int) -> Iterator[Place]:
    """Every reading of the parts: numbers as indexes and as names, names with dots."""
    if start == len(parts):
        yield ()
        return
    for end in range(start + 1, len(parts) + 1):
        name = ".".join(parts[start:end])
        index = array_index(name) if start else None
        for rest in _guesses(parts, end):
            if index is not None:
                yield (index, *rest)
            yield (name, *rest)
