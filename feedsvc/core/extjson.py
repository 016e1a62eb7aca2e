"""MongoDB Extended JSON v2: between parsed JSON and BSON values.

`decode` reads what clients send (relaxed or canonical); `to_json` and `json_default` write what they get: relaxed
form with one tightening (protocol.md section 2), a 64-bit integer outside +-(2^53-1) is `{"$numberLong": "..."}`;
`canonical` writes the canonical form, which loses no type. Two facts for editors:

* A `$` key is a wrapper only if its name is in `_WRAPPERS`; every other one (`$gt`, `$ref`, and the old `$regex` /
  `$options` pair, which is a query operator as well) is an ordinary key. So a stored document that has a key such as
  `$oid` cannot be told from a wrapper once written: the format has no escape for it.
* Dates are `DatetimeMS` everywhere (milliseconds, exact, any year). Subtype 0 binary is `bytes`, as `bson` decodes it.

Source: github.com/mongodb/specifications, extended-json.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from bson.binary import Binary
from bson.code import Code
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp

from feedsvc.core.extjson_write import (
    MAX_DEPTH,
    REGEX_FLAGS,
    SAFE_INTEGER,
    ExtendedJsonError,
    canonical,
    holds_non_finite,
    json_default,
    to_json,
)

__all__ = [
    "MAX_DEPTH",
    "SAFE_INTEGER",
    "ExtendedJsonError",
    "canonical",
    "decode",
    "holds_non_finite",
    "json_default",
    "to_json",
]

_INT32 = 2**31
_INT64 = 2**63
_UINT32 = 2**32
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ISO_DATE = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,3}))?(?:Z|([+-])(\d\d):?(\d\d))", re.ASCII
)
_INTEGER = re.compile(r"-?(?:0|[1-9]\d*)", re.ASCII)
_DOUBLE = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_SURROGATE = re.compile("[\ud800-\udfff]")


def decode(value: object) -> object:
    """A parsed JSON value as BSON values; raises `ExtendedJsonError`, never anything else.

    A bare integer becomes the smallest BSON integer that holds it, and beyond 64 bits a double, as the specification
    asks. A fraction of a second finer than a millisecond, `$undefined`, `$symbol`, `$dbPointer` and the version 1
    forms of `$binary` and `$date` are refused.
    """
    return _decode(value, "", 0)


def _decode(value: object, path: str, depth: int) -> object:
    if depth > MAX_DEPTH:
        raise ExtendedJsonError("", f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, str):
        return _text(value, path)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return _bare_integer(value, path)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ExtendedJsonError(path, "a number that is not finite is written $numberDouble")
        return value
    if isinstance(value, list):
        return [_decode(item, _below(path, str(i)), depth + 1) for i, item in enumerate(value)]
    if not isinstance(value, dict):
        raise ExtendedJsonError(path, "is not a JSON value")
    for key in value:
        if not isinstance(key, str):
            raise ExtendedJsonError(path, "a key must be a string")
        if key[:1] == "$" and key in _WRAPPERS:
            return _unwrap(key, value, path, depth)
    out: dict[str, object] = {}
    for key, item in value.items():
        if "\0" in key or _SURROGATE.search(key):
            raise ExtendedJsonError(path, "a key holds a NUL or half a surrogate pair")
        out[key] = _decode(item, _below(path, key), depth + 1)
    return out


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise ExtendedJsonError(path, "must be a string")
    if _SURROGATE.search(value):
        raise ExtendedJsonError(path, "a string holds half a surrogate pair")
    return value


def _bare_integer(value: int, path: str) -> object:
    if -_INT32 <= value < _INT32:
        return int(value)
    if -_INT64 <= value < _INT64:
        return Int64(value)
    try:
        return float(value)
    except OverflowError:
        raise ExtendedJsonError(path, "a number is too large for a double") from None


def _unwrap(key: str, wrapper: dict[Any, Any], path: str, depth: int) -> object:
    allowed = {"$code", "$scope"} if key in ("$code", "$scope") else {key}
    if not wrapper.keys() <= allowed or ("$scope" in wrapper and "$code" not in wrapper):
        raise ExtendedJsonError(path, f"{key} stands with other keys")
    inner = _below(path, key)
    if key in ("$code", "$scope"):
        text = _text(wrapper["$code"], inner)
        if "$scope" not in wrapper:
            return Code(text)
        scope = _decode(wrapper["$scope"], _below(path, "$scope"), depth + 1)
        if not isinstance(scope, dict):
            raise ExtendedJsonError(_below(path, "$scope"), "must be a document")
        return Code(text, scope)
    return _WRAPPERS[key](wrapper[key], inner)


def _read_oid(value: object, path: str) -> ObjectId:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-fA-F]{24}", value):
        raise ExtendedJsonError(path, "must be 24 hexadecimal digits")
    return ObjectId(value)


def _read_integer(value: object, path: str, bound: int) -> int:
    if not isinstance(value, str) or len(value) > 20 or not _INTEGER.fullmatch(value):
        raise ExtendedJsonError(path, "must be a string of decimal digits")
    number = int(value)
    if not -bound <= number < bound:
        raise ExtendedJsonError(path, "is out of range")
    return number


def _read_double(value: object, path: str) -> float:
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(str(value))
    if not isinstance(value, str) or len(value) > 1100 or not _DOUBLE.fullmatch(value):
        raise ExtendedJsonError(path, "must be a decimal number, NaN, Infinity or -Infinity in a string")
    number = float(value)
    if not math.isfinite(number):
        raise ExtendedJsonError(path, "is out of range")
    return number


def _read_decimal(value: object, path: str) -> Decimal128:
    if not isinstance(value, str) or len(value) > 100:
        raise ExtendedJsonError(path, "must be a short string")
    if not (_DOUBLE.fullmatch(value) or value in ("NaN", "Infinity", "-Infinity")):
        raise ExtendedJsonError(path, "must be a decimal number, NaN, Infinity or -Infinity in a string")
    try:
        return Decimal128(value)
    except ArithmeticError:
        raise ExtendedJsonError(path, "does not fit a Decimal128 exactly") from None


def _read_binary(value: object, path: str) -> bytes:
    if not isinstance(value, dict) or value.keys() != {"base64", "subType"}:
        raise ExtendedJsonError(path, "must have exactly base64 and subType")
    text, subtype = value["base64"], value["subType"]
    if not isinstance(subtype, str) or not re.fullmatch("[0-9a-fA-F]{1,2}", subtype):
        raise ExtendedJsonError(_below(path, "subType"), "must be one or two hexadecimal digits")
    if not isinstance(text, str):
        raise ExtendedJsonError(_below(path, "base64"), "must be a string")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ExtendedJsonError(_below(path, "base64"), "is not base64 with padding") from None
    number = int(subtype, 16)
    return data if number == 0 else Binary(data, number)


def _read_uuid(value: object, path: str) -> Binary:
    if not isinstance(value, str) or not _UUID.fullmatch(value):
        raise ExtendedJsonError(path, "must be a UUID with hyphens")
    return Binary(uuid.UUID(value).bytes, 4)


def _read_date(value: object, path: str) -> DatetimeMS:
    if isinstance(value, dict):
        if value.keys() != {"$numberLong"}:
            raise ExtendedJsonError(path, "must be an ISO string or a $numberLong")
        return DatetimeMS(_read_integer(value["$numberLong"], _below(path, "$numberLong"), _INT64))
    match = _ISO_DATE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ExtendedJsonError(path, "must be an ISO 8601 date and time with zone, at most milliseconds")
    seconds, fraction, sign, hours, minutes = match.groups()
    try:
        moment = datetime.fromisoformat(seconds).replace(tzinfo=UTC)
    except ValueError:
        raise ExtendedJsonError(path, "is not a date of the calendar") from None
    milliseconds = (moment - _EPOCH) // timedelta(milliseconds=1) + int((fraction or "").ljust(3, "0"))
    if sign:
        if int(hours) > 23 or int(minutes) > 59:
            raise ExtendedJsonError(path, "has a zone that does not exist")
        offset = (int(hours) * 60 + int(minutes)) * 60_000
        milliseconds += offset if sign == "-" else -offset
    return DatetimeMS(milliseconds)


def _read_timestamp(value: object, path: str) -> Timestamp:
    if not isinstance(value, dict) or value.keys() != {"t", "i"}:
        raise ExtendedJsonError(path, "must have exactly t and i")
    parts = []
    for name in ("t", "i"):
        part = value[name]
        if not isinstance(part, int) or isinstance(part, bool) or not 0 <= part < _UINT32:
            raise ExtendedJsonError(_below(path, name), "must be an unsigned 32-bit integer")
        parts.append(part)
    return Timestamp(parts[0], parts[1])


def _read_regex(value: object, path: str) -> Regex[str]:
    if not isinstance(value, dict) or value.keys() != {"pattern", "options"}:
        raise ExtendedJsonError(path, "must have exactly pattern and options")
    pattern = _text(value["pattern"], _below(path, "pattern"))
    options = value["options"]
    if "\0" in pattern:
        raise ExtendedJsonError(_below(path, "pattern"), "holds a NUL")
    if not isinstance(options, str) or len(set(options)) != len(options) or not set(options) <= set("ilmsux"):
        raise ExtendedJsonError(_below(path, "options"), "must be different letters of ilmsux")
    flags = 0
    for letter, flag in REGEX_FLAGS:
        if letter in options:
            flags |= int(flag)
    return Regex(pattern, flags)


def _read_edge(value: object, path: str, edge: Callable[[], object]) -> object:
    if isinstance(value, bool) or value != 1:
        raise ExtendedJsonError(path, "must be 1")
    return edge()


def _refuse(value: object, path: str) -> object:
    raise ExtendedJsonError(path, "is a deprecated type that is not read")


_WRAPPERS: dict[str, Callable[[object, str], object]] = {
    "$oid": _read_oid,
    "$numberInt": lambda value, path: _read_integer(value, path, _INT32),
    "$numberLong": lambda value, path: Int64(_read_integer(value, path, _INT64)),
    "$numberDouble": _read_double,
    "$numberDecimal": _read_decimal,
    "$binary": _read_binary,
    "$uuid": _read_uuid,
    "$date": _read_date,
    "$timestamp": _read_timestamp,
    "$regularExpression": _read_regex,
    "$minKey": lambda value, path: _read_edge(value, path, MinKey),
    "$maxKey": lambda value, path: _read_edge(value, path, MaxKey),
    "$code": _refuse,  # $code and $scope are read together, in _unwrap
    "$scope": _refuse,
    "$undefined": _refuse,
    "$symbol": _refuse,
    "$dbPointer": _refuse,
}
