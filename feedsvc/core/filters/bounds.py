"""What bounds the cost of a filter: its text, its depth, its paths.

The text is bounded twice: as the client wrote it, since that is kept as long as the subscription lasts, and in its
canonical form, which is somewhat longer in general and much longer where one path stands for many clauses (`$all`).
`check_written` must answer within milliseconds for 16 MB as well, so it first adds up a lower bound
of the JSON text and stops as soon as that is too long: its work is linear in the bound, not in the filter.

The work per document is bounded through the paths. Where a path meets an array, a numeric part can mean a name and an
index at once, so each doubles the readings of its path; parts in front of and inside an `$elemMatch` are one path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from feedsvc.core.extjson import MAX_DEPTH as MAX_NESTING
from feedsvc.core.filters.errors import invalid
from feedsvc.core.filters.nodes import And, ElemMatch, ElemMatchValue, Node, Not, Or
from feedsvc.core.limits import Limits

_LIMITS = Limits()
MAX_FILTER_BYTES = _LIMITS.filter_bytes
MAX_CANONICAL_BYTES = 4 * MAX_FILTER_BYTES
"""Room for every filter of 4 KiB that does not repeat a long path; `Topic` keeps this form."""
MAX_DEPTH = _LIMITS.filter_depth
"""Levels of `{...}` in the query document that are not inside a literal; literals have the same bound of their own."""
MAX_IN_VALUES = _LIMITS.filter_in_values
"""Members of an `$in`, `$nin`, `$all` or `$type`."""
MAX_PATH_PARTS = 64
MAX_NUMERIC_PARTS = 8
"""In one path, that of every enclosing `$elemMatch` included."""
MAX_READINGS = 1024
"""Of all paths with numeric parts together: four paths with the most numeric parts, or 512 with a single one."""
MAX_PATTERNS = 16
"""Regular expressions of one filter: to compile the smallest takes a tenth of a millisecond."""
MAX_INSTRUCTIONS = 8_000
"""Of their programs together: about 3 ms to compile, and a search takes so many steps for each byte at worst, of which
a document is allowed `regex.MAX_STEPS`: room for 2 KB of text even then."""


def check_written(query: Mapping[str, Any]) -> None:
    """The bound of 4 KiB on the JSON text of a parsed filter, or of a projection, and one on nesting for the code that
    reads it next. Raises `FilterError`."""
    room = MAX_FILTER_BYTES
    level: list[object] = [query]
    for _ in range(MAX_NESTING):
        members: list[object] = []
        for value in level:
            room -= _least_bytes(value, room)
            if room < 0:
                raise _too_long()
            if isinstance(value, Mapping):
                members.extend(value.values())
            elif isinstance(value, list):
                members.extend(value)
        if not members:
            break
        level = members
    else:
        raise invalid("", f"must not be nested deeper than {MAX_NESTING} levels")
    try:
        text = msgspec.json.encode(query)
    except UnicodeEncodeError:
        raise invalid("", "holds half a surrogate pair") from None
    if len(text) > MAX_FILTER_BYTES:
        raise _too_long()


def _least_bytes(value: object, enough: int) -> int:
    """At least this much text stands for the value without its members: brackets, commas, colons, quotes, letters.

    The keys of a document are counted only where there are not more than `enough`.
    """
    if isinstance(value, (str, list)):
        return len(value) + 1
    if isinstance(value, Mapping):
        marks = 4 * len(value) + 1
        return marks + sum(map(len, value)) if marks <= enough else marks
    return 1


def check_canonical(form: bytes) -> None:
    """The bound on the canonical form: of the policy's filters, too, which have no other one."""
    if len(form) > MAX_CANONICAL_BYTES:
        raise invalid("", "is too long in canonical form; ask for fewer values or by shorter paths")


def _too_long() -> Exception:
    return invalid("", f"must not be longer than {MAX_FILTER_BYTES} bytes")


def check_depth(depth: int, path: str) -> None:
    if depth > MAX_DEPTH:
        raise invalid(path, f"must not be nested deeper than {MAX_DEPTH} levels")


def check_field_path(field: str, path: str) -> None:
    parts = field.split(".")
    if len(parts) > MAX_PATH_PARTS or _numeric_parts(field) > MAX_NUMERIC_PARTS:
        raise invalid(path, "a field path has too many parts")
    for part in parts:
        if not part or part[0] == "$" or "\0" in part:
            raise invalid(path, "a field path has no empty part, no NUL and no part that begins with $")


def check_readings(root: Node) -> None:
    """The bound on the readings of all paths of a tree."""
    if _readings(root, 0) > MAX_READINGS:
        raise invalid("", "its field paths have too many numeric parts together")


def _readings(node: Node, above: int) -> int:
    if isinstance(node, Not):
        return _readings(node.clause, above)
    if isinstance(node, (And, Or)):
        return sum([_readings(clause, above) for clause in node.clauses])
    here = above + _numeric_parts(node.path)
    if here > MAX_NUMERIC_PARTS:
        raise invalid(node.path, "a field path has too many numeric parts, those around $elemMatch included")
    own = 2**here if here else 0
    return own + _readings(node.clause, here) if isinstance(node, (ElemMatch, ElemMatchValue)) else own


def _numeric_parts(field: str) -> int:
    return sum(map(str.isdigit, field.split(".")))
