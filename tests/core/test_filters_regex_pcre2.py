"""Compared with PCRE2 itself, as MongoDB calls it, where its library is installed."""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from feedsvc.core.filters.regex import RegexError, compile_regex
from tests.core import regex_patterns

_PATH = Path(__file__).parent.parent / "filter_vectors" / "regex-vectors.json"
CASES: list[dict[str, Any]] = [
    case for group in json.loads(_PATH.read_text())["groups"] for case in group["cases"]
]

_UTF = 0x00080000
_OPTIONS = {"i": 0x00000008, "m": 0x00000400, "s": 0x00000020, "x": 0x00000080, "u": 0}
_NO_MATCH = -1


class Pcre2:
    """`pcre2_compile` and `pcre2_match` with the options of mongo/util/pcre_util.cpp."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.pcre2_compile_8.restype = ctypes.c_void_p
        library.pcre2_compile_8.argtypes = [
            *(ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint32),
            *(ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_size_t), ctypes.c_void_p),
        ]
        library.pcre2_match_data_create_8.restype = ctypes.c_void_p
        library.pcre2_match_data_create_8.argtypes = [ctypes.c_uint32, ctypes.c_void_p]
        library.pcre2_match_8.argtypes = [
            *(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t),
            *(ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p),
        ]
        library.pcre2_match_data_free_8.argtypes = [ctypes.c_void_p]
        library.pcre2_code_free_8.argtypes = [ctypes.c_void_p]
        self._match_data = library.pcre2_match_data_create_8(1, None)
        self._codes: list[int] = []

    def compile(self, pattern: str, options: str) -> Callable[[str], bool | None] | None:
        """None if PCRE2 refuses the pattern; the function gives None where it gave up (its match limit)."""
        flags = sum({_OPTIONS[letter] for letter in options}, _UTF)
        encoded = pattern.encode()
        error, offset = ctypes.c_int(), ctypes.c_size_t()
        code = self._library.pcre2_compile_8(
            encoded, len(encoded), flags, ctypes.byref(error), ctypes.byref(offset), None
        )
        if code is None:
            return None
        self._codes.append(code)

        def search(string: str) -> bool | None:
            subject = string.encode()
            result: int = self._library.pcre2_match_8(
                code, subject, len(subject), 0, 0, self._match_data, None
            )
            return None if result < _NO_MATCH else result > _NO_MATCH

        return search

    def free(self) -> None:
        """Free every pattern; the functions are not to be called any more."""
        for code in self._codes:
            self._library.pcre2_code_free_8(code)
        self._codes.clear()

    def close(self) -> None:
        self.free()
        self._library.pcre2_match_data_free_8(self._match_data)


@pytest.fixture(scope="module")
def pcre2() -> Iterator[Pcre2]:
    for name in (ctypes.util.find_library("pcre2-8"), "libpcre2-8.so.0", "libpcre2-8.dylib"):
        try:
            library = ctypes.CDLL(name) if name else None
        except OSError:
            continue
        if library is not None:
            engine = Pcre2(library)
            yield engine
            engine.close()
            return
    pytest.skip("libpcre2-8 is not installed")


def test_vectors_hold_in_pcre2(pcre2: Pcre2) -> None:
    """What the vectors expect is what PCRE2 answers."""
    differing = []
    for case in CASES:
        if "matches" in case:
            search = pcre2.compile(case["pattern"], case["options"])
            if search is None or search(case["string"]) is not case["matches"]:
                differing.append(case)
    assert differing == []


def test_what_is_refused_as_invalid_is_refused_by_pcre2(pcre2: Pcre2) -> None:
    """All but the options, the NUL that MongoDB refuses itself, and what is too large only for us."""
    accepted = [
        case["pattern"]
        for case in CASES
        if case.get("refused") == "filter_invalid"
        and set(case["options"]) <= _OPTIONS.keys()
        and "\0" not in case["pattern"]
        and pcre2.compile(case["pattern"], case["options"]) is not None
    ]
    assert sorted(accepted) == ["(?:(?:[^a]{20}){20}){20}", "(?:.{100}){4}", "(a{100}){100}", "(a|b|c){500}"]


def compare(pcre2: Pcre2, seed: int, patterns: int) -> tuple[int, list[object]]:
    """How many of so many random patterns were accepted, and every difference among these."""
    random = Random(seed)
    accepted, differing = 0, list[object]()
    for _ in range(patterns):
        pattern, options = regex_patterns.pattern(random), regex_patterns.options(random)
        try:
            found = compile_regex(pattern, options)
        except RegexError:
            continue
        accepted += 1
        search = pcre2.compile(pattern, options)
        if search is None:
            differing.append((pattern, options, "is refused by PCRE2"))
            continue
        strings = ["", "\n", "a\n", "é", "aéa", "\u212a", "\x0b"]
        strings += [regex_patterns.string(random) for _ in range(20)]
        strings += [regex_patterns.string(random, ["a", "b", "k", "A", "\n"]) for _ in range(10)]
        for string in strings:
            expected = search(string)
            if expected is not None and found(string) is not expected:
                differing.append((pattern, options, string, expected))
                break
        pcre2.free()
    return accepted, differing


def test_random_patterns_agree_with_pcre2(pcre2: Pcre2) -> None:
    """1,000 patterns on 37 strings each."""
    accepted, differing = compare(pcre2, seed=1, patterns=1_000)
    assert differing == []
    assert accepted > 300


@pytest.mark.verify
def test_many_random_patterns_agree_with_pcre2(pcre2: Pcre2) -> None:
    """200,000 patterns; 20,000 with VERIFY_SCALE=short."""
    patterns = 20_000 if os.environ.get("VERIFY_SCALE") == "short" else 200_000
    accepted, differing = compare(pcre2, seed=2, patterns=patterns)
    assert differing == []
    assert accepted > patterns * 0.3


def test_every_letter_folds_alike(pcre2: Pcre2) -> None:
    """Under `i` each letter of the scripts that have case finds the same characters in both, or is refused."""
    letters = [chr(code) for code in (*range(0x80, 0x590), *range(0x1E00, 0x2190)) if chr(code).isalpha()]
    differing = []
    for letter in letters:
        try:
            found = compile_regex(letter, "i")
        except RegexError:
            continue
        search = pcre2.compile(letter, "i")
        assert search is not None
        others = {letter.lower(), letter.upper(), letter.title(), letter.casefold()}
        differing += [(letter, other) for other in others if found(other) is not search(other)]
        pcre2.free()
    assert differing == []
