"""Events larger than 16 MiB: MongoDB cuts them between top-level fields, and here they become one again.

`$changeStreamSplitLargeEvent` (MongoDB 7.0 and 6.0.9) must be the last stage. Each fragment is an event with a token
of its own and `splitEvent: {fragment, of}`; the first holds the token and some of the other fields, the next ones the
rest. The whole has the token of the last fragment: a stream after it goes on behind the event, while a token between
fragments would begin in the middle of it, so none of those ever leaves this module. Every stream has the stage,
because MongoDB refuses the token of a fragment in a pipeline without it (280).

One field of more than 16 MiB cannot be split, and a server without the stage fails with 10334: both are
`EventUnavailable`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from feedsvc.adapters.mongo.envelope import MALFORMED, element_places, read_fragment
from feedsvc.ports import EventUnavailable

STAGE: Mapping[str, Any] = {"$changeStreamSplitLargeEvent": {}}

STAGE_REFUSED_CODES = frozenset(
    {
        40324,  # unrecognised stage name
        115,  # CommandNotSupported
        168,  # InvalidPipelineOperator
        238,  # NotImplemented
        303,  # FeatureNotSupported
        304,  # the same, of Amazon DocumentDB
    }
)
"""What a server that does not know the stage may answer to it."""

MAX_BYTES = 64 * 1024 * 1024
"""Of one event while it is put together: a document, its pre-image and its changes have at most 16 MiB each."""

_FRAMING_BYTES = 5
_NOT_MERGED = frozenset({b"_id", b"splitEvent"})


class Reassembly:
    """Pass every event of one stream through `whole()`. It must be passed fragments of one event in order, which is
    how a stream gives them."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._elements: dict[bytes, bytes] = {}
        self._bytes = 0
        self._fragments = 0

    @property
    def pending(self) -> bool:
        """In the middle of an event: whatever position the stream names now must not be used."""
        return self._fragments > 0

    def whole(self, raw: bytes) -> bytes | None:
        """The event, or None where fragments are missing. Raises `EventUnavailable` where they do not fit together
        or exceed the bound."""
        try:
            fragment = read_fragment(raw)
            if fragment is None and not self.pending:
                return raw
            if fragment is None or fragment[0] != self._fragments + 1:
                raise EventUnavailable("the fragments of a large event do not follow one another")
            number, count = fragment
            self._take(raw)
        except MALFORMED:
            raise EventUnavailable("a fragment of a large event cannot be read") from None
        if number < count:
            return None
        whole = self._joined(_elements(raw)[b"_id"])
        self._elements, self._bytes, self._fragments = {}, 0, 0
        return whole

    def _take(self, raw: bytes) -> None:
        self._fragments += 1
        for name, element in _elements(raw).items():
            if name not in _NOT_MERGED:
                self._bytes += len(element) - len(self._elements.get(name, b""))
                self._elements[name] = element
        if self._bytes > self._max_bytes:
            raise EventUnavailable("an event in fragments is larger than the service puts together")

    def _joined(self, token: bytes) -> bytes:
        size = _FRAMING_BYTES + len(token) + self._bytes
        return b"".join((struct.pack("<i", size), token, *self._elements.values(), b"\0"))


def _elements(raw: bytes) -> dict[bytes, bytes]:
    """The top-level elements of a document, by name: type, name and value as they stand."""
    begins = [(name, start - len(name) - 2) for name, (_, start) in element_places(raw).items()]
    ends = [begin for _, begin in begins[1:]] + [len(raw) - 1]
    return {name: raw[begin:end] for (name, begin), end in zip(begins, ends, strict=True)}
