"""Projections: what of a document, and of an update description, may be seen.

A projection is a chain of stages, the policy's first. Each stage is a tree of names that either includes or excludes,
with MongoDB's `find` semantics: paths cross arrays (nested ones, too), a number in a path is a field name and never
an index, and an inclusion drops the scalars of an array that it goes through. `_id` always stays, whole.

Update descriptions are projected value by value, and the rule is that nothing hidden may leak through a reading that
was guessed. So each path is first placed (`images.place_of`): by `disambiguatedPaths`, else in an image of the
document. Where neither is at hand, all readings are followed, and if they disagree on what is visible the whole
description is left out. Paths of the result name places of the *stored* document, as MongoDB's do; where the policy
drops elements of an array, its indexes and its length tell how many, so such a description is left out too.

Where both states of the document are known, `behind_policy` does better: it needs no description at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from bson.decimal128 import Decimal128

from feedsvc.core.images import AmbiguousDeltaError, Place, array_index, place_of, stated_place, usual_place
from feedsvc.core.projection_stage import GONE, HIDDEN, Stage, Tree, Visible

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

    def behind(self, first: Projection) -> Projection:
        """What of this projection is left to do where `first`, with which it begins, is done."""
        return Projection(self.stages[len(first.stages) :])

    def apply_update(
        self,
        update_description: Mapping[str, Any],
        image: Mapping[str, Any] | None = None,
        policy: Projection | None = None,
    ) -> dict[str, Any] | None:
        """The visible part of an update description, without `disambiguatedPaths`; None where it must be left out.

        `image` is the stored document before the update, or else after it, not projected. `policy` is the first part
        of this projection that hides from the reader what the rest may not tell either. A parent whose new value
        has no visible part becomes a removed field, which is what it is for the reader.
        """
        if not self.stages:
            return {name: update_description[name] for name in _PARTS if name in update_description}
        try:
            return self._update(update_description, image, policy.stages if policy else ())
        except AmbiguousDeltaError:
            return None

    def hides_update(self, update_description: Mapping[str, Any], image: Mapping[str, Any] | None) -> bool:
        """Whether nothing that an update wrote is visible, however its paths are read. Arguments as `apply_update`."""
        known = update_description.get("disambiguatedPaths")
        left = _MAX_READINGS
        for path in _paths(update_description):
            for place in _every_place(path, known, image):
                left -= 1
                if left < 0 or HIDDEN not in [stage.at(place) for stage in self.stages]:
                    return False
        return True

    def _update(
        self, description: Mapping[str, Any], image: Mapping[str, Any] | None, policy: tuple[Stage, ...]
    ) -> dict[str, Any]:
        reading = _Reading(self.stages, policy, description.get("disambiguatedPaths"), image)
        updated: dict[str, Any] = {}
        removed: list[str] = []
        truncated: list[dict[str, Any]] = []
        for path in description.get("removedFields") or ():
            if reading.visible_place(path) is not None:
                removed.append(path)
        for entry in description.get("truncatedArrays") or ():
            if reading.visible_place(entry["field"], cut=True) is not None:
                truncated.append({"field": entry["field"], "newSize": entry["newSize"]})
        for path, value in (description.get("updatedFields") or {}).items():
            place = reading.visible_place(path)
            if place is None:
                continue
            visible = self._value_at(place, value)
            if visible is not GONE:
                updated[path] = visible
            elif isinstance(place[-1], str):
                removed.append(path)
            else:
                raise AmbiguousDeltaError("an element of an array is hidden, which moves those behind it")
        out = {"updatedFields": updated, "removedFields": removed, "truncatedArrays": truncated}
        return {name: part for name, part in out.items() if part or name in description}

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


class _Reading:
    """How the paths of one description are read, and what the stages show of them."""

    def __init__(
        self,
        stages: tuple[Stage, ...],
        policy: tuple[Stage, ...],
        known: Mapping[str, Any] | None,
        image: Mapping[str, Any] | None,
    ) -> None:
        self._stages = stages
        self._policy = policy
        self._known = known
        self._image = image
        self._left = _MAX_READINGS

    def visible_place(self, path: str, *, cut: bool = False) -> Place | None:
        """The place of a path, None where it is hidden; `cut`: the length of the array there is told.

        AmbiguousDeltaError where another reading shows it otherwise, or a place tells what the policy hides. A
        hidden path must not raise it: whether the others are told would depend on it.
        """
        if "." not in path or self._known is not None:
            place = stated_place(path, self._known or {})
        elif self._image is None:
            place = usual_place(path)
            if HIDDEN not in self._seen(place):
                self._check_other_readings(path, place)
        else:
            try:
                place = place_of(path, self._image)
            except AmbiguousDeltaError:
                self._spend(path)
                if all(HIDDEN in self._seen(place) for place in _guesses(path.split("."), 0)):
                    return None
                raise
        if HIDDEN in self._seen(place):
            return None
        if any(stage.counts_at(place, cut=cut) for stage in self._policy):
            raise AmbiguousDeltaError("an index tells how many elements of an array are hidden")
        return place

    def _check_other_readings(self, path: str, usual: Place) -> None:
        """AmbiguousDeltaError where one shows something else."""
        self._spend(path)
        seen = self._seen(usual)
        if any(seen != self._seen(other) for other in _guesses(path.split("."), 0)):
            raise AmbiguousDeltaError("what is visible depends on how a path is read")

    def _spend(self, path: str) -> None:
        """AmbiguousDeltaError where following every reading would take too long."""
        self._left -= 3 ** min(path.count("."), 8)
        if self._left < 0:
            raise AmbiguousDeltaError("the paths of the update have too many readings")

    def _seen(self, place: Place) -> list[Visible]:
        return [stage.at(place) for stage in self._stages]


def _every_place(
    path: str, known: Mapping[str, Any] | None, image: Mapping[str, Any] | None
) -> Iterator[Place]:
    """The places that a path can mean, with the help that there is."""
    if "." not in path or known is not None:
        yield stated_place(path, known or {})
        return
    if image is not None:
        try:
            yield place_of(path, image)
            return
        except AmbiguousDeltaError:
            pass
    yield from _guesses(path.split("."), 0)


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
