"""BSON values as MongoDB's `find` compares them, with simple collation.

Every value has a *bracket* (MongoDB's canonical type). Values of different brackets are never equal and, apart from
MinKey and MaxKey, never in range of each other; inside arrays and documents the bracket orders first. Rules:

* int, long, double and decimal are one bracket and compare by exact value: 2^53+1 is not 2.0^53, decimal 0.1 is not
  double 0.1. A double is rounded to 34 digits before it meets a decimal, as the server does. NaN equals NaN and sorts
  first; -0.0 equals 0. A bool is not a number.
* strings compare by code point (the order of their UTF-8 bytes), documents field by field (bracket, name, value),
  arrays element by element, binary by length, subtype, bytes, regular expressions by pattern and then options.

Sources: mongo/bson/bsonelement.cpp (compareElements), bsontypes.h (canonicalizeBSONType), base/compare_numbers.h.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from typing import Any
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

from feedsvc.core.extjson_write import REGEX_FLAGS

MIN_KEY = -1
MISSING_BRACKET = 0
NULL = 5
NUMBER = 10
STRING = 15
DOCUMENT = 20
ARRAY = 25
BINARY = 30
OBJECT_ID = 35
BOOL = 40
DATE = 45
TIMESTAMP = 47
REGEX = 50
CODE = 60
CODE_WITH_SCOPE = 65
MAX_KEY = 127


class Missing:
    """The type of `MISSING`, which stands for a field that is not there. It is never part of a document."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()

_BRACKETS: dict[type, int] = {
    MinKey: MIN_KEY,
    Missing: MISSING_BRACKET,
    type(None): NULL,
    int: NUMBER,
    Int64: NUMBER,
    float: NUMBER,
    Decimal128: NUMBER,
    str: STRING,
    dict: DOCUMENT,
    DBRef: DOCUMENT,
    list: ARRAY,
    bytes: BINARY,
    Binary: BINARY,
    ObjectId: OBJECT_ID,
    bool: BOOL,
    DatetimeMS: DATE,
    datetime: DATE,
    Timestamp: TIMESTAMP,
    Regex: REGEX,
    MaxKey: MAX_KEY,
}
_NAN = "NaN"
_DIGITS_34 = Context(prec=34)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LEGACY_BINARY_SUBTYPE = 2
_INT64 = 2**63


def bracket(value: object) -> int:
    """The bracket of a BSON value or of MISSING; TypeError for anything else."""
    found = _BRACKETS.get(type(value))
    return found if found is not None else _rare_bracket(value)


def _rare_bracket(value: object) -> int:
    if isinstance(value, Code):
        return CODE if value.scope is None else CODE_WITH_SCOPE
    if isinstance(value, UUID):
        return BINARY
    if isinstance(value, Mapping):
        return DOCUMENT
    if isinstance(value, (list, tuple)):
        return ARRAY
    for kind in (str, int, float, bytes, datetime):
        if isinstance(value, kind):
            return _BRACKETS[kind]
    raise TypeError(f"{type(value).__name__} is not a BSON type")


def as_document(value: object) -> Mapping[str, Any] | None:
    """The fields of an embedded document, also of one that `bson` decodes as a DBRef; None for anything else."""
    if isinstance(value, dict):
        return value
    if isinstance(value, DBRef):
        return value.as_doc()
    return value if isinstance(value, Mapping) else None


def exact_number(value: Any) -> Any:
    """A number of any BSON type as a Python number that compares exactly with the others; NaN is the string NaN."""
    if type(value) is Decimal128:
        decimal = value.to_decimal()
        if decimal.is_nan():
            return _NAN
        if decimal.is_infinite():
            return float(decimal)
        nearest = float(decimal)
        if math.isfinite(nearest) and _DIGITS_34.create_decimal(Decimal(nearest)) == decimal:
            return nearest
        return decimal
    return value if value == value else _NAN


