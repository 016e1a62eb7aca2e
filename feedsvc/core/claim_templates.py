"""Claims in policy filters: `{tenant}`, `{sub}` and `{claims.NAME}`, compiled once and filled in per connection.

The one rule that matters: a claim is a value. So the order is fixed. The filter is decoded from Extended JSON
*before* any claim is known, the places of the placeholders are found in the decoded tree, and filling in
replaces those leaves only. A claim never passes through a decoder, never becomes a key, and stands only where
MongoDB reads a literal: behind a field or one of `_LITERAL_OPERATORS`, never behind `$regex`, `$type` and the
like, which would read it as a pattern or a type. A string such as `"$where"` in such a place is just a string.

A placeholder that is the whole string takes the claim's own JSON type, or the type that is written behind
a colon. Inside a longer string it is text. An array may only be filled in behind `$in` and `$nin`: elsewhere
`field: [..]` would match by array equality or by element, which is not what the policy's author saw. A claim that
is missing, null, an object or of another type than written refuses the connection's request: nothing is left out
of a policy filter, for a filter with a part left out shows more.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec
from bson import Binary, DatetimeMS, Int64, ObjectId, Regex

from feedsvc.core.errors import Refusal

_BRACES = re.compile(r"\{([A-Za-z_][^{}]*)\}")
"""What claims to be a placeholder. `{3}` and `{1,2}` are not: a regular expression may need them."""
_TYPE_SUFFIX = re.compile(r"(.+):([A-Za-z_]+)", re.DOTALL)
_LITERAL_OPERATORS = frozenset({"$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin", "$all"})
_LIST_OPERATORS = frozenset({"$in", "$nin"})
_MAX_DEPTH = 32
_INT64 = range(-(2**63), 2**63)

Scalar = str | int | float | bool
ClaimType = Literal["string", "int", "oid", "uuid", "date"]


class TemplateError(ValueError):
    """A template is malformed. `path` is where, dotted; the message is the rule."""

    def __init__(self, path: str, rule: str) -> None:
        super().__init__(f"{path}: {rule}" if path else rule)
        self.path = path
        self.rule = rule


class ClaimValues(msgspec.Struct, frozen=True):
    """Where placeholders take their values from: a verified connection."""

    tenant: str
    subject: str | None
    claims: Mapping[str, Any]

    def find(self, source: str) -> Any:
        """The raw value of `tenant`, `sub` or `claims.NAME`; None where there is none."""
        if source == "tenant":
            return self.tenant
        if source == "sub":
            return self.subject
        return find_claim(self.claims, source.removeprefix("claims."))


class Placeholder(msgspec.Struct, frozen=True):
    """`source` is `tenant`, `sub` or `claims.NAME`. Without a `type` the claim keeps its own."""

    source: str
    type: ClaimType | None = None

    def value(self, values: ClaimValues) -> Any:
        """The BSON value of a scalar claim. Raises `Refusal`."""
        return self._typed(_scalar(self.source, values.find(self.source)))

    def elements(self, values: ClaimValues) -> list[Any]:
        """The BSON values of an array claim, or the one of a scalar claim. Raises `Refusal`."""
        found = values.find(self.source)
        if not isinstance(found, list):
            return [self.value(values)]
        return [self._typed(_scalar(self.source, element)) for element in found]

    def _typed(self, value: Scalar) -> Any:
        if self.type is None:
            return value
        try:
            return _CONVERSIONS[self.type](value)
        except (ValueError, OverflowError):
            raise Refusal("forbidden", f"the claim {self.source} is not of type {self.type}") from None


class _Text(msgspec.Struct, frozen=True):
    """A string with placeholders inside."""

    parts: tuple[str | Placeholder, ...]


class Template(msgspec.Struct, frozen=True):
    """A filter with its placeholders found. `placeholders` counts them."""

    tree: Any
    placeholders: int

    def fill(self, values: ClaimValues) -> dict[str, Any]:
        """A new document with the claims in place. Raises `Refusal` (`forbidden`) where a claim does not fit."""
        filled: dict[str, Any] = _fill(self.tree, values)
        return filled

    def example(self) -> dict[str, Any]:
        """The document with a sample value in each place, for checking its form without a connection."""
        filled: dict[str, Any] = _fill(self.tree, None)
        return filled


def find_claim(claims: Mapping[str, Any], name: str) -> Any:
    """A claim by its exact name (names may be URLs), else by the dotted path; None where there is none."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for step in name.split("."):
        if not isinstance(found, Mapping) or step not in found:
            return None
        found = found[step]
    return found


