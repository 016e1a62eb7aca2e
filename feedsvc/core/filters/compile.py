"""From a checked filter to one function: document in, bool out.

Three ideas, kept apart as in MongoDB itself. A *test* looks at one element (`elements`), a *walk* follows a path and
asks the test for every element that the path can mean (`walk`), and the tree combines walks: `$ne`, `$nin` and `$not`
are the negation of a whole walk.

`$elemMatch` turns this inside out: its clause becomes a predicate of each element that is a document or an
array, or a test of each element as it is, and that a test of the array. So the same tree nests to any depth, and
inside the value form an array is one value, never spread.

Source: mongo/db/matcher/expression_tree.cpp; expression_array.cpp (ElemMatchObjectMatchExpression,
ElemMatchValueMatchExpression).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from feedsvc.core.filters.elements import element_test
from feedsvc.core.filters.nodes import (
    And,
    Condition,
    ElemMatch,
    ElemMatchValue,
    Filter,
    Node,
    Not,
    Or,
    Pattern,
    Size,
)
from feedsvc.core.filters.regex import MAX_STEPS, Searches
from feedsvc.core.filters.values import as_document
from feedsvc.core.filters.walk import Predicate, Test, walk

__all__ = ["Predicate", "compile_filter"]

_Function = Callable[[Any], bool]
"""A predicate or a test: what they are combined of, they are."""


def compile_filter(filter: Filter) -> Predicate:
    """A function that says whether a document (as `bson` decodes it) matches, as MongoDB's `find` would.

    It keeps no state between calls. For a document made of BSON values it raises nothing but `TooMuchText`.
    """
    compiler = _Compiler()
    predicate = _combined(filter.root, compiler.walk)
    if not compiler.has_patterns:
        return predicate
    searches = compiler.searches

    def counted(document: Mapping[str, Any]) -> bool:
        searches.left = MAX_STEPS
        return predicate(document)

    return counted


def _combined(node: Node, condition: Callable[[Condition], _Function]) -> _Function:
    if isinstance(node, And):
        return _all([_combined(clause, condition) for clause in node.clauses])
    if isinstance(node, Or):
        return _any([_combined(clause, condition) for clause in node.clauses])
    if isinstance(node, Not):
        positive = _combined(node.clause, condition)
        return lambda subject: not positive(subject)
    return condition(node)


class _Compiler:
    """One filter. All of its regular expressions are counted together."""

    def __init__(self) -> None:
        self.searches = Searches()
        self.has_patterns = False

    def walk(self, node: Condition) -> Predicate:
        spread = not isinstance(node, (Size, ElemMatch, ElemMatchValue))
        return walk(node.path, self._test(node), spread=spread)

    def _test(self, node: Condition) -> Test:
        """The test of a leaf or of an `$elemMatch`, without its path."""
        if isinstance(node, ElemMatch):
            return _some_document(_combined(node.clause, self.walk))
        if isinstance(node, ElemMatchValue):
            return _some_element(_combined(node.clause, self._test))
        self.has_patterns = self.has_patterns or isinstance(node, Pattern)
        return element_test(node, self.searches)


def _some_document(predicate: Predicate) -> Test:
    def test(value: Any) -> bool:
        if type(value) is not list:
            return False
        for element in value:
            document = _indexed(element) if type(element) is list else as_document(element)
            if document is not None and predicate(document):
                return True
        return False

    return test


def _indexed(elements: list[Any]) -> Mapping[str, Any]:
    """An array as the document that BSON stores it as."""
    return {str(i): element for i, element in enumerate(elements)}


def _some_element(test: Test) -> Test:
    return lambda value: type(value) is list and any(map(test, value))


def _all(functions: list[_Function]) -> _Function:
    if not functions:
        return lambda subject: True
    if len(functions) == 2:
        first, second = functions
        return lambda subject: first(subject) and second(subject)

    def match(subject: Any) -> bool:
        for function in functions:  # noqa: SIM110 (a generator costs twice as much here)
            if not function(subject):
                return False
        return True

    return match


def _any(functions: list[_Function]) -> _Function:
    def match(subject: Any) -> bool:
        for function in functions:  # noqa: SIM110 (a generator costs twice as much here)
            if function(subject):
                return True
        return False

    return match
