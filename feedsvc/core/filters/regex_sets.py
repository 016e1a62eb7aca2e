r"""Sets of characters in regular expressions: what an escape, a POSIX name and a class mean, and how RE2 is told.

A set is a tuple of ranges of code points, sorted and apart. Escapes and POSIX names are ASCII only, because MongoDB
compiles with PCRE2_UTF and without PCRE2_UCP; `\h` and `\v` are fixed lists. RE2 is always given the ranges, never the
escape: its `\s` has no vertical tab, and under `i` its `\w` gains the two characters that fold to `k` and `s`.

**Case.** Only what is written out folds: a literal, and the literals and ranges of a class, before the class is
negated; escapes do not, but `[:upper:]` and `[:lower:]` become `[:alpha:]`. Folding within ASCII is done here: it adds
U+212A (Kelvin sign) to `k` and U+017F (long s) to `s`. Beyond ASCII RE2 folds by its own Unicode tables, which agree
with those of PCRE2 10.42 (Unicode 14) in all but three pairs. These, and those that came with Unicode 16 and 17, are
`_UNSTABLE`: what holds one half of such a pair is refused under `i`, since servers differ in the answer.

Cost: linear in the class. Sources: pcre2pattern(3), "Backslash", "Square brackets and character classes", "POSIX
character classes"; mongo/util/pcre_util.cpp (flagsToOptions); CaseFolding.txt of Unicode 14 to 17.
"""

from __future__ import annotations

from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]

MAX_CODE_POINT = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)


