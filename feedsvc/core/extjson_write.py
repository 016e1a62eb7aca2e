"""Writing Extended JSON: the half of `extjson` that turns BSON values into JSON trees. Import it from there."""

from __future__ import annotations

import base64
import math
import re
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

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

MAX_DEPTH = 200
"""Nesting that is read or written. MongoDB stores at most 180 levels; the interpreter's stack allows far more."""
SAFE_INTEGER = 2**53 - 1
"""The largest integer that every JSON parser keeps exactly."""
REGEX_FLAGS = (
    ("i", re.IGNORECASE),
    ("l", re.LOCALE),
    ("m", re.MULTILINE),
    ("s", re.DOTALL),
    ("u", re.UNICODE),
    ("x", re.VERBOSE),
)
"""The letters of a BSON regular expression's options, in the order in which BSON stores them."""

_INT32 = 2**31
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ISO_YEARS_END_MS = 253402300800000  # 10000-01-01

_MAX_REPORTED_PATH = 256
"""Characters. A path is made of the client's own keys, which may be as long as a frame."""


class ExtendedJsonError(ValueError):
    """A value is not Extended JSON. `path` is dotted and empty at the top; neither part carries a value."""

    def __init__(self, path: str, rule: str) -> None:
        path = path if len(path) <= _MAX_REPORTED_PATH else path[:_MAX_REPORTED_PATH] + "..."
        super().__init__(f"{path}: {rule}" if path else rule)
        self.path = path
        self.rule = rule


def to_json(value: object) -> object:
    """A BSON value tree as a JSON tree, relaxed. Raises `ExtendedJsonError` beyond `MAX_DEPTH`, TypeError for a
    value that is not BSON."""
    return _write(value, 0, False)


def canonical(value: object) -> object:
    """A BSON value tree as a canonical Extended JSON tree: `1`, `Int64(1)` and `1.0` stay three things."""
    return _write(value, 0, True)


def _write(value: object, depth: int, exact: bool) -> object:
    if depth > MAX_DEPTH:
        raise ExtendedJsonError("", f"nested deeper than {MAX_DEPTH} levels")
    if value is None or type(value) is str or isinstance(value, bool):
        return value
    if isinstance(value, Mapping):
        return {key: _write(item, depth + 1, exact) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_write(item, depth + 1, exact) for item in value]
    if isinstance(value, int):
        return _write_integer(value, exact)
    if isinstance(value, float):
        if exact or not math.isfinite(value):
            return {"$numberDouble": _double_text(value)}
        return value
    if isinstance(value, DBRef):
        return _write(value.as_doc(), depth, exact)
    if exact and isinstance(value, (DatetimeMS, datetime)):
        return {"$date": {"$numberLong": str(_epoch_ms(value))}}
    if isinstance(value, Code) and value.scope is not None:
        return {"$code": str(value), "$scope": _write(dict(value.scope), depth + 1, exact)}
    return json_default(value)


def _write_integer(value: int, exact: bool) -> object:
    if exact:
        wide = isinstance(value, Int64) or not -_INT32 <= value < _INT32
        return {"$numberLong" if wide else "$numberInt": str(int(value))}
    if -SAFE_INTEGER <= value <= SAFE_INTEGER:
        return int(value)
    return {"$numberLong": str(int(value))}


def _double_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value)


def json_default(value: Any) -> object:
    """The relaxed form of one BSON value that a JSON encoder does not know: the `default` hook of `orjson.dumps`.

    Use it with OPT_PASSTHROUGH_DATETIME and OPT_PASSTHROUGH_SUBCLASS. The caller must keep doubles that are not finite
    away from such an encoder (it writes them as null without asking): see `holds_non_finite`.
    """
    write = _DEFAULTS.get(type(value))
    if write is not None:
        return write(value)
    if isinstance(value, int):
        return _write_integer(value, False)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (Regex, datetime, uuid.UUID, DBRef, tuple)):
        return _write_rare(value)
    raise TypeError(f"{type(value).__name__} is not a BSON type")


def _write_rare(value: object) -> object:
    if isinstance(value, Regex):
        options = "".join(letter for letter, flag in REGEX_FLAGS if value.flags & flag)
        return {"$regularExpression": {"pattern": value.pattern, "options": options}}
    if isinstance(value, datetime):
        return _write_date(_epoch_ms(value))
    if isinstance(value, uuid.UUID):
        return _write_binary(value.bytes, 4)
    if isinstance(value, DBRef):
        return dict(value.as_doc())
    return list(value)  # type: ignore[call-overload]


def _epoch_ms(value: DatetimeMS | datetime) -> int:
    if isinstance(value, DatetimeMS):
        return int(value)
    return ((value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)


def _write_date(milliseconds: int) -> object:
    if not 0 <= milliseconds < _ISO_YEARS_END_MS:
        return {"$date": {"$numberLong": str(milliseconds)}}
    moment = (_EPOCH + timedelta(milliseconds=milliseconds)).replace(tzinfo=None)
    return {"$date": moment.isoformat(timespec="milliseconds" if milliseconds % 1000 else "seconds") + "Z"}


def _write_binary(data: bytes, subtype: int) -> object:
    return {"$binary": {"base64": base64.b64encode(data).decode("ascii"), "subType": f"{subtype:02x}"}}


def _write_code(value: Code) -> object:
    if value.scope is None:
        return {"$code": str(value)}
    return {"$code": str(value), "$scope": dict(value.scope)}


_DEFAULTS: dict[type, Callable[[Any], object]] = {
    ObjectId: lambda value: {"$oid": str(value)},
    DatetimeMS: lambda value: _write_date(int(value)),
    Int64: lambda value: _write_integer(value, False),
    Decimal128: lambda value: {"$numberDecimal": str(value)},
    bytes: lambda value: _write_binary(value, 0),
    Binary: lambda value: _write_binary(value, value.subtype),
    Timestamp: lambda value: {"$timestamp": {"t": value.time, "i": value.inc}},
    Code: _write_code,
    MinKey: lambda value: {"$minKey": 1},
    MaxKey: lambda value: {"$maxKey": 1},
}


def holds_non_finite(value: object) -> bool:
    """Whether a NaN or an infinity stands anywhere in the tree: such a tree goes through `to_json` first.

    Only worth asking where the encoded text holds `null`, which is what encoders make of them.
    """
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return any(map(holds_non_finite, value.values()))
    if isinstance(value, list):
        return any(map(holds_non_finite, value))
    return False
