"""Following a dotted path through a document: which elements it can mean, asked one by one until a test says yes.

* At the end of a path an array stands for each of its elements and then for itself, or, where a test asks for arrays
  (`spread=False`: `$size`, `$elemMatch`), for itself only;
* before the end an array stands for its documents, and a numeric part for the element at that index, too. A document
  at that index is asked first for the field of that name, then as the element. Arrays in arrays are entered by index
  only, and an element reached by index is not spread again;
* a scalar before the end is a missing field, but only outside arrays: in them it stands for nothing. This is why
  `{"a.b": null}` matches `{a: 4}` and not `{a: [4]}`.

Cost: each element that the path can mean once, doubled with each numeric part (`bounds` says how many there may be).

Source: mongo/db/matcher/path.cpp (BSONElementIterator, LeafArrayBehavior).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from feedsvc.core.filters.values import MISSING, as_document
from feedsvc.core.images import array_index

Predicate = Callable[[Mapping[str, Any]], bool]
Test = Callable[[Any], bool]
"""Of one element, or of MISSING."""


def walk(path: str, test: Test, *, spread: bool = True) -> Predicate:
    """Whether any element that the path means in a document passes the test."""
    parts = path.split(".")
    match_document, match_array = _last_part(parts[-1], test, spread)
    for part in reversed(parts[:-1]):
        match_document, match_array = _inner_part(part, test, match_document, match_array)
    return match_document


def _last_part(part: str, test: Test, spread: bool) -> tuple[Predicate, Test]:
    """How the last part is looked up in a document, and in an array that an earlier part has led to."""
    index = _index(part)

    def match_document(document: Mapping[str, Any]) -> bool:
        value = document.get(part, MISSING)
        if type(value) is list:
            for element in value:
                if test(element):
                    return True
        return test(value)

    def match_whole(document: Mapping[str, Any]) -> bool:
        return test(document.get(part, MISSING))

    match_part = match_document if spread else match_whole

    def match_array(elements: list[Any]) -> bool:
        for i, element in enumerate(elements):
            document = as_document(element)
            if document is not None and match_part(document):
                return True
            if i == index and test(element):
                return True
        return False

    return match_part, match_array


def _inner_part(part: str, test: Test, next_document: Predicate, next_array: Test) -> tuple[Predicate, Test]:
    """The same for a part that is not the last one."""
    index = _index(part)

    def match_document(document: Mapping[str, Any]) -> bool:
        value = document.get(part, MISSING)
        if type(value) is dict:
            return next_document(value)
        if type(value) is list:
            return next_array(value)
        embedded = as_document(value)
        return test(MISSING) if embedded is None else next_document(embedded)

    def match_array(elements: list[Any]) -> bool:
        for i, element in enumerate(elements):
            document = as_document(element)
            if document is not None:
                if match_document(document) or (i == index and next_document(document)):
                    return True
            elif i == index and type(element) is list and next_array(element):
                return True
        return False

    return match_document, match_array


def _index(part: str) -> int:
    """The array index that a part can mean, -1 for none: "00" is a name only."""
    index = array_index(part)
    return -1 if index is None else index
