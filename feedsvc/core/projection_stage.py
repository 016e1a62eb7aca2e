"""One stage of a projection: a tree of names that includes or excludes, and what it does to documents.

`projection` builds stages and chains them; nothing else uses this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from feedsvc.core.filters.values import as_document

Tree = dict[str, "Tree | None"]
"""Names to subtrees; None where a path of the projection ends."""

GONE = object()
"""Stands for a value of which nothing is visible."""


class Visible(msgspec.Struct, frozen=True):
    """What a stage shows at a place: nothing, everything, or (`tree`) a part of documents."""

    shown: bool
    tree: Tree | None = None


HIDDEN = Visible(False)
WHOLE = Visible(True)


class Stage(msgspec.Struct, frozen=True):
    """One inclusion or exclusion. `paths` is sorted and without `_id`; `tree` holds the same names, nested, and
    `_id` if it includes."""

    include: bool
    paths: tuple[str, ...]
    tree: Tree

    def document(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """The visible part of a whole document."""
        return _included(document, self.tree) if self.include else _excluded(document, self.tree)

    def at(self, place: tuple[str | int, ...]) -> Visible:
        """What is shown at a place; an array index leads to documents of the same rank."""
        tree = self.tree
        for part in place:
            if isinstance(part, int):
                continue
            if part not in tree:
                return HIDDEN if self.include else WHOLE
            below = tree[part]
            if below is None:
                return WHOLE if self.include else HIDDEN
            tree = below
        return Visible(True, tree)

    def counts_at(self, place: tuple[str | int, ...], *, cut: bool = False) -> bool:
        """Whether a visible place, or (`cut`) the length of the array there, counts elements that this stage drops.

        Only an inclusion drops elements: the scalars of an array that it goes through.
        """
        if not self.include:
            return False
        tree: Tree | None = self.tree
        for part in place:
            if tree is None:
                return False
            if isinstance(part, int):
                return True
            tree = tree[part]
        return cut and tree is not None

    def value(self, value: Any, tree: Tree) -> Any:
        """The visible part of a value that stands where `tree` applies, or GONE."""
        return _included_value(value, tree) if self.include else _excluded_value(value, tree)


def _included(document: Mapping[str, Any], tree: Tree) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in document.items():
        if name not in tree:
            continue
        below = tree[name]
        if below is not None:
            value = _included_value(value, below)
            if value is GONE:
                continue
        out[name] = value
    return out


def _included_value(value: Any, tree: Tree) -> Any:
    if isinstance(value, list):
        return [kept for item in value if (kept := _included_value(item, tree)) is not GONE]
    document = as_document(value)
    return GONE if document is None else _included(document, tree)


def _excluded(document: Mapping[str, Any], tree: Tree) -> dict[str, Any]:
    out = dict(document)
    for name, below in tree.items():
        if name not in out:
            continue
        if below is None:
            del out[name]
        else:
            out[name] = _excluded_value(out[name], below)
    return out


def _excluded_value(value: Any, tree: Tree) -> Any:
    if isinstance(value, list):
        return [_excluded_value(item, tree) for item in value]
    document = as_document(value)
    return value if document is None else _excluded(document, tree)