def compile_template(source: Mapping[str, Any], decode: Callable[[Any], Any]) -> Template:
    """The template of one filter, given as loaded from the policy file (plain JSON values).

    `decode` turns Extended JSON into BSON values. Raises `TemplateError`, and whatever `decode` raises.
    """
    written = sum(1 for _ in _placeholders_in(source, "", 0))
    tree = _compile(decode(source), "", operator=None)
    placeholders = _count(tree)
    if placeholders != written:
        raise TemplateError("", "a placeholder stands inside a typed value; write {name:type} instead")
    return Template(tree, placeholders)


def parse_placeholder(inside: str, path: str) -> Placeholder:
    """The placeholder whose braces hold `inside`. Raises `TemplateError`."""
    source, type_name = inside, None
    suffix = _TYPE_SUFFIX.fullmatch(inside)
    if suffix is not None:
        source, type_name = suffix[1], suffix[2]
        if type_name not in _CONVERSIONS:
            raise TemplateError(path, f"{type_name!r} is not one of the types {', '.join(_CONVERSIONS)}")
    if source not in ("tenant", "sub") and not (
        source.startswith("claims.") and len(source) > len("claims.")
    ):
        raise TemplateError(path, f"{{{inside}}} is none of {{tenant}}, {{sub}} and {{claims.NAME}}")
    return Placeholder(source, type_name)  # type: ignore[arg-type]  # one of ClaimType, checked above


def _placeholders_in(value: Any, path: str, depth: int) -> Iterator[str]:
    """Every placeholder of the source as written. Refuses keys with placeholders and what JSON cannot hold."""
    if depth > _MAX_DEPTH:
        raise TemplateError(path, "nested too deeply")
    if isinstance(value, str):
        yield from _BRACES.findall(value)
    elif isinstance(value, Mapping):
        for key, child in value.items():
            if not isinstance(key, str):
                raise TemplateError(path, f"the key {key!r} is not a string; quote it")
            if _BRACES.search(key):
                raise TemplateError(_join(path, key), "a claim cannot be a field name or an operator")
            yield from _placeholders_in(child, _join(path, key), depth + 1)
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _placeholders_in(child, _join(path, str(index)), depth + 1)
    elif not isinstance(value, (int, float, type(None))):
        raise TemplateError(path, f"a {type(value).__name__} is not JSON; quote it or write Extended JSON")


def _compile(value: Any, path: str, operator: str | None) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _compile(child, _join(path, key), key if key.startswith("$") else None)
            for key, child in value.items()
        }
    if isinstance(value, list):
        # A list inside the list of `$in` is one value, compared as an array: nothing may be spliced into it.
        inner = "$eq" if operator in _LIST_OPERATORS else operator
        return [
            _compile(child, _join(path, str(index)), inner if isinstance(child, list) else operator)
            for index, child in enumerate(value)
        ]
    if isinstance(value, Regex) and _BRACES.search(str(value.pattern)):
        raise TemplateError(path, "a claim cannot be part of a regular expression")
    if type(value) is not str or not _BRACES.search(value):
        return value
    if operator is not None and operator not in _LITERAL_OPERATORS:
        raise TemplateError(path, f"a claim cannot stand under {operator}")
    whole = _BRACES.fullmatch(value)
    if whole is not None:
        placeholder = parse_placeholder(whole[1], path)
        return _Elements(placeholder) if operator in _LIST_OPERATORS else placeholder
    return _Text(tuple(_text_parts(value, path)))


