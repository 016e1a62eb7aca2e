"""Regular expressions on RE2 give PCRE2's answers or are refused, print nothing and take linear time."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedsvc.core.filters.regex import MAX_PATTERN_BYTES, RegexError, canonical_options, compile_regex
from feedsvc.core.filters.regex_syntax import MAX_DEPTH, MAX_ITEMS, translate
from tests.core import regex_patterns

_PATH = Path(__file__).parent.parent / "filter_vectors" / "regex-vectors.json"
GROUPS: list[dict[str, Any]] = json.loads(_PATH.read_text())["groups"]


def refusal(pattern: str, options: str = "") -> RegexError:
    """How the pattern is refused."""
    with pytest.raises(RegexError) as refused:
        compile_regex(pattern, options)
    return refused.value


def answer(case: dict[str, Any]) -> bool | str:
    """Whether the pattern of a vector is found, or the code of its refusal."""
    try:
        return compile_regex(case["pattern"], case["options"])(case.get("string", ""))
    except RegexError as error:
        return error.code


def test_the_vectors_are_all_there() -> None:
    """A vector that got lost changes these numbers."""
    assert (len(GROUPS), sum(len(group["cases"]) for group in GROUPS)) == (15, 689)


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group["name"])
def test_vectors_agree(group: dict[str, Any]) -> None:
    """Every vector gives the answer that follows from PCRE2's manual, or its refusal."""
    differing = [case for case in group["cases"] if answer(case) != case.get("refused", case.get("matches"))]
    assert differing == []


@pytest.mark.parametrize(
    ("options", "canonical"),
    [("", ""), ("i", "i"), ("xsmi", "imsx"), ("ii", "i"), ("u", ""), ("sui", "is")],
)
def test_options_have_one_spelling(options: str, canonical: str) -> None:
    """Sorted, each once, without `u`, which changes nothing."""
    assert canonical_options(options) == canonical


@pytest.mark.parametrize("options", ["g", "I", "l", "U", "i,m", " ", "й"])
def test_unknown_options_are_refused(options: str) -> None:
    """As MongoDB does (51108)."""
    with pytest.raises(RegexError) as refused:
        canonical_options(options)
    assert refused.value.code == "filter_invalid"


@pytest.mark.parametrize(
    "pattern",
    ["zq9(?=zq9)", "zq9(", "[zq9-0]", "[[:zq:]]", "zq9{3,2}", r"\zq9\p{zq}", "(?<zq9>zq9)(?<zq9>)", "zq9\0"],
)
def test_a_rule_carries_nothing_of_the_pattern(pattern: str) -> None:
    """The rule goes to logs and clients; what was asked for does not."""
    error = refusal(pattern)
    assert "zq" not in str(error) and "zq" not in error.rule
    assert "zq" not in refusal("a", "zq9").rule
    assert error.__cause__ is None and error.__suppress_context__ is (error.__context__ is not None)


LETTERS = "abAB0_ -\n"
_atom = st.sampled_from(
    [
        *"abA0_",
        "-",
        " ",
        r"\n",
        ".",
        r"\d",
        r"\D",
        r"\w",
        r"\W",
        r"\s",
        r"\S",
        "[a-b]",
        "[^a]",
        r"[\d_-]",
        r"[^\w\n]",
    ]
)
_quantifier = st.sampled_from(["", "", "", "*", "+", "?", "*?", "{2}", "{1,2}", "{1,}"])


def _quantified(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds("".join, st.tuples(inner, _quantifier))


def _groups(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    concatenation = st.lists(st.one_of(_quantified(inner), st.just(r"\b")), min_size=1, max_size=3).map(
        "".join
    )
    return st.lists(concatenation, min_size=1, max_size=3).map(lambda branches: f"({'|'.join(branches)})")


_common = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["", "", "^"]),
        st.lists(_quantified(st.recursive(_atom, _groups, max_leaves=6)), min_size=1, max_size=3).map(
            "".join
        ),
        st.sampled_from(["", "", "$"]),
    ),
)


@settings(max_examples=40, deadline=None)
@given(
    pattern=_common,
    options=st.sets(st.sampled_from("is")),
    strings=st.lists(st.text(LETTERS, max_size=8), min_size=8, max_size=8),
)
def test_agrees_with_python_where_python_agrees_with_pcre2(
    pattern: str, options: set[str], strings: list[str]
) -> None:
    """In ASCII, without multiline, `re` and PCRE2 read the same; `$` before a last newline is one of these things."""
    flags = re.ASCII | (re.IGNORECASE if "i" in options else 0) | (re.DOTALL if "s" in options else 0)
    expected = re.compile(pattern, flags)
    found = compile_regex(pattern, "".join(options))
    for string in strings:
        assert found(string) is (expected.search(string) is not None), (pattern, options, string)


