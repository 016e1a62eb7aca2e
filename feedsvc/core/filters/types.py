"""BSON types for `$type`: their codes, their aliases, and the code of a value as `bson` decodes it.

`number` stands for int, long, double and decimal. Three deprecated types are refused, for `bson` gives their values
another one's Python type and no filter could tell them apart: undefined (6) arrives as null, symbol (14) as a string,
dbPointer (12) as a DBRef.

Source: mongo/db/matcher/matcher_type_set.cpp; bsontypes.h; MongoDB's manual on `$type`.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from bson.binary import Binary
from bson.code import Code
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp

from feedsvc.core.filters.values import ARRAY, DOCUMENT, Missing, bracket

MISSING_CODE = 0
STRING_CODE = 2
OBJECT_CODE = 3
ARRAY_CODE = 4
INT_CODE = 16
LONG_CODE = 18

ALIASES: dict[str, frozenset[int]] = {
    "double": frozenset({1}),
    "string": frozenset({STRING_CODE}),
    "object": frozenset({OBJECT_CODE}),
    "array": frozenset({ARRAY_CODE}),
    "binData": frozenset({5}),
    "objectId": frozenset({7}),
    "bool": frozenset({8}),
    "date": frozenset({9}),
    "null": frozenset({10}),
    "regex": frozenset({11}),
    "javascript": frozenset({13}),
    "javascriptWithScope": frozenset({15}),
    "int": frozenset({INT_CODE}),
    "timestamp": frozenset({17}),
    "long": frozenset({LONG_CODE}),
    "decimal": frozenset({19}),
    "minKey": frozenset({-1}),
    "maxKey": frozenset({127}),
    "number": frozenset({1, INT_CODE, LONG_CODE, 19}),
}
CODES = frozenset().union(*ALIASES.values())
INDISTINCT_ALIASES = frozenset({"undefined", "dbPointer", "symbol"})
INDISTINCT_CODES = frozenset({6, 12, 14})

_INT32 = 2**31
_BY_CLASS: dict[type, int] = {
    Missing: MISSING_CODE,
    float: 1,
    str: STRING_CODE,
    dict: OBJECT_CODE,
    DBRef: OBJECT_CODE,
    list: ARRAY_CODE,
    bytes: 5,
    Binary: 5,
    UUID: 5,
    ObjectId: 7,
    bool: 8,
    DatetimeMS: 9,
    datetime: 9,
    type(None): 10,
    Regex: 11,
    Timestamp: 17,
    Int64: LONG_CODE,
    Decimal128: 19,
    MinKey: -1,
    MaxKey: 127,
}


def type_code(value: object) -> int:
    """The code of the value's BSON type, 0 for MISSING. A plain `int` is as wide as BSON would write it."""
    kind = type(value)
    if kind is int:
        return INT_CODE if -_INT32 <= value < _INT32 else LONG_CODE  # type: ignore[operator]
    found = _BY_CLASS.get(kind)
    return found if found is not None else _rare_code(value)


def _rare_code(value: object) -> int:
    if isinstance(value, Code):
        return 13 if value.scope is None else 15
    kind = bracket(value)
    if kind in (DOCUMENT, ARRAY):
        return OBJECT_CODE if kind == DOCUMENT else ARRAY_CODE
    return next((code for base, code in _BY_CLASS.items() if isinstance(value, base)), INT_CODE)
