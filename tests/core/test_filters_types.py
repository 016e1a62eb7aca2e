"""BSON types: the codes are those that BSON itself writes."""

from __future__ import annotations

from typing import Any

import bson
import pytest
from bson import Binary, Code, Int64, MinKey
from bson.dbref import DBRef

from feedsvc.core.filters.types import ALIASES, CODES, INDISTINCT_ALIASES, INDISTINCT_CODES, type_code
from feedsvc.core.filters.values import MISSING
from tests.core.test_filters_values import ASCENDING

_FIRST_TYPE = 4
"""The place of the first element's type in an encoded document, behind the document's length."""


def written(value: Any) -> int:
    """The code that the driver writes for a value; that of MinKey is negative."""
    code = bson.encode({"a": value})[_FIRST_TYPE]
    return code if code < 128 else code - 256


@pytest.mark.parametrize(
    "value",
    [
        *ASCENDING,
        2**31 - 1,
        2**31,
        -(2**31),
        -(2**31) - 1,
        Int64(0),
        Binary(b"x", 4),
        DBRef("c", 1),
        Code("a", {}),
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_the_code_of_a_value_is_the_one_that_bson_writes(value: Any) -> None:
    """Of every type, and at the bounds of a 32-bit integer."""
    assert type_code(value) == written(value)
    assert type_code(bson.decode(bson.encode({"a": value}))["a"]) == written(value)


def test_a_missing_field_has_no_type() -> None:
    """Its code is one that no filter can ask for."""
    assert type_code(MISSING) not in CODES


def test_every_type_has_one_alias() -> None:
    """`number` apart; the deprecated ones that a driver does not tell apart are left out."""
    single = [codes for name, codes in ALIASES.items() if name != "number"]
    assert all(len(codes) == 1 for codes in single)
    assert frozenset().union(*single) == CODES
    assert len(single) == len(CODES) == 18
    assert not CODES & INDISTINCT_CODES and not ALIASES.keys() & INDISTINCT_ALIASES
    assert {code for codes in single for code in codes} | INDISTINCT_CODES == {-1, 127, *range(1, 20)}
    assert type_code(MinKey()) == -1


def test_what_is_not_bson_is_a_type_error() -> None:
    """A value that BSON does not know is reported, never given a code."""
    with pytest.raises(TypeError):
        type_code({1, 2})