@pytest.mark.parametrize(
    ("pattern", "matches_run", "matches_ended"),
    [
        ("(a|a)+b", False, True),
        ("(a+)+$", True, False),
        ("(a|aa)+$", True, False),
        ("(a*)*b", False, True),
        ("^(a+)+!", False, False),
        ("([a-z]+)*b", False, True),
        (r"^(\w+\s?)*$", True, True),
        ("(.*a){20}", True, True),
        ("(.*)*(.*)*(.*)*c", False, False),
        ("^(([a-z])+.)+[A-Z]([a-z])+$", False, False),
        ("(a?){20}a{20}$", True, False),
    ],
)
def test_what_makes_a_backtracking_engine_explode_is_answered(
    pattern: str, matches_run: bool, matches_ended: bool
) -> None:
    """On 100 kB, where a backtracking engine would not end before the test's timeout (FIL-04)."""
    run = "a" * 100_000
    found = compile_regex(pattern, "")
    assert (found(run), found(run + "b")) == (matches_run, matches_ended)


def test_an_automaton_that_outgrows_its_memory_still_answers(capfd: pytest.CaptureFixture[str]) -> None:
    """RE2 then simulates it, slower but linear, and says nothing."""
    random = Random(4)
    noise = "".join(random.choice("ab") for _ in range(20_000))
    found = compile_regex("[ab]*a[ab]{100}c", "")
    assert found(noise) is False
    assert found(noise + "a" + "b" * 100 + "c") is True
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "pattern",
    [
        "a" * (MAX_PATTERN_BYTES + 1),
        "é" * (MAX_PATTERN_BYTES // 2 + 1),
        "a" * (MAX_ITEMS + 1),
        "(" * 4000,
        "(?:" * MAX_DEPTH + "(?:a)" + ")" * MAX_DEPTH,
        "(a{32}){32}",
        "((((a{9}){9}){9}){9}){9}",
        ".{1000}",
        "(?:(?:){1000}){1000}",
        "[a-é]{500}",
        "|" * 4000,
        "a|" * 2000,
        "[" * 4096,
        "[[:" * 1365,
        "[:" * 2048,
        "(?i)" * 1024 + "[",
        "\ud800",
        "[\udfff]",
    ],
    ids=lambda pattern: f"{pattern[:6]!a} {len(pattern)}",
)
def test_the_large_and_the_deep_are_refused(pattern: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Each with a documented error, and nothing printed."""
    assert refusal(pattern).code in ("filter_invalid", "filter_unsupported")
    assert capfd.readouterr() == ("", "")


def test_bounds_are_reached() -> None:
    """What is just within them runs."""
    assert compile_regex("x{1000}", "")("x" * 1000)
    assert compile_regex("a" * MAX_ITEMS, "")("a" * MAX_ITEMS)
    assert compile_regex("(?:" * MAX_DEPTH + "a" + ")" * MAX_DEPTH, "")("a")
    assert compile_regex("^.{1,256}$", "")("é" * 256)
    assert compile_regex("#" + "é" * 2047, "x")("")


def test_whatever_the_pattern_nothing_else_is_raised_or_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """1,500 random patterns compile and run, or are refused with `RegexError`."""
    random = Random(5)
    compiled = 0
    for _ in range(1_500):
        pattern, options = regex_patterns.pattern(random), regex_patterns.options(random)
        try:
            found = compile_regex(pattern, options)
        except RegexError:
            continue
        compiled += 1
        assert found(regex_patterns.string(random)) in (True, False)
    assert 500 < compiled < 1_250
    assert capfd.readouterr() == ("", "")


@settings(max_examples=100, deadline=None)
@given(pattern=st.text(max_size=30), options=st.text("imsxu", max_size=4))
def test_any_text_is_a_pattern_or_is_refused(pattern: str, options: str) -> None:
    """Any Unicode, surrogates and NULs included."""
    try:
        found = compile_regex(pattern, options)
    except RegexError:
        return
    assert found("a\n\0é") in (True, False)


def test_nothing_is_left_to_the_reading_of_re2() -> None:
    """A translated pattern is ASCII and holds no escape of RE2 but assertions, the newline and code points."""
    random = Random(6)
    for _ in range(1_000):
        try:
            translated = translate(regex_patterns.pattern(random), regex_patterns.options(random))
        except RegexError:
            continue
        assert translated.isascii()
        assert set(re.findall(r"\\(.)", translated)) <= set("AzbBnx")
        assert set(re.findall(r"\(\?([^:]*):", translated)) <= {"", "i", "m", "s"}
