r"""The common subset of PCRE2 and RE2: a pattern as MongoDB reads it becomes a pattern of RE2 that means the same.

A recursive descent over the pattern: every construct is on an allow-list, what it does not know is refused. What PCRE2
refuses, too, is `filter_invalid`; what only RE2 cannot do, or what releases of PCRE2 read differently (`{,n}`, spaces
in braces), `filter_unsupported`. Flags are scoped as in PCRE2: to the end of the group, alternatives included.

The result is a tree (`regex_tree`). One assertion is judged here, since it takes the whole pattern: RE2's `\B` also
matches inside a character of several bytes, where nothing can follow; so it is refused where the pattern can match the
empty string. `{0}` is refused for a bug of PCRE2 10.42, which can lose matches after `(?:|^){0}`.

Cost: linear in the pattern; recursion is bounded by `MAX_DEPTH`. Sources: pcre2pattern(3) and pcre2compat(3) of 10.42,
which MongoDB vendors (src/third_party/pcre2, NEWLINE_DEFAULT 2: LF); mongo/util/pcre_util.cpp for the options.
"""

from __future__ import annotations

import re

from feedsvc.core.filters import regex_sets as sets
from feedsvc.core.filters.regex_classes import Reader
from feedsvc.core.filters.regex_tree import (
    Assertion,
    Char,
    Choice,
    Concat,
    Kind,
    Node,
    Repeat,
    invalid,
    printed_for_re2,
    size,
    unsupported,
    width,
)

MAX_DEPTH = 50
"""Groups within groups. PCRE2's bound in MongoDB is 250."""
MAX_REPEAT = 1000
"""RE2's bound of a repetition count."""
MAX_ITEMS = 1000
"""Characters, classes and groups as written: the slowest refusal."""
MAX_SIZE = 2500
"""About RE2's instructions (`regex_tree.size`), with repetitions written out: what a search costs per byte at worst."""
TOO_LARGE = "a regular expression is too large; repeat less, or shorter things"

NOT_NEWLINE = Char(sets.in_brackets(sets.NEWLINE, negated=True), sets.size(sets.complement(sets.NEWLINE)))
ANY = Char("(?s:.)", NOT_NEWLINE.size)

_QUANTIFIER = re.compile(r"[*+?]|\{([0-9]+)(?:(,)([0-9]*))?\}")
_LOOKS_LIKE_QUANTIFIER = re.compile(r"\{[ \t]*[0-9,][0-9, \t]*\}")
_FLAGS = re.compile(r"\(\?([imsxU]*)(?:-([imsxU]+))?([:)])")
_NAME = re.compile(r"\(\?(?:P?<([A-Za-z_][A-Za-z0-9_]{0,31})>|'([A-Za-z_][A-Za-z0-9_]{0,31})')")
_EXTENDED_SPACE = " \t\n\x0b\x0c\r"
_EXTENDED_UNICODE_SPACE = "\x85\u200e\u200f\u2028\u2029"
_ESCAPED_ASSERTIONS: dict[str, Kind] = {
    "A": "start",
    "Z": "end_or_newline",
    "z": "end",
    "b": "boundary",
    "B": "no_boundary",
}


def translate(pattern: str, options: str) -> str:
    """The pattern for RE2, to be compiled with RE2's default options. Raises `RegexError`."""
    if "\0" in pattern:
        raise invalid(r"a regular expression holds no NUL; write \x00")
    if not all(sets.is_scalar(ord(character)) for character in pattern):
        raise invalid("a regular expression holds no lone surrogates")
    parser = _Parser(pattern, frozenset(options))
    tree = parser.choice(0)
    if parser.rest:
        raise invalid("a parenthesis is closed that was not opened; write \\)")
    if size(tree) > MAX_SIZE:
        raise invalid(TOO_LARGE)
    if parser.has_no_boundary and width(tree) == 0:
        raise unsupported(r"\B stands only in a regular expression that cannot match the empty string")
    return printed_for_re2(tree, is_last=True, width_after=0)


