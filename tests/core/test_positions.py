"""Positions: kinds, keys and cluster times."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from feedsvc.core.positions import (
    DIGEST_BYTES,
    Position,
    PositionKind,
    boundary,
    cluster_time_of,
    record_position,
    timestamp_parts,
    token_digest,
)

UINT32 = st.integers(0, 2**32 - 1)


def test_the_values_of_kinds_are_part_of_sealed_tokens() -> None:
    """Renumbering a kind would change what tokens in the field mean."""
    assert {kind.name: int(kind) for kind in PositionKind} == {
        "BOUNDARY": 0,
        "EVENT": 1,
        "DROP": 2,
        "INVALIDATE": 3,
    }


@given(UINT32, UINT32, UINT32, UINT32)
def test_cluster_times_are_ordered_as_timestamps(t1: int, i1: int, t2: int, i2: int) -> None:
    """One integer keeps both parts and their order."""
    first, second = cluster_time_of(t1, i1), cluster_time_of(t2, i2)
    assert timestamp_parts(first) == (t1, i1)
    assert (first < second) == ((t1, i1) < (t2, i2))


def test_a_drop_and_its_invalidate_have_different_keys() -> None:
    """One upstream token stands for both at a wide scope; the kind tells them apart."""
    drop = record_position(PositionKind.DROP, 7, "82ab")
    invalidate = record_position(PositionKind.INVALIDATE, 7, "82ab")
    assert drop.digest == invalidate.digest
    assert drop.key != invalidate.key
    assert not drop.same_as(invalidate)


def test_a_digest_form_is_the_same_place_as_the_full_form() -> None:
    """What a long token is reduced to names the same record; type bits are not part of the name."""
    full = record_position(PositionKind.EVENT, 7, "82ab", b"\x01")
    short = Position(PositionKind.EVENT, 7, None, full.digest)
    assert full.same_as(short)
    assert short.same_as(full)
    assert full.key == short.key


def test_the_same_token_at_another_time_is_another_place() -> None:
    """The cluster time is part of the name."""
    assert not record_position(PositionKind.EVENT, 7, "82").same_as(
        record_position(PositionKind.EVENT, 8, "82")
    )


def test_a_boundary_is_named_by_its_time() -> None:
    """The token of an empty batch and the bare time are one place."""
    assert boundary(5, "b").is_boundary
    assert boundary(5, "b").same_as(boundary(5))
    assert not boundary(5).same_as(boundary(6))
    assert not record_position(PositionKind.EVENT, 5, "b").is_boundary


@given(st.text())
def test_every_token_has_a_digest(data: str) -> None:
    """Even a token that is no ASCII (which MongoDB never sends) raises nothing."""
    assert len(token_digest(data)) == DIGEST_BYTES
