"""The ports: what the runtime needs from the outside, as small protocols.

Each has an in-memory implementation in `feedsvc.testing` and a real one under `feedsvc.adapters`; both run the same
contract tests. No implementation may import another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import msgspec

from feedsvc.core.burst import Burst
from feedsvc.core.changes import Change, Document, Namespace, TailScope
from feedsvc.core.lockstep import Direct
from feedsvc.core.positions import Position


class SourceError(Exception):
    """Anything MongoDB or the driver answered that is not a batch. `code` is the server's error code, if any."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class SourceUnavailable(SourceError):
    """Try again from the same position after a backoff (network, election, killed cursor).

    `reached` is False where no server was there to be asked, so that trying again costs nobody anything.
    """

    def __init__(self, message: str, code: int | None = None, *, reached: bool = True) -> None:
        super().__init__(message, code)
        self.reached = reached


class PositionLost(SourceError):
    """The position can never be resumed again. `history` is True where the oplog no longer reaches it (286)."""

    def __init__(self, message: str, code: int | None = None, *, history: bool = False) -> None:
        super().__init__(message, code)
        self.history = history


class EventUnavailable(SourceError):
    """The next event cannot be delivered by the server (larger than 16 MiB, required image missing)."""


class SourceRefused(SourceError):
    """Wrong configuration or missing privileges: retry slowly, tell the operator."""


class Batch(msgspec.Struct):
    """What one read returned, in stream order.

    `boundary` is the post-batch resume token, given only when the read found the stream idle (after `changes`).
    `ended` is True when the server closed the stream behind an invalidate: reopen after its position.
    """

    changes: list[Change]
    boundary: Position | None = None
    ended: bool = False


class ChangeStream(Protocol):
    """One open upstream stream. Used by one task; never cancel `read`, it returns within about a second."""

    async def read(self) -> Batch:
        """The next batch, possibly empty. Raises `SourceError`; after that the stream is unusable: close it."""
        ...

    async def close(self) -> None:
        """Release the cursor. Never raises; safe to call twice."""
        ...


class CollectionInfo(msgspec.Struct, frozen=True):
    """`images`: whether the collection records pre- and post-images now."""

    images: bool


class OplogWindow(msgspec.Struct, frozen=True):
    """The oplog's first and last cluster time (`t << 32 | i`), as of the time of asking, and for how many seconds
    pre-images are kept; None: as long as the oplog's entries, or nobody may know."""

    first: int
    last: int
    images_expire_s: int | None = None

    @property
    def seconds(self) -> int:
        return max(0, (self.last >> 32) - (self.first >> 32))

    @property
    def seconds_with_images(self) -> int:
        """How far back every change can still be read with its pre-image."""
        return self.seconds if self.images_expire_s is None else min(self.seconds, self.images_expire_s)


class ChangeSource(Protocol):
    """MongoDB. All methods raise `SourceError`."""

    async def open(
        self, scope: TailScope, position: Position, *, await_s: float | None = None
    ) -> ChangeStream:
        """A stream of everything after `position` (for a bare time: at or after it).

        `await_s`: the longest that an answer without changes takes, if that is sooner than it would be anyway.

        A DROP position or a digest form is opened by time and read up to the record it names; where that record
        does not come, `read` raises `PositionLost`. Losses may be raised here or by a later `read`.
        """
        ...

    async def operation_time(self) -> int:
        """The deployment's current operation time (`t << 32 | i`)."""
        ...

    async def describe(self, database: str, collections: Collection[str]) -> Mapping[str, CollectionInfo]:
        """Those of `collections` that exist, by name. One question, whatever their number."""
        ...

    async def oplog_window(self, *, first_age_s: float = 0.0) -> OplogWindow | None:
        """None where the user may not read it. The first entry may be what an answer said up to `first_age_s` ago: it
        moves slowly, and some servers look for it for long."""
        ...

    async def identity(self) -> str:
        """A stable name of the deployment behind the URI, part of every position's source."""
        ...


class DocumentCursor(Protocol):
    """One open `find`. Used by one task; never cancel `read`."""

    async def read(self) -> Sequence[Document]:
        """The next documents, one server batch at the most; empty once there are no more. BSON values as in
        `ChangeBody`. Raises `SourceError` (`EventUnavailable` for a document that cannot be decoded); after that the
        cursor is unusable: close it."""
        ...

    async def close(self) -> None:
        """Release the cursor. Never raises; safe to call twice."""
        ...


