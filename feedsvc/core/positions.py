"""Positions: where a reader stands in MongoDB's change stream.

A position is exclusive: resuming from it delivers everything after it. There are two families:

* a *boundary* is the token of an empty batch, or a bare time. It takes no ordinal and sorts before all
  records of its cluster time, so it is inclusive of that time (as `startAtOperationTime` is);
* every other kind stands for one record.

The upstream token is opaque (`_data`, and `_typeBits` where MongoDB sends it). Positions are told apart by
`(kind, digest)`, never by the token alone: at scope `database` and `deployment` one upstream token stands for a
`drop` and for the `invalidate` that this service synthesises behind it.
"""

from __future__ import annotations

import enum
from hashlib import blake2b

import msgspec

DIGEST_BYTES = 16


class PositionKind(enum.IntEnum):
    """What a position stands for. The values are part of sealed resume tokens: never renumber them."""

    BOUNDARY = 0
    EVENT = 1
    DROP = 2
    """A drop, rename or dropDatabase whose synthesised `invalidate` is still owed."""
    INVALIDATE = 3


PositionKey = tuple[PositionKind, bytes]


class Position(msgspec.Struct, frozen=True, gc=False):
    """One place in the stream.

    `cluster_time` is MongoDB's Timestamp as one integer, `t << 32 | i`. `data` is the upstream `_data`, or None
    for a bare time and for the digest form of a record (whose `_data` was too long to carry on the wire).
    `digest` is empty only for a boundary.
    """

    kind: PositionKind
    cluster_time: int
    data: str | None
    digest: bytes
    type_bits: bytes | None = None

    @property
    def is_boundary(self) -> bool:
        return self.kind is PositionKind.BOUNDARY

    @property
    def key(self) -> PositionKey:
        """What the ring is keyed by. Type bits are not part of it: MongoDB compares tokens without them."""
        return (self.kind, self.digest)

    def same_as(self, other: Position) -> bool:
        """Whether both name the same place; a digest form equals the full form of the same record."""
        return (
            self.kind is other.kind
            and self.cluster_time == other.cluster_time
            and self.digest == other.digest
        )


def record_position(
    kind: PositionKind, cluster_time: int, data: str, type_bits: bytes | None = None
) -> Position:
    """The position of one upstream record."""
    return Position(kind, cluster_time, data, token_digest(data), type_bits)


def boundary(cluster_time: int, data: str | None = None, type_bits: bytes | None = None) -> Position:
    """The position before every record of `cluster_time`; without `data` it is a bare time."""
    return Position(PositionKind.BOUNDARY, cluster_time, data, b"", type_bits)


def token_digest(data: str) -> bytes:
    """16 bytes that stand for an upstream `_data` in rings and in the digest form of resume tokens."""
    return blake2b(data.encode("ascii", "replace"), digest_size=DIGEST_BYTES).digest()


def cluster_time_of(seconds: int, increment: int) -> int:
    """MongoDB's Timestamp(t, i) as one ordered integer."""
    return (seconds << 32) | increment


def timestamp_parts(cluster_time: int) -> tuple[int, int]:
    """The (t, i) of a cluster time."""
    return cluster_time >> 32, cluster_time & 0xFFFFFFFF
