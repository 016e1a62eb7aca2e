r"""Regular expressions: MongoDB's unanchored search in a string, run by RE2.

`regex_syntax` turns a pattern into one of RE2 that means the same, or refuses it; this module compiles and runs it and
is the only one that knows RE2. RE2 searches with automata: time is linear in the string for every pattern, mostly one
step per byte, and at worst one per byte and instruction of the program (`regex_syntax.MAX_SIZE`), when the automaton
outgrows `_MEMORY_BYTES` and is simulated instead. It prints nothing (`log_errors`).

Options are MongoDB's: `i m s x`, and `u`, which changes nothing. Source: mongo/util/pcre_util.cpp (flagsToOptions) and
mongo/db/matcher/expression_leaf.cpp (RegexMatchExpression: no NUL in a pattern).
"""

from __future__ import annotations

from collections.abc import Callable

import re2

from feedsvc.core.filters.regex_syntax import TOO_LARGE, translate
from feedsvc.core.filters.regex_tree import RegexError, invalid

__all__ = ["MAX_PATTERN_BYTES", "RegexError", "canonical_options", "compile_regex", "compile_sized"]

MAX_PATTERN_BYTES = 4096
"""Not more than a whole filter may have; MongoDB's bound is 32764."""
_MEMORY_BYTES = 1 << 20
"""RE2's budget for the program and the automaton of one pattern."""


def canonical_options(options: str) -> str:
    """The options that mean the same: sorted, each once, without `u`. Raises `RegexError`."""
    if not set(options) <= set("imsxu"):
        raise invalid("the options of a regular expression are i, m, s, x and u")
    return "".join(sorted(set(options) - {"u"}))


def compile_regex(pattern: str, options: str) -> Callable[[str], bool]:
    """A function that says whether MongoDB finds the pattern anywhere in a string. Raises `RegexError` only."""
    return compile_sized(pattern, options)[0]


def compile_sized(pattern: str, options: str) -> tuple[Callable[[str], bool], int]:
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
    search = compiled.search
    # Bytes: a search in a str also counts the characters before the match.
    return lambda text: search(text.encode()) is not None, int(compiled.programsize)


def _settings() -> re2.Options:
    settings = re2.Options()
    settings.log_errors = False
    settings.max_mem = _MEMORY_BYTES
    settings.never_capture = True
    return settings