class _Elements(msgspec.Struct, frozen=True):
    """A placeholder behind `$in` or `$nin`: the whole operand, or one element that may become several."""

    placeholder: Placeholder


def _text_parts(value: str, path: str) -> Iterator[str | Placeholder]:
    end = 0
    for match in _BRACES.finditer(value):
        placeholder = parse_placeholder(match[1], path)
        if placeholder.type not in (None, "string"):
            raise TemplateError(path, "a typed placeholder must be the whole string")
        yield value[end : match.start()]
        yield Placeholder(placeholder.source, "string")
        end = match.end()
    yield value[end:]


def _count(tree: Any) -> int:
    if isinstance(tree, dict):
        return sum(_count(child) for child in tree.values())
    if isinstance(tree, list):
        return sum(_count(child) for child in tree)
    if isinstance(tree, _Text):
        return sum(1 for part in tree.parts if isinstance(part, Placeholder))
    return 1 if isinstance(tree, (Placeholder, _Elements)) else 0


def _fill(tree: Any, values: ClaimValues | None) -> Any:
    """`values` None stands for samples."""
    if isinstance(tree, dict):
        return {key: _fill(child, values) for key, child in tree.items()}
    if isinstance(tree, list):
        filled: list[Any] = []
        for child in tree:
            if isinstance(child, _Elements):
                filled.extend(_fill(child, values))
            else:
                filled.append(_fill(child, values))
        return filled
    if isinstance(tree, Placeholder):
        return _SAMPLES[tree.type] if values is None else tree.value(values)
    if isinstance(tree, _Elements):
        return [_SAMPLES[tree.placeholder.type]] if values is None else tree.placeholder.elements(values)
    if isinstance(tree, _Text):
        return "".join(part if isinstance(part, str) else _fill(part, values) for part in tree.parts)
    return tree


def _scalar(source: str, value: Any) -> Scalar:
    if value is None:
        raise Refusal("forbidden", f"the claim {source}, which the policy needs, is missing")
    if isinstance(value, int) and value not in _INT64:
        raise Refusal("forbidden", f"the claim {source} is not a 64-bit integer")
    if isinstance(value, str) and not _encodable(value):
        raise Refusal("forbidden", f"the claim {source} is not valid Unicode text")
    if isinstance(value, (str, int, float)):
        return value
    raise Refusal("forbidden", f"the claim {source} is an array or object, where the policy needs one value")


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _to_string(value: Scalar) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise ValueError


def _to_int(value: Scalar) -> Int64:
    if isinstance(value, int) and not isinstance(value, bool):
        return Int64(value)
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,19}", value) and int(value) in _INT64:
        return Int64(int(value))
    raise ValueError


def _to_oid(value: Scalar) -> ObjectId:
    if isinstance(value, str) and re.fullmatch(r"[0-9a-fA-F]{24}", value):
        return ObjectId(value)
    raise ValueError


def _to_uuid(value: Scalar) -> Binary:
    if isinstance(value, str):
        return Binary.from_uuid(uuid.UUID(value))
    raise ValueError


def _to_date(value: Scalar) -> DatetimeMS:
    """A NumericDate (seconds, RFC 7519 section 2) or an ISO 8601 date and time with its offset."""
    if isinstance(value, str):
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            raise ValueError
        return DatetimeMS(moment)
    if isinstance(value, bool):
        raise ValueError
    return DatetimeMS(round(value * 1000))


_CONVERSIONS: dict[str, Callable[[Scalar], Any]] = {
    "string": _to_string,
    "int": _to_int,
    "oid": _to_oid,
    "uuid": _to_uuid,
    "date": _to_date,
}
_SAMPLES: dict[str | None, Any] = {
    None: "sample",
    "string": "sample",
    "int": Int64(1),
    "oid": ObjectId("0" * 24),
    "uuid": Binary.from_uuid(uuid.UUID(int=0)),
    "date": DatetimeMS(0),
}


def _join(path: str, step: str) -> str:
    return f"{path}.{step}" if path else step
