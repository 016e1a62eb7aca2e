"""The regular expressions of one filter, within the bounds that they have together.

A `Regex` is a pattern where MongoDB takes it for one (alone, in `$in`, `$nin`, `$all`, `$not`, `$regex`) and a plain
value in `$eq` and inside documents and arrays: there it equals only a stored regular expression. Under `$ne`
and the ranges it is refused. Options that change nothing, such as `u`, still tell stored ones apart and are kept.

Each is compiled where it is read, so that it is refused with its path. What that may cost is bounded while reading: by
their number before the next is compiled, by the size of their programs after it.

Source: mongo/db/matcher/expression_parser.cpp (parseRegexDocument, parseInExpression).
"""

from __future__ import annotations

from typing import Any

from bson.regex import Regex

from feedsvc.core.filters.bounds import MAX_INSTRUCTIONS, MAX_PATTERNS
from feedsvc.core.filters.errors import FilterError, below, invalid
from feedsvc.core.filters.nodes import AnyOf, Equal, Node, Pattern, either
from feedsvc.core.filters.operands import check_literal, members
from feedsvc.core.filters.regex import RegexError, compile_sized
from feedsvc.core.filters.values import regex_options, value_key


class Patterns:
    """Makes the nodes of one filter that hold regular expressions; each method raises `FilterError`."""

    def __init__(self) -> None:
        self._count = 0
        self._instructions = 0

    def literal(self, field: str, operand: Regex[Any], path: str) -> Node:
        """A `Regex` where MongoDB searches with it."""
        check_literal(operand, path)
        return self._pattern(field, operand.pattern, regex_options(operand), path)

    def regex(self, field: str, operators: dict[Any, Any], path: str) -> Node:
        """`$regex` with its `$options`, wherever they stand in the document of operators at `path`."""
        here = below(path, "$regex")
        if "$regex" not in operators:
            raise invalid(below(path, "$options"), "stands only beside $regex")
        operand, options = operators["$regex"], operators.get("$options", "")
        if not isinstance(options, str):
            raise invalid(below(path, "$options"), "must be a string")
        if isinstance(operand, Regex):
            if "$options" not in operators:
                return self.literal(field, operand, here)
            check_literal(operand, here)
            if regex_options(operand):
                raise invalid(below(path, "$options"), "the regular expression has options of its own")
            operand = operand.pattern
        if not isinstance(operand, str):
            raise invalid(here, "must be a string or a regular expression")
        return self._pattern(field, operand, options, here)

    def any_of(self, field: str, operand: object, path: str) -> Node:
        """`$in`: `Equal` or `AnyOf` for its values, `Pattern` for its expressions, `Or` where it has both."""
        literals: dict[object, Any] = {}
        clauses: list[Node] = []
        for i, item in enumerate(members(operand, path)):
            if isinstance(item, Regex):
                clauses.append(self.literal(field, item, f"{path}.{i}"))
            else:
                check_literal(item, f"{path}.{i}")
                literals.setdefault(value_key(item), item)
        if len(literals) == 1:
            clauses.append(Equal(field, *literals.values()))
        elif literals or not clauses:
            clauses.append(AnyOf(field, tuple(literals.values())))
        return either(clauses)

    def _pattern(self, field: str, text: str, options: str, path: str) -> Node:
        self._count += 1
        if self._count > MAX_PATTERNS:
            raise invalid(path, f"a filter must not hold more than {MAX_PATTERNS} regular expressions")
        try:
            self._instructions += compile_sized(text, options)[1]
        except RegexError as error:
            raise FilterError(error.code, path, error.rule) from None
        if self._instructions > MAX_INSTRUCTIONS:
            raise invalid(path, "the regular expressions of the filter are too large together")
        return Pattern(field, text, "".join(sorted(set(options))))
