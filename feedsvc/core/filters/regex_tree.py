r"""A regular expression as a tree, and how it is printed for RE2: a pattern that says everything by itself.

Sets are printed as ranges, other characters escaped, options as scoped groups, so nothing is left to RE2's own reading.
The question is only whether a string holds a match: captures, names and greediness are not in the tree.

Two assertions mean the same only in some places, and are refused in the others:

* `$` without `m`, and `\Z`: the end, or before a newline at the end. RE2 has no lookahead, so it becomes an optional
  newline and the end; nothing may follow. Hence at the end of the pattern, or of an alternative that ends it.
* `^` with `m`: PCRE2's does not match after a newline that ends the string, RE2's does. The same where a character has
  to follow.

Cost: the nodes times the depth. Source: pcre2pattern(3), "Circumflex and dollar" and "Simple assertions".
"""

from __future__ import annotations

from typing import Literal

import msgspec

Code = Literal["filter_invalid", "filter_unsupported"]
Kind = Literal["start", "line_start", "end", "end_or_newline", "line_end", "boundary", "no_boundary"]

_ASSERTIONS: dict[Kind, str] = {
    "start": r"\A",
    "line_start": r"(?m:^)",
    "end": r"\z",
    "end_or_newline": r"\n?\z",
    "line_end": r"(?m:$)",
    "boundary": r"\b",
    "no_boundary": r"\B",
}


class RegexError(ValueError):
    """A pattern or its options are refused. `rule` says what to write instead and carries no part of either."""

    def __init__(self, code: Code, rule: str) -> None:
        super().__init__(rule)
        self.code: Code = code
        self.rule = rule


def invalid(rule: str) -> RegexError:
    """PCRE2 refuses it, too."""
    return RegexError("filter_invalid", rule)


def unsupported(rule: str) -> RegexError:
    """PCRE2 takes it, or some release of it does."""
    return RegexError("filter_unsupported", rule)


class Char(msgspec.Struct, frozen=True):
    """One character out of a set; `text` is RE2's, `size` about the instructions that RE2 makes of it."""

    text: str
    size: int = 1


class Assertion(msgspec.Struct, frozen=True):
    kind: Kind


class Concat(msgspec.Struct, frozen=True):
    items: tuple[Node, ...]


class Choice(msgspec.Struct, frozen=True):
    branches: tuple[Node, ...]


class Repeat(msgspec.Struct, frozen=True):
    """`most` is None for no bound."""

    item: Node
    least: int
    most: int | None


Node = Char | Assertion | Concat | Choice | Repeat


def width(node: Node) -> int:
    """Characters that it consumes at least."""
    if isinstance(node, Char):
        return 1
    if isinstance(node, Concat):
        return sum(width(item) for item in node.items)
    if isinstance(node, Choice):
        return min(width(branch) for branch in node.branches)
    if isinstance(node, Repeat):
        return node.least * width(node.item)
    return 0


def size(node: Node) -> int:
    """About the instructions of RE2's program, in which repetitions are written out."""
    if isinstance(node, Char):
        return node.size
    if isinstance(node, Concat):
        return sum(size(item) for item in node.items)
    if isinstance(node, Choice):
        return sum(1 + size(branch) for branch in node.branches)
    if isinstance(node, Repeat):
        item = size(node.item)
        if node.most is None:
            return item * max(node.least, 1) + 1
        return item * node.least + (item + 1) * (node.most - node.least)
    return 1


def printed_for_re2(node: Node, *, is_last: bool, width_after: int) -> str:
    """The node for RE2. Nothing at all follows what `is_last`; `width_after` is what has to be consumed after it."""
    if isinstance(node, Char):
        return node.text
    if isinstance(node, Assertion):
        _require_same(node, is_last=is_last, width_after=width_after)
        return _ASSERTIONS[node.kind]
    if isinstance(node, Choice):
        branches = [
            printed_for_re2(branch, is_last=is_last, width_after=width_after) for branch in node.branches
        ]
        return f"(?:{'|'.join(branches)})"
    if isinstance(node, Repeat):
        # An iteration may be followed by another one, unless there is one at most.
        at_most_once = node.most == 1
        item = printed_for_re2(node.item, is_last=is_last and at_most_once, width_after=width_after)
        return f"(?:{item}){_quantifier(node)}"
    return _printed_sequence(node.items, is_last=is_last, width_after=width_after)


def _printed_sequence(items: tuple[Node, ...], *, is_last: bool, width_after: int) -> str:
    printed: list[str] = []
    for at in range(len(items) - 1, -1, -1):
        item = items[at]
        if isinstance(item, Assertion) and items[at + 1 : at + 2] == (item,):
            continue  # `$$`: the second says it
        printed.append(printed_for_re2(item, is_last=is_last and not printed, width_after=width_after))
        width_after += width(item)
    return f"(?:{''.join(reversed(printed))})" if len(printed) != 1 else printed[0]


def _quantifier(node: Repeat) -> str:
    if node.most is None:
        return "*" if node.least == 0 else "+" if node.least == 1 else f"{{{node.least},}}"
    if (node.least, node.most) == (0, 1):
        return "?"
    return f"{{{node.least},{node.most}}}"


def _require_same(node: Assertion, *, is_last: bool, width_after: int) -> None:
    if node.kind == "end_or_newline" and not is_last:
        raise unsupported(
            r"without option m, $ stands at the end of the regular expression or of an alternative"
        )
    if node.kind == "line_start" and width_after == 0:
        raise unsupported(
            r"under option m, ^ stands before something that consumes a character; \A is the start"
        )