class DocumentSource(Protocol):
    """Where snapshots are read (decision 10)."""

    async def find(self, namespace: Namespace, query: Document, after: int) -> DocumentCursor:
        """Every document that `query` matches, as of one or several majority-committed states, none older than
        cluster time `after` (`t << 32 | i`), with simple collation. A collection that does not exist is empty.
        Raises `SourceError`."""
        ...


class Claims(msgspec.Struct, frozen=True):
    """A verified JWT. `expires_at` is epoch seconds, `claims` the whole payload."""

    subject: str | None
    expires_at: float
    scopes: frozenset[str]
    claims: Mapping[str, Any]


class AuthError(Exception):
    """Credentials are refused. `code` is a registry code (`auth_invalid`, `auth_expired`, ...); the message is safe
    to show to the peer. `retryable` where the key source, not the credential, failed."""

    def __init__(self, code: str, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable


class Verifier(Protocol):
    async def verify(self, jwt: str) -> Claims:
        """The claims of a valid JWT, else raises `AuthError`. Never logs or returns the JWT."""
        ...


class Connection(Protocol):
    """The transport side of one client: a place to put ready frames. All methods are synchronous.

    `frames_sent`, `bytes_sent`: what it was handed, without headers and compression.
    """

    frames_sent: int
    bytes_sent: int

    @property
    def writable(self) -> bool:
        """False while the transport takes nothing: over its high-water mark (where there is a `direct` way, not empty),
        closing or closed."""
        ...

    @property
    def direct(self) -> Direct | None:
        """The socket itself, if what `Burst` makes for it may be written to it as it is, past the transport; to be
        counted by who writes. Only while `writable`, which then says that nothing waits in the transport and that the
        socket is open; before `on_room` is told otherwise the connection itself takes all members off it."""
        ...

    def write(self, frames: Sequence[bytes]) -> None:
        """Hand over whole text frames (UTF-8 JSON) in order. Never blocks; after a close it does nothing."""
        ...

    def write_burst(self, burst: Burst) -> None:
        """The same for frames that go to many connections: what the transport makes of them is made once."""
        ...

    def on_room(self, callback: Callable[[], None]) -> None:
        """Register the one callback that runs each time `writable` has changed, in either direction; by a close only
        where there is a `direct` way.

        It may run inside a write.
        """
        ...

    def close(self, code: int, reason: str = "") -> None:
        """Start the closing handshake; the first call wins. A peer that does not read is aborted."""
        ...


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds, for deadlines."""
        ...

    def wall(self) -> float:
        """Epoch seconds, for expiries and lag."""
        ...


class Metrics(Protocol):
    """Counters, gauges and histograms by name. Names and labels are declared once by the implementation."""

    def count(self, name: str, amount: float = 1, **labels: str) -> None: ...

    def gauge(self, name: str, value: float, **labels: str) -> None: ...

    def gauge_each(self, name: str, values: Mapping[str, float]) -> None:
        """Set a gauge with one label for each of its values; those that are left out are no more."""
        ...

    def observe(self, name: str, value: float, **labels: str) -> None: ...


class NoMetrics:
    """The null object: measures nothing."""

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        return None

    def gauge(self, name: str, value: float, **labels: str) -> None:
        return None

    def gauge_each(self, name: str, values: Mapping[str, float]) -> None:
        return None

    def observe(self, name: str, value: float, **labels: str) -> None:
        return None


class Note(Protocol):
    """Adds to the span that is open."""

    def __call__(self, **attributes: str | int | bool) -> None: ...


class Tracer(Protocol):
    """Spans of requests. What they are called is a fixed set; values are codes and ids, never content."""

    def span(self, name: str, **attributes: str | int | bool) -> AbstractContextManager[Note]:
        """The span of what happens inside of the `with`. What leaves it as an exception is noted by its kind."""
        ...


class NoTracer:
    """The null object: notes nothing."""

    def span(self, name: str, **attributes: str | int | bool) -> AbstractContextManager[Note]:
        return _NO_SPAN


def _note_nothing(**attributes: str | int | bool) -> None:
    return None


_NO_SPAN: AbstractContextManager[Note] = nullcontext(_note_nothing)
NO_TRACER: Tracer = NoTracer()
