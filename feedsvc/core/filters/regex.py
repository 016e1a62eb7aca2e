r"""Regular expressions: MongoDB's unanchored search in a string, run by RE2.

`regex_syntax` turns a pattern into one of RE2 that means the same, or refuses it; this module compiles and runs it and
is the only one that knows RE2. RE2 searches with automata: time is linear in the string for every pattern, mostly one
step per byte, and at worst one per byte and instruction of the program, when the automaton outgrows `_MEMORY_BYTES` and
is simulated instead. It prints nothing (`log_errors`).

Linear is not enough. A simulated step takes 7 ns, so `a[ab]{30}c` takes 250 ms for each megabyte, the largest program
17 s, and a string may have 16 of them. No bound on programs helps: `a[ab]{12}c` is simulated already. What is bounded
is their product, for one document and one filter (`Searches`): 0.1 s, whatever the filter and the document.

Options are MongoDB's: `i m s x`, and `u`, which changes nothing. Source: mongo/util/pcre_util.cpp (flagsToOptions) and
mongo/db/matcher/expression_leaf.cpp (RegexMatchExpression: no NUL in a pattern).
"""

from __future__ import annotations

from collections.abc import Callable

import re2

from feedsvc.core.filters.regex_syntax import TOO_LARGE, translate
from feedsvc.core.filters.regex_tree import RegexError, invalid

__all__ = [
    "MAX_PATTERN_BYTES",
    "RegexError",
    "Searches",
    "TooMuchText",
    "canonical_options",
    "compile_regex",
    "compile_sized",
]

MAX_PATTERN_BYTES = 4096
"""Not more than a whole filter may have; MongoDB's bound is 32764."""
_MEMORY_BYTES = 1 << 19
"""RE2's budget for the program and the automata of one pattern, which grow with the texts that it meets: 200 KB at most
for each of the two. With half of it `[a-z]{300}1` would be simulated."""
MAX_STEPS = 1 << 24
"""Bytes times instructions that one filter may search in one document: some 0.1 s, if every step is a simulated one."""
_SMALL_PROGRAM = 14
"""Automata of so few instructions do not outgrow their memory: one step per byte, 15 ms for a megabyte."""


class TooMuchText(Exception):
    """A document has more text than the regular expressions of a filter may search: nothing is said of it."""


class Searches:
    """What the searches of one filter may still cost in one document; set `left` to `MAX_STEPS` before each."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_STEPS

    def take(self, steps: int) -> None:
        """Before a search of so many steps. Raises `TooMuchText`."""
        self.left -= steps
        if self.left < 0:
            raise TooMuchText("the text is too long for the regular expressions of the filter")


def canonical_options(options: str) -> str:
    """The options that mean the same: sorted, each once, without `u`. Raises `RegexError`."""
    if not set(options) <= set("imsxu"):
        raise invalid("the options of a regular expression are i, m, s, x and u")
    return "".join(sorted(set(options) - {"u"}))


def compile_regex(pattern: str, options: str, searches: Searches | None = None) -> Callable[[str], bool]:
    """A function that says whether MongoDB finds the pattern anywhere in a string. Raises `RegexError` only.

    Where `searches` is given they are counted, and the function may raise `TooMuchText`.
    """
    return compile_sized(pattern, options, searches)[0]


def compile_sized(
    pattern: str, options: str, searches: Searches | None = None
) -> tuple[Callable[[str], bool], int]:
    """The same, and the number of RE2's instructions: what compiling took, and a search takes per byte at worst."""
    flags = canonical_options(options)
    if len(pattern) > MAX_PATTERN_BYTES or len(pattern.encode("utf-8", "surrogatepass")) > MAX_PATTERN_BYTES:
        raise invalid(f"a regular expression has at most {MAX_PATTERN_BYTES} bytes")
    translated = translate(pattern, flags).encode()
    try:
        compiled = re2.compile(translated, options=_settings())
    except re2.error:
        raise invalid(TOO_LARGE) from None
    finally:
        re2.purge()  # its cache would keep the last 128 patterns of all tenants in memory
    search, instructions = compiled.search, int(compiled.programsize)
    # Bytes: a search in a str also counts the characters before the match.
    if searches is None:
        return lambda text: search(text.encode()) is not None, instructions
    take, steps = searches.take, instructions if instructions > _SMALL_PROGRAM else 1

    def found(text: str) -> bool:
        encoded = text.encode()
        take(len(encoded) * steps)
        return search(encoded) is not None

    return found, instructions


def _settings() -> re2.Options:
    settings = re2.Options()
    settings.log_errors = False
    settings.max_mem = _MEMORY_BYTES
    settings.never_capture = True
    return settings
