"""Two states of a document as a reader sees them: are they the same, and what leads from one to the other?

Where a policy hides fields, the update description of MongoDB tells of them even after its values were projected: that
a parent was written as a whole although its visible part is what it was, at which index of an array with
hidden elements, or (pipeline updates) whether a diff of the hidden part would have been longer than the part itself.
So where both states are known, what is told is computed from the two visible documents alone: whatever differs in
what is hidden cannot make a difference, by construction.

`same` is stricter than `==` and than MongoDB's comparison: `1`, `Int64(1)`, `1.0` and `True` are four values, and the
order of fields counts, since a reader sees it. `delta` has the form of MongoDB's update descriptions, with
paths into the visible document: `images.after_image(before, delta(before, after))` is `after`.

Cost: linear in the size of both documents; parts that they share are not entered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bson.code import Code
from bson.dbref import DBRef

Description = dict[str, Any]


def same(one: object, other: object) -> bool:
    """Whether two values are the same for every reader: type, value, and order of fields."""
    if one is other:
        return True
    one, other = _plain(one), _plain(other)
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and list(one) == list(other)
            and all(same(value, other[name]) for name, value in one.items())
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        assert isinstance(other, list)
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        assert isinstance(other, float)
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    if isinstance(one, Code):
        assert isinstance(other, Code)
        return str(one) == str(other) and same(one.scope, other.scope)
    return one == other


def delta(before: Mapping[str, Any], after: Mapping[str, Any]) -> Description | None:
    """The update description that makes `after` of `before`; None where no description can say it.

    That is where fields changed their order, or where a name at the top holds a dot. Below the top such a document is
    told as a whole.
    """
    found = _Delta()
    if not found.document("", before, after):
        return None
    return {
        "updatedFields": found.updated,
        "removedFields": found.removed,
        "truncatedArrays": found.truncated,
    }


class _Delta:
    """The parts of a description, as far as they are found."""

    def __init__(self) -> None:
        self.updated: dict[str, Any] = {}
        self.removed: list[str] = []
        self.truncated: list[dict[str, Any]] = []

    def document(self, prefix: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
        """False where paths cannot say what happened between the two; what was added until then is void."""
        stayed = [name for name in before if name in after]
        names = list(after)
        if names[: len(stayed)] != stayed or any("." in name for name in (*before, *names)):
            return False
        self.removed.extend(prefix + name for name in before if name not in after)
        for name, value in after.items():
            if name in before:
                self.value(prefix + name, before[name], value)
            else:
                self.updated[prefix + name] = value
        return True

    def value(self, path: str, before: object, after: object) -> None:
        if same(before, after):
            return
        inner = _Delta()
        old, new = _plain(before), _plain(after)
        if isinstance(old, dict) and isinstance(new, dict):
            told = inner.document(f"{path}.", old, new)
        elif isinstance(old, list) and isinstance(new, list):
            told = inner.array(path, old, new)
        else:
            told = False
        if told:
            self.updated.update(inner.updated)
            self.removed.extend(inner.removed)
            self.truncated.extend(inner.truncated)
        else:
            self.updated[path] = after

    def array(self, path: str, before: list[Any], after: list[Any]) -> bool:
        """False where more than half of the elements changed: the array is shorter than the list of its changes."""
        pairs = list(zip(before, after, strict=False))
        changed = sum(not same(old, new) for old, new in pairs) + max(0, len(after) - len(before))
        if 2 * changed > len(after):
            return False
        if len(after) < len(before):
            self.truncated.append({"field": path, "newSize": len(after)})
        for index, (old, new) in enumerate(pairs):
            self.value(f"{path}.{index}", old, new)
        for index in range(len(before), len(after)):
            self.updated[f"{path}.{index}"] = after[index]
        return True


def _plain(value: object) -> object:
    """A document as a dict, whatever it was decoded as."""
    if isinstance(value, DBRef):
        return dict(value.as_doc())
    if isinstance(value, Mapping) and not isinstance(value, dict):
        return dict(value)
    return value
