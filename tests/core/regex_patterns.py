"""Random regular expressions and strings, dense in what PCRE2 and RE2 read differently."""

from __future__ import annotations

from random import Random

CHARACTERS = [
    *"abkKsSAZz09_ -.,:#\n\n\r\t\x0b",
    *("é", "É", "ß", "ẞ", "σ", "ς", "Σ", "\u212a", "\u017f", "Ⅷ", "ǅ", "ǆ", "İ", "ı", "😀"),
    *("\x85", "\u2028", "\u200e", "\u1680"),
]
_SETS = [r"\d", r"\D", r"\s", r"\S", r"\w", r"\W", r"\h", r"\H", r"\v", r"\V"]
_ESCAPES = [r"\n", r"\t", r"\x41", r"\x{17f}", r"\x{212a}", r"\0", r"\012", r"\o{101}", r"\-", r"\é", r"\e"]
_ATOMS = [*_SETS, *_ESCAPES, ".", ".", r"\N", r"\.", r"\_", "{", "}", "]", "{a}", "{1,a}"]
_ASSERTIONS = ["^", "^", "$", "$", r"\b", r"\B", r"\A", r"\z", r"\Z"]
_QUANTIFIERS = ["*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{0,1}", "{2,}", "{1,}?"]
_ODD_QUANTIFIERS = ["++", "**", "+ ?", " +", "(?#x)*", "{ 1}", "{1, 2}", "{3,2}", "{,2}", "{0}"]
_GROUPS = [
    "",
    "?:",
    "?:",
    "?i:",
    "?-i:",
    "?s:",
    "?m:",
    "?x:",
    "?m-s:",
    "?i-x:",
    "?<n>",
    "?P<m>",
    "?'q'",
    "?U:",
]
_SETTINGS = ["(?i)", "(?-i)", "(?s)", "(?m)", "(?x)", "(?-m)", "(?-s)", "(?#c)", "(?)", "(?U)"]
_POSIX = [
    *("alpha", "lower", "upper", "alnum", "ascii", "blank", "cntrl", "digit"),
    *("graph", "print", "punct", "space", "word", "xdigit", "nonsense"),
]
_META = list("()[]{}*+?|^$.\\-:#&!<>=,")


def pattern(random: Random) -> str:
    """Mostly well formed, sometimes any sequence of special characters."""
    if random.random() < 0.1:
        return "".join(random.choice([*_META, *CHARACTERS]) for _ in range(random.randint(1, 8)))
    return _choice(random, random.randint(0, 3))


def options(random: Random) -> str:
    return "".join(letter for letter in "imsx" if random.random() < 0.3)


def string(random: Random, characters: list[str] = CHARACTERS) -> str:
    return "".join(random.choice(characters) for _ in range(random.randint(0, 7)))


def _choice(random: Random, depth: int) -> str:
    branches = random.choice([1, 1, 1, 2, 3])
    return "|".join(
        "".join(_item(random, depth) for _ in range(random.randint(0, 4))) for _ in range(branches)
    )


def _item(random: Random, depth: int) -> str:
    kind = random.random()
    if kind < 0.12:
        return random.choice(_ASSERTIONS)
    if kind < 0.16:
        return random.choice(_SETTINGS)
    if kind < 0.18:
        return random.choice(_META)
    if kind < 0.20:
        quoted = "".join(random.choice("a.*b# ") for _ in range(random.randint(0, 3)))
        return f"\\Q{quoted}\\E"
    if kind < 0.35:
        item = random.choice(_ATOMS)
    elif kind < 0.5:
        item = _class(random)
    elif kind < 0.7 and depth > 0:
        item = f"({random.choice(_GROUPS)}{_choice(random, depth - 1)})"
    else:
        item = random.choice(CHARACTERS)
    if random.random() < 0.3:
        item += random.choice(_QUANTIFIERS if random.random() < 0.9 else _ODD_QUANTIFIERS)
    return item


def _class(random: Random) -> str:
    members = ["]"] if random.random() < 0.1 else []
    for _ in range(random.randint(1, 4)):
        kind = random.random()
        if kind < 0.4:
            members.append(random.choice(CHARACTERS))
        elif kind < 0.55:
            first, last = sorted(random.choice([*CHARACTERS, "a", "z", "A", "Z"]) for _ in range(2))
            members.append(f"{first}-{last}")
        elif kind < 0.75:
            members.append(random.choice([*_SETS, *_ESCAPES, r"\b", r"\]", r"\\"]))
        elif kind < 0.9:
            members.append(f"[:{random.choice(['', '^'])}{random.choice(_POSIX)}:]")
        else:
            members.append(random.choice(["[", "&&", "--", "[:", "[.", "^", "-"]))
    return f"[{random.choice(['', '', '^'])}{''.join(members)}]"
