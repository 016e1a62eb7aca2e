r"""Characters and classes of a regular expression, read as PCRE2 reads them.

`Reader` walks over the pattern; `regex_syntax` is built on it. A hyphen, a bracket or an escape means another thing at
each place of a class, so what PCRE2 calls an error, or only tolerates, is refused; so is a class that holds POSIX
classes together with complements (`\S`, `[:^alpha:]`), in which PCRE2 10.42 forgets what lies beyond U+00FF.

Cost: linear in the pattern. Source: pcre2pattern(3), "Backslash", "Square brackets and character classes" and "POSIX
character classes".
"""

from __future__ import annotations

import re

from feedsvc.core.filters import regex_sets as sets
from feedsvc.core.filters.regex_tree import Char, invalid, unsupported

_HEX = re.compile(r"x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]+)\})")
_OCTAL = re.compile(r"(0[0-7]{0,2})|o\{([0-7]+)\}")
_POSIX_NAME = re.compile(r"\[:(\^?)([a-z]+):\]")

_CONTROLS = {"a": "\x07", "e": "\x1b", "f": "\x0c", "n": "\n", "r": "\r", "t": "\t"}
_PCRE2_ESCAPES = frozenset("cgkopxCGKNPQERX")
"""Letters that PCRE2 knows after a backslash and this parser refuses, in whole or in part."""

_UNSTABLE_CASE = (
    "under option i a character or class holds letters whose case depends on the server's version of Unicode, or a "
    r"negated class mixes \w and the like with letters beyond ASCII; leave out i and write both cases"
)


class Reader:
    """Reads the pattern once, left to right. `flags` are those in force at `at`."""

    def __init__(self, pattern: str, flags: frozenset[str]) -> None:
        self.pattern = pattern
        self.at = 0
        self.flags = flags

    @property
    def rest(self) -> bool:
        return self.at < len(self.pattern)

    def take(self, text: str) -> bool:
        if self.pattern.startswith(text, self.at):
            self.at += len(text)
            return True
        return False

    def match(self, expression: re.Pattern[str]) -> re.Match[str] | None:
        found = expression.match(self.pattern, self.at)
        if found is not None:
            self.at = found.end()
        return found

    def char(self, character: str) -> Char:
        try:
            return Char(sets.literal(character, caseless="i" in self.flags))
        except sets.UnstableCaseError:
            raise unsupported(_UNSTABLE_CASE) from None

    def escaped_code_point(self) -> int:
        """An escape that stands for one character, in a class or outside."""
        self.at += 1
        if not self.rest:
            raise invalid("a regular expression ends in a backslash")
        found = self.match(_HEX) or self.match(_OCTAL)
        if found is not None:
            digits = found[1] or found[2]
            code_point = int(digits, 16 if found[0][0] == "x" else 8)
            if not sets.is_scalar(code_point):
                raise invalid("an escape names a code point that does not exist")
            return code_point
        character = self.pattern[self.at]
        self.at += 1
        if character in _CONTROLS:
            return ord(_CONTROLS[character])
        if not (character.isascii() and character.isalnum()):
            return ord(character)
        if character in _PCRE2_ESCAPES or character.isdigit():
            raise unsupported(
                r"escapes of letters and digits are \a \e \f \n \r \t \d \D \s \S \w \W \h \H \v \V \N \A \Z \z \b \B "
                r"\Q..\E \xhh \x{..} \o{..} \0; there are no backreferences and no properties"
            )
        raise invalid("a backslash stands before a letter that has no meaning; leave it out")

    def char_class(self) -> Char:
        if _is_posix_like(self.pattern, self.at):
            raise invalid("a POSIX class stands within a class: [[:alpha:]]")
        self.at += 1
        negated = self.take("^")
        literals: list[tuple[int, int]] = []
        named: list[tuple[int, int]] = []
        first, holds_complement, holds_posix = True, False, False
        while first or not self.take("]"):
            first = False
            start = self.at
            member = self._member()
            if not isinstance(member, int):
                named += member
                holds_complement |= sets.contains(member, sets.MAX_CODE_POINT)
                holds_posix |= self.pattern[start] == "[" and not sets.contains(member, sets.MAX_CODE_POINT)
                if self._precedes_range():
                    raise invalid(r"a hyphen after a set in a class stands at its end, or is written \-")
            elif self._precedes_range():
                self.at += 1
                last = self._member()
                if not isinstance(last, int):
                    raise invalid(r"a range in a class ends in a character; write \- for a hyphen")
                if last < member:
                    raise invalid("a range in a class is out of order")
                literals.append((member, last))
                # A hyphen after a range is itself, even where it looks like the start of another range.
                if self._precedes_range():
                    raise unsupported(
                        r"a hyphen after a range in a class stands at its end, or is written \-"
                    )
            else:
                literals.append((member, member))
        if holds_complement and holds_posix:
            # PCRE2 10.42 forgets all beyond U+00FF of the complement if the POSIX class comes later.
            raise unsupported(r"a class holds POSIX classes or sets like \S \W \D and [:^alpha:], not both")
        return self._set(sets.merge(literals), sets.merge(named), negated=negated)

    def _precedes_range(self) -> bool:
        return self.pattern.startswith("-", self.at) and not self.pattern.startswith("-]", self.at)

    def _set(self, literals: sets.Ranges, named: sets.Ranges, *, negated: bool) -> Char:
        reach = sets.merge(literals + named)
        instructions = sets.size(sets.complement(reach) if negated else reach)
        try:
            return Char(
                sets.char_class(literals, named, negated=negated, caseless="i" in self.flags), instructions
            )
        except sets.UnstableCaseError:
            raise unsupported(_UNSTABLE_CASE) from None

    def _member(self) -> int | sets.Ranges:
        """The next character or set of a class."""
        if not self.rest:
            raise invalid("a class of a regular expression is not closed; write \\[ for a bracket")
        character = self.pattern[self.at]
        if character == "[" and _is_posix_like(self.pattern, self.at):
            return self._posix()
        if character != "\\":
            self.at += 1
            return ord(character)
        letter = self.pattern[self.at + 1 : self.at + 2]
        if letter in sets.ESCAPES:
            self.at += 2
            return sets.ESCAPES[letter]
        if letter == "b":
            self.at += 2
            return 0x08
        return self.escaped_code_point()

    def _posix(self) -> sets.Ranges:
        if self.pattern.startswith(("[:<:]", "[:>:]"), self.at):
            raise unsupported(r"word boundaries are written \b")
        found = self.match(_POSIX_NAME)
        ranges = sets.posix(found[2], caseless="i" in self.flags) if found is not None else None
        if found is None or ranges is None:
            raise invalid("no POSIX class has this name; there are no collating elements")
        return sets.complement(ranges) if found[1] else ranges


def _is_posix_like(pattern: str, at: int) -> bool:
    """Whether PCRE2 would take what starts at this bracket for a POSIX class or collating element (as in 10.42)."""
    delimiter = pattern[at + 1 : at + 2]
    if delimiter not in (":", ".", "="):
        return False
    at += 2
    while at + 1 < len(pattern):
        pair = pattern[at : at + 2]
        if pair == delimiter + "]":
            return True
        if pair[0] == "]" or pair == "[" + delimiter:
            return False
        at += 2 if pair in ("\\]", "\\\\") else 1
    return False
