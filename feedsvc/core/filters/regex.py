"""Regular expressions: MongoDB's unanchored search in a string, run by RE2."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

import re2

Code = Literal["filter_invalid", "filter_unsupported"]


class RegexError(ValueError):
    """A pattern or its options are refused. `rule` carries no part of either."""

    def __init__(self, code: Code, rule: str) -> None:
        super().__init__(rule)
        self.code: Code = code
        self.rule = rule


def canonical_options(options: str) -> str:
    """The options that mean the same, sorted, each once, without `u`, which changes nothing."""
    if not set(options) <= set("imsxu"):
        raise RegexError("filter_invalid", "the options of a regular expression are i, m, s, x and u")
    return "".join(sorted(set(options) - {"u"}))


def compile_regex(pattern: str, options: str) -> Callable[[str], bool]:
    """A function that says whether the pattern is found anywhere in a string."""
    if not re.fullmatch(r"\^?[A-Za-z0-9 _@:,/<>=!\"'%&;~`-]*", pattern):
        raise RegexError("filter_unsupported", "the regular expression uses an unsupported construct")
    settings = re2.Options()
    settings.log_errors = False
    settings.max_mem = 1 << 20
    settings.never_capture = True
    settings.case_sensitive = "i" not in canonical_options(options)
    search = re2.compile(pattern, options=settings).search
    return lambda text: search(text) is not None