class _Parser(Reader):
    """Groups, quantifiers and assertions."""

    def __init__(self, pattern: str, flags: frozenset[str]) -> None:
        super().__init__(pattern, flags)
        self.names: set[str] = set()
        self.has_no_boundary = False
        self.items = 0
        self.size = 0

    def choice(self, depth: int) -> Node:
        """Alternatives up to a closing parenthesis or the end. Flags set in one are in force in the next ones."""
        if depth > MAX_DEPTH:
            raise unsupported(f"groups of a regular expression nest at most {MAX_DEPTH} deep")
        branches = [self.sequence(depth)]
        while self.take("|"):
            branches.append(self.sequence(depth))
        return branches[0] if len(branches) == 1 else Choice(tuple(branches))

    def sequence(self, depth: int) -> Node:
        items: list[Node] = []
        while True:
            self._skip_ignored()
            if not self.rest or self.pattern[self.at] in "|)":
                return items[0] if len(items) == 1 else Concat(tuple(items))
            self.items += 1
            if self.items > MAX_ITEMS:
                raise invalid(TOO_LARGE)
            if self.pattern.startswith("\\Q", self.at):
                items += self._quoted()
            else:
                item = self._item(depth)
                if item is None:  # a setting of flags
                    self._refuse_quantifier()
                    continue
                items.append(item)
            items[-1] = self._quantified(items[-1])
            self._count_size(items[-1])

    def _count_size(self, item: Node) -> None:
        """Refuse what is too large already, before the rest of it is read. A group around it makes it no smaller."""
        if isinstance(item, Char) or (isinstance(item, Repeat) and isinstance(item.item, Char)):
            self.size += size(item)
            if self.size > MAX_SIZE:
                raise invalid(TOO_LARGE)

    def _skip_ignored(self) -> bool:
        """Skip comments, and under `x` white space; whether there was any."""
        start = self.at
        while self.rest:
            character = self.pattern[self.at]
            if self.pattern.startswith("(?#", self.at):
                self._skip_past(")", "a comment of a regular expression is not closed")
            elif "x" not in self.flags:
                break
            elif character == "#":
                end = self.pattern.find("\n", self.at)
                self.at = len(self.pattern) if end < 0 else end + 1
            elif character in _EXTENDED_UNICODE_SPACE:
                raise unsupported(r"under option x white space beyond ASCII is written as \x{..}")
            elif character in _EXTENDED_SPACE:
                self.at += 1
            else:
                break
        return self.at > start

    def _skip_past(self, text: str, rule: str) -> None:
        end = self.pattern.find(text, self.at)
        if end < 0:
            raise invalid(rule)
        self.at = end + len(text)

    def _quantified(self, item: Node) -> Node:
        self._skip_ignored()
        self._refuse_braces()
        found = self.match(_QUANTIFIER)
        if found is None:
            return item
        if isinstance(item, Assertion):
            raise invalid("a quantifier follows an assertion; leave it out")
        least, most = _bounds(found)
        if self.take("+"):
            raise unsupported("there are no possessive quantifiers; leave out the second +")
        if not self.take("?") and self._skip_ignored() and self.rest and self.pattern[self.at] in "?+":
            raise unsupported("nothing stands between a quantifier and its ? or +")
        self._refuse_quantifier()
        return Repeat(item, least, most)

    def _refuse_quantifier(self) -> None:
        self._skip_ignored()
        self._refuse_braces()
        if _QUANTIFIER.match(self.pattern, self.at):
            raise invalid("a quantifier has nothing to repeat; put a group before it or escape it")

    def _refuse_braces(self) -> None:
        if _LOOKS_LIKE_QUANTIFIER.match(self.pattern, self.at) and not _QUANTIFIER.match(
            self.pattern, self.at
        ):
            raise unsupported(r"quantifiers are {n}, {n,} and {n,m} without spaces; write \{ for a brace")

    def _item(self, depth: int) -> Node | None:
        character = self.pattern[self.at]
        if character == "(":
            return self._group(depth)
        if character == "[":
            return self.char_class()
        if character == "\\":
            return self._escape()
        self._refuse_quantifier()
        self.at += 1
        if character == "^":
            return Assertion("line_start" if "m" in self.flags else "start")
        if character == "$":
            return Assertion("line_end" if "m" in self.flags else "end_or_newline")
        if character == ".":
            return ANY if "s" in self.flags else NOT_NEWLINE
        return self.char(character)

    def _quoted(self) -> list[Node]:
        """`\\Q...\\E`, which has to hold something: PCRE2 would let a quantifier reach past an empty one."""
        self.at += 2
        end = self.pattern.find("\\E", self.at)
        text = self.pattern[self.at :] if end < 0 else self.pattern[self.at : end]
        self.at = len(self.pattern) if end < 0 else end + 2
        if not text:
            raise unsupported(r"nothing is quoted between \Q and \E; leave them out")
        return [self.char(character) for character in text]

    def _group(self, depth: int) -> Node | None:
        outer = self.flags
        if found := self.match(_FLAGS):
            self.flags = (outer | set(found[1])) - set(found[2] or "")
            if found[0].count("x") > 1:
                raise unsupported("option x stands once in a group")
            if found[3] == ")":
                return None
        elif found := self.match(_NAME):
            name = found[1] or found[2]
            if name in self.names:
                raise invalid("a regular expression names two groups alike")
            self.names.add(name)
        elif self.pattern.startswith(("(?", "(*"), self.at):
            raise unsupported(
                "groups are (..), (?:..), (?<name>..) and those with the options i, m, s and x; there is no "
                "lookahead, lookbehind, atomic group, backreference, recursion, condition or verb"
            )
        else:
            self.at += 1
        inner = self.choice(depth + 1)
        if not self.take(")"):
            raise invalid("a parenthesis of a regular expression is not closed")
        self.flags = outer
        return Concat((inner,))

    def _escape(self) -> Node:
        letter = self.pattern[self.at + 1 : self.at + 2]
        if letter in _ESCAPED_ASSERTIONS:
            self.at += 2
            self.has_no_boundary |= letter == "B"
            return Assertion(_ESCAPED_ASSERTIONS[letter])
        if letter == "N" and not self.pattern.startswith("{", self.at + 2):
            self.at += 2
            return NOT_NEWLINE
        if letter in sets.ESCAPES:
            self.at += 2
            return Char(sets.in_brackets(sets.ESCAPES[letter]), sets.size(sets.ESCAPES[letter]))
        return self.char(chr(self.escaped_code_point()))


def _bounds(found: re.Match[str]) -> tuple[int, int | None]:
    if found[1] is None:
        return {"*": (0, None), "+": (1, None), "?": (0, 1)}[found[0]]
    least = _count(found[1])
    most = least if found[2] is None else _count(found[3]) if found[3] else None
    if most is not None and most < least:
        raise invalid("the numbers of a quantifier are out of order")
    if most == 0:
        raise unsupported("a quantifier counts to 1 at least; leave out what is repeated no times")
    return least, most


def _count(digits: str) -> int:
    significant = digits.lstrip("0") or "0"
    if len(significant) > 5 or int(significant) > 65535:
        raise invalid("a quantifier counts to 65535 at most")
    if int(significant) > MAX_REPEAT:
        raise unsupported(f"a quantifier counts to {MAX_REPEAT} at most")
    return int(significant)
