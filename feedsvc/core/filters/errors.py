"""The refusal of a filter. A message names the place and the rule and never carries a value of the filter."""

from __future__ import annotations

from typing import Literal

Code = Literal["filter_invalid", "filter_unsupported"]

_MAX_REPORTED_PATH = 256
"""Characters. A path is made of the client's own keys, which may be as long as a frame."""


class FilterError(ValueError):
    """A filter is refused. `code` is `filter_invalid` or `filter_unsupported`; `path` is where, `rule` is why."""

    def __init__(self, code: Code, path: str, rule: str) -> None:
        path = path if len(path) <= _MAX_REPORTED_PATH else path[:_MAX_REPORTED_PATH] + "..."
        super().__init__(f"{path}: {rule}" if path else rule)
        self.code: Code = code
        self.path = path
        self.rule = rule


def invalid(path: str, rule: str) -> FilterError:
    """What MongoDB refuses as well, or accepts only because it cannot know better."""
    return FilterError("filter_invalid", path, rule)


def unsupported(path: str) -> FilterError:
    """An operator outside the language of protocol.md section 7."""
    return FilterError("filter_unsupported", path, "this operator is not supported")


def below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
