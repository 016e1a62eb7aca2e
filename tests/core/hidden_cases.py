"""Documents and updates that a policy cannot tell apart: they differ in what it hides, and in nothing else."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from feedsvc.core.projection_stage import Tree

SECRET = "SECRET"
POLICIES: list[dict[str, int]] = [
    {"cost": 0},
    {"cost": 0, "lines.cost": 0},
    {"a.b.c": 0, "lines.cost": 0, "cost": 0},
    {"lines": 0, "a.b": 0},
    {"lines.0": 0, "a.0.cost": 0},
    {"a": 1, "s": 1},
    {"lines.x": 1, "s": 1},
    {"a.b.x": 1, "lines.x": 1, "lines.0.x": 1, "s": 1},
    {"s": 1},
]
"""Exclusions and inclusions: at the top, in documents, in arrays, of numbers as names. Each shows `s`."""

NAMES = ("a", "b", "c", "x", "cost", "0", "lines")
scalars: st.SearchStrategy[Any] = st.sampled_from([0, 1, 1.0, "u", None, True])
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=5,
)
_line: st.SearchStrategy[Any] = st.one_of(
    scalars,
    st.fixed_dictionaries(
        {}, optional={"x": scalars, "cost": scalars, "0": scalars | st.fixed_dictionaries({"x": scalars})}
    ),
)
documents: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"_id": st.just(1), "s": st.sampled_from([1, 2])},
    optional={
        "a": values
        | st.fixed_dictionaries({"b": st.dictionaries(st.sampled_from(NAMES), scalars, max_size=3)}),
        "lines": st.lists(_line | st.lists(_line, max_size=2), max_size=3) | scalars,
        "cost": values,
        "x": scalars,
    },
)


def _hides(tree: Tree, include: bool, name: str) -> bool:
    return name not in tree if include else name in tree and tree[name] is None


@st.composite
def variants(draw: st.DrawFn, document: dict[str, Any], tree: Tree, include: bool) -> dict[str, Any]:
    """A document that looks the same behind the projection: hidden fields come, go and change, at any place in the
    order; scalars that an inclusion drops, too."""
    items: list[tuple[str, Any]] = []
    for name, value in document.items():
        below = tree.get(name)
        if _hides(tree, include, name) or (
            below is not None and include and not isinstance(value, (dict, list))
        ):
            fresh = values if _hides(tree, include, name) else scalars
            fate = draw(st.sampled_from(["keep", "drop", "change"]))
            if fate != "drop":
                items.append((name, value if fate == "keep" else draw(fresh)))
        elif below is None:
            items.append((name, value))
        else:
            items.append((name, draw(_varied(value, below, include))))
    spare = [name for name in NAMES if name not in document and _hides(tree, include, name)]
    for name in draw(st.lists(st.sampled_from(spare), unique=True, max_size=2)) if spare else ():
        items.insert(draw(st.integers(0, len(items))), (name, draw(values)))
    return dict(items)


@st.composite
def _varied(draw: st.DrawFn, value: Any, tree: Tree, include: bool) -> Any:
    if isinstance(value, dict):
        return draw(variants(value, tree, include))
    if not isinstance(value, list):
        return value
    out: list[Any] = []
    for item in value:
        if include and not isinstance(item, (dict, list)):
            out.extend(draw(st.lists(scalars, max_size=2)))
        else:
            out.append(draw(_varied(item, tree, include)))
    return out


@st.composite
def descriptions(draw: st.DrawFn, before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """A description of the change as MongoDB might give it: whole values, or dotted paths into what exists, also of
    values that did not change (`$set` of a parent), arrays by index and length."""
    updated: dict[str, Any] = {}
    removed: list[str] = []
    truncated: list[dict[str, Any]] = []

    def walk(path: str, old: Any, new: Any) -> None:
        if old == new and type(old) is type(new) and draw(st.booleans()):
            return
        if isinstance(old, dict) and isinstance(new, dict) and draw(st.booleans()):
            removed.extend(f"{path}.{name}" for name in old if name not in new)
            for name, value in new.items():
                if name in old:
                    walk(f"{path}.{name}", old[name], value)
                else:
                    updated[f"{path}.{name}"] = value
        elif isinstance(old, list) and isinstance(new, list) and draw(st.booleans()):
            if len(new) < len(old):
                truncated.append({"field": path, "newSize": len(new)})
            for index, value in enumerate(new):
                if index < len(old):
                    walk(f"{path}.{index}", old[index], value)
                else:
                    updated[f"{path}.{index}"] = value
        else:
            updated[path] = new

    removed.extend(name for name in before if name not in after)
    for name, value in after.items():
        if name not in before:
            updated[name] = value
        elif name != "_id":
            walk(name, before[name], value)
    return {"updatedFields": updated, "removedFields": removed, "truncatedArrays": truncated}


@st.composite
def marked(draw: st.DrawFn, document: dict[str, Any], tree: Tree, include: bool) -> dict[str, Any]:
    """The document with `SECRET` for every hidden leaf, wherever it stands."""
    return {
        name: draw(_marked(value, tree.get(name), _hides(tree, include, name), include))
        for name, value in document.items()
    }


@st.composite
def _marked(draw: st.DrawFn, value: Any, tree: Tree | None, hidden: bool, include: bool) -> Any:
    if isinstance(value, list):
        return [draw(_marked(item, tree, hidden, include)) for item in value]
    if isinstance(value, dict):
        return {
            name: draw(
                _marked(
                    item,
                    None if tree is None else tree.get(name),
                    hidden or (tree is not None and _hides(tree, include, name)),
                    include,
                )
            )
            for name, item in value.items()
        }
    return SECRET if hidden or (tree is not None and include) else value


def with_secret(value: Any, secret: Any) -> Any:
    """The same with another value for each `SECRET`."""
    if isinstance(value, dict):
        return {name: with_secret(item, secret) for name, item in value.items()}
    if isinstance(value, list):
        return [with_secret(item, secret) for item in value]
    return secret if value == SECRET and isinstance(value, str) else value