def truncated(value: object) -> int | None:
    """A number of any BSON type cut to a whole one, toward zero; None for NaN, infinities, what takes more than 64
    bits, and for what is no number."""
    if isinstance(value, Decimal128):
        decimal = value.to_decimal()
        # The exponent first: to write out 1E+6000 as an integer is work.
        number = int(decimal) if decimal.is_finite() and decimal.adjusted() < 20 else None
    elif isinstance(value, float):
        number = int(value) if math.isfinite(value) else None
    else:
        number = int(value) if isinstance(value, int) and not isinstance(value, bool) else None
    return number if number is not None and -_INT64 <= number < _INT64 else None


def value_key(value: object) -> tuple[int, Hashable]:
    """A hashable key: two BSON values have the same key if and only if MongoDB calls them equal."""
    kind = bracket(value)
    if kind == NUMBER:
        return (NUMBER, exact_number(value))
    if kind == DOCUMENT:
        fields = as_document(value)
        assert fields is not None
        return (DOCUMENT, tuple([(name, value_key(item)) for name, item in fields.items()]))
    if kind == ARRAY:
        return (ARRAY, tuple([value_key(item) for item in value]))  # type: ignore[attr-defined]
    return (kind, _scalar(kind, value))


def compare(left: object, right: object) -> int:
    """Negative, zero or positive: MongoDB's order over all BSON values (brackets first)."""
    kind = bracket(left)
    other = bracket(right)
    if kind != other:
        return kind - other
    if kind == DOCUMENT:
        return _compare_documents(left, right)
    if kind == ARRAY:
        return _compare_arrays(left, right)
    a: Any
    b: Any
    if kind == NUMBER:
        a, b = exact_number(left), exact_number(right)
        if a is _NAN or b is _NAN:
            return (a is not _NAN) - (b is not _NAN)
    else:
        a, b = _scalar(kind, left), _scalar(kind, right)
    return bool(a > b) - bool(a < b)


def _compare_documents(left: object, right: object) -> int:
    fields, others = as_document(left), as_document(right)
    assert fields is not None and others is not None
    for (name, value), (other_name, other) in zip(fields.items(), others.items(), strict=False):
        order = bracket(value) - bracket(other) or (name > other_name) - (name < other_name)
        order = order or compare(value, other)
        if order:
            return order
    return len(fields) - len(others)


def _compare_arrays(left: Any, right: Any) -> int:
    for value, other in zip(left, right, strict=False):
        order = compare(value, other)
        if order:
            return order
    return len(left) - len(right)


def _scalar(kind: int, value: Any) -> Any:
    """What is compared and hashed inside one bracket that is neither number, document nor array."""
    if kind in (STRING, BOOL, OBJECT_ID):
        return value
    if kind == BINARY:
        return _binary(value)
    if kind == DATE:
        return int(value) if isinstance(value, DatetimeMS) else _epoch_ms(value)
    if kind == TIMESTAMP:
        return (value.time, value.inc)
    if kind == REGEX:
        return (value.pattern, regex_options(value))
    if kind == CODE:
        return str(value)
    if kind == CODE_WITH_SCOPE:
        return (str(value), repr(value_key(dict(value.scope))))
    return 0


def regex_options(regex: Regex[Any]) -> str:
    """The options as BSON stores them, sorted; flags of Python that have no letter there are left out, as by `bson`."""
    return "".join([letter for letter, flag in REGEX_FLAGS if regex.flags & flag])


def _binary(value: bytes | UUID) -> tuple[int, int, bytes]:
    if isinstance(value, UUID):
        return (16, 4, value.bytes)
    subtype = value.subtype if isinstance(value, Binary) else 0
    # The old subtype 2 repeats the length inside its data: four bytes that the driver strips and the server counts.
    length = len(value) + 4 if subtype == _LEGACY_BINARY_SUBTYPE else len(value)
    return (length, subtype, bytes(value))


def _epoch_ms(value: datetime) -> int:
    return ((value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)
