"""BSON values to Extended JSON bytes: orjson where it is exact, the pure writer where it is not.

orjson writes NaN and the infinities as `null` without asking, so an output that holds `null` is looked at again:
only if the tree really has such a double is it written by `core.extjson.to_json` first, which costs several times
as much.
"""

from __future__ import annotations

import orjson

from feedsvc.core.changes import UndecodableError
from feedsvc.core.extjson import ExtendedJsonError, holds_non_finite, json_default, to_json

_OPTIONS = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS


def encode_json(tree: object) -> bytes:
    """Relaxed Extended JSON (protocol.md section 2) of a tree of BSON values, UTF-8.

    Raises `UndecodableError` for what JSON cannot carry: lone surrogates, nesting beyond 200 levels.
    """
    try:
        text = orjson.dumps(tree, json_default, _OPTIONS)
        if b"null" in text and holds_non_finite(tree):
            return orjson.dumps(to_json(tree), option=_OPTIONS)
        return text
    except (orjson.JSONEncodeError, ExtendedJsonError) as error:
        raise UndecodableError(f"a document cannot be written as JSON ({type(error).__name__})") from None