def merge(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The same set, sorted, with what overlaps or touches joined."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def complement(ranges: Ranges) -> Ranges:
    """Every other code point."""
    rest, start = [], 0
    for first, last in ranges:
        if start < first:
            rest.append((start, first - 1))
        start = last + 1
    if start <= MAX_CODE_POINT:
        rest.append((start, MAX_CODE_POINT))
    return tuple(rest)


def contains(ranges: Ranges, code_point: int) -> bool:
    return any(first <= code_point <= last for first, last in ranges)


def _of(text: str) -> Ranges:
    """A set in pairs of first and last character."""
    return merge((ord(first), ord(last)) for first, last in zip(text[::2], text[1::2], strict=True))


NEWLINE: Ranges = ((10, 10),)
DIGIT = _of("09")
SPACE = _of("\t\r  ")
WORD = _of("09AZaz__")
HORIZONTAL = _of("\t\t  \xa0\xa0\u1680\u1680\u180e\u180e\u2000\u200a\u202f\u202f\u205f\u205f\u3000\u3000")
VERTICAL = _of("\n\r\x85\x85\u2028\u2029")

ESCAPES: dict[str, Ranges] = {
    "d": DIGIT,
    "D": complement(DIGIT),
    "s": SPACE,
    "S": complement(SPACE),
    "w": WORD,
    "W": complement(WORD),
    "h": HORIZONTAL,
    "H": complement(HORIZONTAL),
    "v": VERTICAL,
    "V": complement(VERTICAL),
}

POSIX: dict[str, Ranges] = {
    "alnum": _of("09AZaz"),
    "alpha": _of("AZaz"),
    "ascii": _of("\x00\x7f"),
    "blank": _of("\t\t  "),
    "cntrl": _of("\x00\x1f\x7f\x7f"),
    "digit": DIGIT,
    "graph": _of("!~"),
    "lower": _of("az"),
    "print": _of(" ~"),
    "punct": _of("!/:@[`{~"),
    "space": SPACE,
    "upper": _of("AZ"),
    "word": WORD,
    "xdigit": _of("09AFaf"),
}

_KELVIN_SIGN, _LONG_S = 0x212A, 0x17F
_UNSTABLE: tuple[tuple[int, int], ...] = (
    *((0x390, 0x1FD3), (0x3B0, 0x1FE3), (0xFB05, 0xFB06)),  # Unicode 15.1
    *(
        (0x19B, 0xA7DC),
        (0x264, 0xA7CB),
        (0x1C89, 0x1C8A),
        (0xA7CC, 0xA7CD),
        (0xA7DA, 0xA7DB),
    ),  # 16, and Garay:
    *((capital, capital + 0x20) for capital in range(0x10D50, 0x10D66)),
    *((0xA7CE, 0xA7CF), (0xA7D2, 0xA7D3), (0xA7D4, 0xA7D5)),  # 17, and Beria Erfe:
    *((capital, capital + 0x1B) for capital in range(0x16EA0, 0x16EB9)),
)


class UnstableCaseError(ValueError):
    """Servers differ in what this set matches under `i`."""


def posix(name: str, *, caseless: bool) -> Ranges | None:
    """The set of `[:name:]`, None for an unknown name."""
    return POSIX.get("alpha" if caseless and name in ("lower", "upper") else name)


def literal(character: str, *, caseless: bool) -> str:
    """One character as RE2 reads it. Raises `UnstableCaseError`."""
    code_point = ord(character)
    if not caseless or (code_point < 0x80 and not character.isalpha()):
        return escaped(code_point)
    _require_stable(((code_point, code_point),))
    return f"(?i:{escaped(code_point)})"


def escaped(code_point: int) -> str:
    """A code point that RE2 cannot take for syntax."""
    character = chr(code_point)
    return character if character.isascii() and character.isalnum() else f"\\x{{{code_point:x}}}"


def char_class(literals: Ranges, sets: Ranges, *, negated: bool, caseless: bool) -> str:
    """A class of what is written out and of what escapes name, as RE2 reads it. Raises `UnstableCaseError`."""
    if not caseless or not literals:
        return in_brackets(merge(literals + sets), negated=negated)
    if literals[-1][1] < 0x80:
        return in_brackets(merge(_fold_ascii(literals) + sets), negated=negated)
    _require_stable(literals)
    if _is_closed(sets):
        return f"(?i:{in_brackets(merge(literals + sets), negated=negated)})"
    if negated:
        raise UnstableCaseError
    return f"(?:(?i:{in_brackets(literals)})|{in_brackets(sets)})"


def size(ranges: Ranges) -> int:
    """About the instructions that RE2 makes of a set: beyond ASCII a set is one of byte sequences."""
    return 1 if not ranges or ranges[-1][1] < 0x80 else 4 + 2 * len(ranges)


def in_brackets(ranges: Ranges, *, negated: bool = False) -> str:
    """A set as a class of RE2, exactly as it stands."""
    if not ranges:  # the empty class and its negation, neither of which can be written with nothing inside
        ranges, negated = ((0, MAX_CODE_POINT),), not negated
    parts = [
        escaped(first) if first == last else f"{escaped(first)}-{escaped(last)}" for first, last in ranges
    ]
    return f"[{'^' if negated else ''}{''.join(parts)}]"


def is_scalar(code_point: int) -> bool:
    """Whether UTF-8 can hold it."""
    return code_point <= MAX_CODE_POINT and not _SURROGATES[0] <= code_point <= _SURROGATES[1]


def _fold_ascii(ranges: Ranges) -> Ranges:
    folded = list(ranges)
    for first, last in ranges:
        for low, shift in ((ord("A"), 32), (ord("a"), -32)):
            start, end = max(first, low), min(last, low + 25)
            if start <= end:
                folded.append((start + shift, end + shift))
    merged = merge(folded)
    kelvin = [(_KELVIN_SIGN, _KELVIN_SIGN)] if contains(merged, ord("k")) else []
    long_s = [(_LONG_S, _LONG_S)] if contains(merged, ord("s")) else []
    return merge((*merged, *kelvin, *long_s))


def _is_closed(sets: Ranges) -> bool:
    """Whether folding adds nothing to a set of escapes: they split no other pair than these two."""
    return contains(sets, ord("k")) == contains(sets, _KELVIN_SIGN) and contains(sets, ord("s")) == contains(
        sets, _LONG_S
    )


def _require_stable(literals: Ranges) -> None:
    for one, other in _UNSTABLE:
        if contains(literals, one) != contains(literals, other):
            raise UnstableCaseError
