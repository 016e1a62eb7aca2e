"""Tests by their name, `file::function` below `tests/`, as tables of the documentation and of the suite name them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


@cache
def tests_in(file: str) -> dict[str, str]:
    """Test functions of a module, each with its text: decorators, docstring and body."""
    text = (ROOT / "tests" / file).read_text()
    lines, found = text.splitlines(), {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            first = min(part.lineno for part in (node, *node.decorator_list))
            found[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return found


def text_of(test: str) -> str:
    """AssertionError where there is no such test."""
    file, _, name = test.partition("::")
    assert (ROOT / "tests" / file).is_file(), test
    assert name in tests_in(file), test
    return tests_in(file)[name]
