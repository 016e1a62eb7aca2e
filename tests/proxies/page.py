"""What docs/proxies.md tells an operator to write: the tests run these very blocks."""

from __future__ import annotations

import re
from pathlib import Path

_PAGE = Path(__file__).parents[2] / "docs" / "proxies.md"


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, in the order of the page."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", _PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"docs/proxies.md has no block of {language}"
    return found


def replaced(text: str, pattern: str, replacement: str) -> str:
    """`text` with what the pattern finds replaced. AssertionError where it finds nothing: the page has changed."""
    changed, count = re.subn(pattern, lambda _: replacement, text, flags=re.MULTILINE)
    assert count, f"{pattern!r} is not in\n{text}"
    return changed
