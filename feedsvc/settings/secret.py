"""A value that is shown to nobody by accident."""

from __future__ import annotations

import hmac
from typing import Generic, NoReturn, TypeVar

SecretValue = TypeVar("SecretValue", str, bytes)


class Secret(Generic[SecretValue]):
    """Holds a secret; `reveal()` is the only way to it. Its text forms are `***`, and it does not pickle."""

    __slots__ = ("_value",)

    def __init__(self, value: SecretValue) -> None:
        self._value: SecretValue = value

    def reveal(self) -> SecretValue:
        """The secret itself: hand it on to the library that needs it, and keep it nowhere."""
        return self._value

    def __repr__(self) -> str:
        return "***"

    def __format__(self, format_spec: str) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(_bytes_of(self._value), _bytes_of(other._value))

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret does not leave the process")


def _bytes_of(value: str | bytes) -> bytes:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
