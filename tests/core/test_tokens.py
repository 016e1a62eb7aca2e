"""Resume tokens: deterministic, bound to what they are for, and closed to everything that was not sealed here."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedsvc.core.positions import Position, PositionKind, boundary, record_position, token_digest
from feedsvc.core.tokens import (
    BINDING_BYTES,
    MAX_TOKEN_CHARS,
    SOURCE_BYTES,
    OpenedToken,
    TokenInvalidError,
    TokenSealer,
    source_id,
)

OLD, NEW, UNKNOWN = bytes(range(32)), bytes(range(32, 64)), b"k" * 32
BINDING, SOURCE = b"b" * BINDING_BYTES, b"s" * SOURCE_BYTES
SEALER = TokenSealer([OLD])
TOKEN = SEALER.seal("acme", BINDING, SOURCE, record_position(PositionKind.EVENT, 7, "82AB"))
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
ROOT = Path(__file__).parents[2]

HEX = st.binary(max_size=600)
DATA = st.one_of(
    HEX.map(lambda raw: raw.hex()),
    HEX.map(lambda raw: raw.hex().upper()),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=600),
    st.sampled_from(["82aB", "8", "82 ab", "", "zz", "é" * 400]),
)
TYPE_BITS = st.none() | st.binary(min_size=1, max_size=40)
TIMES = st.integers(0, 2**64 - 1)
RECORDS = st.builds(
    record_position,
    st.sampled_from([PositionKind.EVENT, PositionKind.DROP, PositionKind.INVALIDATE]),
    TIMES,
    DATA,
    TYPE_BITS,
)
POSITIONS = st.one_of(
    RECORDS,
    st.builds(boundary, TIMES, DATA, TYPE_BITS),
    st.builds(boundary, TIMES),
    RECORDS.map(lambda at: Position(at.kind, at.cluster_time, None, at.digest)),
)


def refused(resume_token: str, sealer: TokenSealer = SEALER, tenant: str = "acme") -> bool:
    """True if it does not open; anything but `TokenInvalidError` fails the test."""
    try:
        sealer.open(tenant, resume_token)
    except TokenInvalidError:
        return True
    return False


@given(POSITIONS, st.binary(min_size=16, max_size=16), st.binary(min_size=8, max_size=8), st.text(ALPHABET))
def test_round_trip(position: Position, binding: bytes, source: bytes, tenant: str) -> None:
    """Every position comes back as it was, or as its digest form (a bare time) where it is too long."""
    resume_token = SEALER.seal(tenant, binding, source, position)
    assert resume_token == SEALER.seal(tenant, binding, source, position)
    assert len(resume_token) <= MAX_TOKEN_CHARS
    assert set(resume_token) <= set(ALPHABET)
    opened = SEALER.open(tenant, resume_token)
    assert (opened.binding, opened.source) == (binding, source)
    assert opened.position.same_as(position)
    if opened.position.data is not None or position.data is None:
        assert opened.position == position
    else:
        assert len(position.data.encode()) + len(position.type_bits or b"") > 690
        assert opened.position.type_bits is None


@given(st.integers(600, 760), st.integers(0, 60), st.booleans())
def test_the_digest_form_begins_where_the_wire_limit_is(size: int, bits: int, is_boundary: bool) -> None:
    """Around the limit a token is never too long, and never shortened without need."""
    data, type_bits = "ab" * size, b"t" * bits or None
    position = (
        boundary(5, data, type_bits)
        if is_boundary
        else record_position(PositionKind.EVENT, 5, data, type_bits)
    )
    resume_token = SEALER.seal("acme", BINDING, SOURCE, position)
    opened = SEALER.open("acme", resume_token).position
    full_chars = -(-(16 + 35 + 2 + size + bits) * 4 // 3)
    assert (opened.data is not None) == (full_chars <= MAX_TOKEN_CHARS)
    assert len(resume_token) <= MAX_TOKEN_CHARS
    if opened.data is None:
        assert opened.digest == (b"" if is_boundary else token_digest(data))


def test_a_huge_token_has_a_digest_form() -> None:
    """An `_id` of many KiB (MongoDB has no bound on index keys any more) makes a huge upstream token."""
    position = record_position(PositionKind.EVENT, 1, "82" * 100_000)
    assert SEALER.open("acme", SEALER.seal("acme", BINDING, SOURCE, position)).position.same_as(position)
    bare = SEALER.open("acme", SEALER.seal("acme", BINDING, SOURCE, boundary(1, "82" * 100_000))).position
    assert bare == boundary(1)


def test_hex_of_one_case_costs_half() -> None:
    """MongoDB's tokens are upper case, the embedded engine's lower: both are packed, mixed ones are not."""

    def chars(data: str) -> int:
        return len(SEALER.seal("t", BINDING, SOURCE, record_position(PositionKind.EVENT, 1, data)))

    assert chars("AB" * 90) == chars("ab" * 90) < chars("aB" * 90)


def test_every_flipped_bit_is_noticed() -> None:
    """Each bit of the sealed bytes is authenticated."""
    sealed = base64.urlsafe_b64decode(TOKEN + "=" * (-len(TOKEN) % 4))
    for bit in range(len(sealed) * 8):
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        assert refused(base64.urlsafe_b64encode(changed).rstrip(b"=").decode()), bit


def test_every_changed_character_is_noticed() -> None:
    """There is one spelling: even the unused bits of the last character count."""
    for place in range(len(TOKEN)):
        for character in ALPHABET + "+/= \n.\0é":
            if character != TOKEN[place]:
                assert refused(TOKEN[:place] + character + TOKEN[place + 1 :])


def test_every_truncation_and_extension_is_noticed() -> None:
    """No prefix and no extension of a token opens; padding and white space are extensions."""
    for size in range(len(TOKEN)):
        assert refused(TOKEN[:size])
    for added in [*ALPHABET, "=", "==", "\n", " ", "\0", "A" * 100, TOKEN]:
        assert refused(TOKEN + added)
        assert refused(added + TOKEN)


@pytest.mark.parametrize(
    "junk",
    ["", "A", "AA", "A" * 21, "A" * 22, "=", "\ud800", "é", "A" * 1024, "A" * 1025, TOKEN * 100, "A" * 10**6],
)
def test_junk_is_refused(junk: str) -> None:
    """Empty, short, long, not ASCII: refused, and with the one documented error."""
    assert refused(junk)


@given(st.text(st.characters(), max_size=80) | st.text(ALPHABET, max_size=1100))
@settings(max_examples=300)
def test_what_was_not_sealed_is_refused(junk: str) -> None:
    """Whatever a client sends: `TokenInvalidError` and nothing else."""
    assert refused(junk)


@given(POSITIONS, st.data())
def test_a_damaged_token_is_refused(position: Position, data: st.DataObject) -> None:
    """Of any position: a change, a cut or an insertion anywhere."""
    resume_token = SEALER.seal("acme", BINDING, SOURCE, position)
    place = data.draw(st.integers(0, len(resume_token) - 1))
    other = data.draw(st.text(ALPHABET + "=+/ ", max_size=3).filter(lambda text: text != resume_token[place]))
    assert refused(resume_token[:place] + other + resume_token[place + 1 :])


def test_another_tenant_cannot_open_it() -> None:
    """The tenant is associated data."""
    for tenant in ("", "acm", "acmee", "Acme", "other"):
        assert refused(TOKEN, tenant=tenant)
    assert SEALER.open("acme", TOKEN).position == record_position(PositionKind.EVENT, 7, "82AB")


def test_keys_rotate() -> None:
    """The first key seals, all open; a key that was removed opens nothing any more."""
    position = record_position(PositionKind.EVENT, 7, "82AB")
    rotated = TokenSealer([NEW, OLD])
    assert rotated.open("acme", TOKEN) == OpenedToken(position, BINDING, SOURCE)
    fresh = rotated.seal("acme", BINDING, SOURCE, position)
    assert fresh != TOKEN
    assert TokenSealer([OLD, NEW]).open("acme", fresh).position == position
    assert refused(fresh)
    assert refused(TOKEN, TokenSealer([NEW]))
    assert refused(TOKEN, TokenSealer([UNKNOWN, NEW]))


@pytest.mark.parametrize("keys", [[], [b""], [b"k" * 31], [b"k" * 33], [OLD, b"k" * 16]])
def test_keys_are_checked(keys: list[bytes]) -> None:
    """At least one, each of 32 bytes; the message repeats no key."""
    with pytest.raises(ValueError, match="32 bytes") as caught:
        TokenSealer(keys)
    assert "kkk" not in str(caught.value)


def test_topic_tenant_source_and_position_make_different_tokens() -> None:
    """Nothing that a token says can be changed without another token coming out."""
    at = record_position(PositionKind.DROP, 7, "82AB")
    made = {
        SEALER.seal("acme", BINDING, SOURCE, at),
        SEALER.seal("acme2", BINDING, SOURCE, at),
        SEALER.seal("acme", b"c" * BINDING_BYTES, SOURCE, at),
        SEALER.seal("acme", BINDING, b"t" * SOURCE_BYTES, at),
        SEALER.seal("acme", BINDING, SOURCE, record_position(PositionKind.INVALIDATE, 7, "82AB")),
        SEALER.seal("acme", BINDING, SOURCE, record_position(PositionKind.DROP, 8, "82AB")),
        SEALER.seal("acme", BINDING, SOURCE, record_position(PositionKind.DROP, 7, "82ab")),
        SEALER.seal("acme", BINDING, SOURCE, record_position(PositionKind.DROP, 7, "82AB", b"\x01")),
        SEALER.seal("acme", BINDING, SOURCE, boundary(7, "82AB")),
        SEALER.seal("acme", BINDING, SOURCE, boundary(7)),
    }
    assert len(made) == 10


def test_another_process_makes_the_same_token() -> None:
    """No nonce, no issue time, no hash seed: equal on every instance and every start."""
    program = (
        "from feedsvc.core.positions import PositionKind, record_position\n"
        "from feedsvc.core.tokens import TokenSealer, source_id\n"
        "at = record_position(PositionKind.EVENT, 7, '82AB')\n"
        "print(TokenSealer([bytes(range(32))]).seal('acme', b'b' * 16, b's' * 8, at))\n"
        "print(source_id('rs0', 'e1', 'collection').hex())\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={"PYTHONHASHSEED": "12345"},
    )
    assert run.stdout.split() == [TOKEN, source_id("rs0", "e1", "collection").hex()]


def test_the_format_is_frozen() -> None:
    """A token of this release opens in the next one: this one was sealed by the first."""
    assert TOKEN == "9nCfB1XDTU3hSinZBa2-t0kzkWuQLt4TVJEwyxfmSpNZml9kJwt3XooXbxApX7kLwAhEW2yz6w"


def test_a_source_is_identity_epoch_and_level() -> None:
    """Each of the three makes another source, wherever one ends and the next begins."""
    made = {
        source_id(*parts)
        for parts in [
            ("rs0", "", "collection"),
            ("rs1", "", "collection"),
            ("rs0", "2", "collection"),
            ("rs0", "", "deployment"),
            ("rs", "0", "collection"),
            ("rs02", "", "collection"),
        ]
    }
    assert len(made) == 6
    assert {len(source) for source in made} == {SOURCE_BYTES}
