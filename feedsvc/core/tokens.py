"""Resume tokens: positions sealed for the wire.

Sealing is deterministic authenticated encryption (AES-SIV, RFC 5297): no nonce and no issue time, so the same position
of the same topic gives the same resume token on every instance and every replay, and nobody outside can read, make or
change one. The tenant is associated data; topic binding and source are inside, so that a token of another topic or
source is told apart from one that is not ours. Keys rotate: the first seals, all open. Subkeys are derived by purpose
with HKDF, so a resume token can never be taken for another sealed thing: `Seal` is the envelope of any purpose,
`TokenSealer` that of resume tokens, `core.tickets` has another.

Layout of the sealed payload: version, kind, flags (1 byte each), cluster time (8), source (8), binding (16), then the
upstream token: its length (2) and bytes, and its type bits. Where that would pass the wire limit (long `_id`s) the
digest stands instead, and the position is opened by time (decision 3).
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Sequence
from hashlib import blake2b

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from feedsvc.core.positions import DIGEST_BYTES, Position, PositionKind, token_digest

MAX_TOKEN_CHARS = 1024
BINDING_BYTES = 16
SOURCE_BYTES = 8

_VERSION = 1
_HEADER = struct.Struct(">BBBQ8s16s")
_SIZE_BYTES = 2
_SIV_TAG_BYTES = 16
_MAX_PAYLOAD_BYTES = MAX_TOKEN_CHARS * 3 // 4 - _SIV_TAG_BYTES
_FLAG_DATA = 1
_FLAG_LOWER_HEX = 2
_FLAG_UPPER_HEX = 4
_FLAG_DIGEST = 8


class TokenInvalidError(Exception):
    """The resume token does not open: hand-made, damaged, another tenant's, or of a key that is not configured."""


class OpenedToken(msgspec.Struct, frozen=True):
    """What a resume token says. Compare `binding` and `source` with the topic's and this service's own."""

    position: Position
    binding: bytes
    source: bytes


def source_id(identity: str, epoch: str, level: str) -> bytes:
    """8 bytes that name deployment, operator's epoch and tail scope; a change of any makes `source_changed`."""
    text = "\0".join((identity, epoch, level)).encode()
    return blake2b(text, digest_size=SOURCE_BYTES, person=b"feedsvc source").digest()


class Seal:
    """Seals bytes of one purpose into URL-safe text, and opens it, with rotating 32-byte keys.

    `keys`: the first seals, all open. ValueError if there is none or one is not 32 bytes long. `purpose` chooses the
    subkeys; what was sealed for one cannot be opened for another.
    """

    def __init__(self, keys: Sequence[bytes], purpose: bytes) -> None:
        if not keys or any(len(key) != 32 for key in keys):
            raise ValueError("token keys: at least one, each of 32 bytes")
        self._ciphers = [AESSIV(_subkey(key, purpose)) for key in keys]

    def seal(self, payload: bytes, associated: bytes) -> str:
        sealed = self._ciphers[0].encrypt(payload, [associated])
        return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode("ascii")

    def open(self, text: str, associated: bytes) -> bytes:
        """Raises ValueError for whatever `seal` did not make with one of the keys."""
        sealed = _strict_base64url(text)
        for cipher in self._ciphers:
            try:
                return cipher.decrypt(sealed, [associated])
            except (InvalidTag, ValueError):
                continue
        raise ValueError("no key opens it")


class TokenSealer:
    """Seals and opens resume tokens. `keys`: see `Seal`."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._seal = Seal(keys, b"feedsvc resume token v1")

    def seal(self, tenant: str, binding: bytes, source: bytes, position: Position) -> str:
        """The resume token of a position: URL-safe, at most 1,024 characters."""
        flags, tail = _encode_upstream(position)
        payload = _HEADER.pack(_VERSION, position.kind, flags, position.cluster_time, source, binding) + tail
        return self._seal.seal(payload, tenant.encode())

    def open(self, tenant: str, resume_token: str) -> OpenedToken:
        """Raises `TokenInvalidError` for whatever `seal` did not make with one of the keys for this tenant."""
        if not 0 < len(resume_token) <= MAX_TOKEN_CHARS:
            raise TokenInvalidError("length")
        try:
            return _decode(self._seal.open(resume_token, tenant.encode()))
        except ValueError as error:
            raise TokenInvalidError("seal") from error


def _subkey(key: bytes, purpose: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=64, salt=None, info=purpose).derive(key)


def _strict_base64url(text: str) -> bytes:
    """Unpadded base64url with one spelling per value: stray characters and non-zero trailing bits are refused."""
    if "=" in text or "+" in text or "/" in text or not text.isascii():
        raise ValueError("not base64url")
    try:
        data = base64.b64decode(text.translate({45: 43, 95: 47}) + "=" * (-len(text) % 4), validate=True)
    except binascii.Error as error:
        raise ValueError("not base64url") from error
    if base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii") != text:
        raise ValueError("not canonical base64url")
    return data


def _encode_upstream(position: Position) -> tuple[int, bytes]:
    if position.data is None:
        return _digest_form(position)
    packed, flags = _pack_data(position.data)
    type_bits = position.type_bits or b""
    if _HEADER.size + _SIZE_BYTES + len(packed) + len(type_bits) > _MAX_PAYLOAD_BYTES:
        return _digest_form(position)
    return flags, len(packed).to_bytes(_SIZE_BYTES, "big") + packed + type_bits


def _digest_form(position: Position) -> tuple[int, bytes]:
    """The position without its upstream token: a boundary becomes a bare time."""
    return (0, b"") if position.is_boundary else (_FLAG_DIGEST, position.digest)


def _pack_data(data: str) -> tuple[bytes, int]:
    """`_data` in half the bytes where it is hex of one case, as MongoDB (upper) and SecantusDB (lower) send it."""
    try:
        packed = bytes.fromhex(data)
    except ValueError:
        packed = b""
    if packed.hex() == data:
        return packed, _FLAG_DATA | _FLAG_LOWER_HEX
    if packed.hex().upper() == data:
        return packed, _FLAG_DATA | _FLAG_UPPER_HEX
    return data.encode(), _FLAG_DATA


def _decode(payload: bytes) -> OpenedToken:
    if len(payload) < _HEADER.size:
        raise ValueError("short payload")
    version, kind, flags, cluster_time, source, binding = _HEADER.unpack_from(payload)
    if version != _VERSION:
        raise ValueError("unknown version")
    tail = payload[_HEADER.size :]
    data: str | None = None
    digest = tail if flags & _FLAG_DIGEST else b""
    type_bits: bytes | None = None
    if flags & _FLAG_DATA:
        size, tail = int.from_bytes(tail[:_SIZE_BYTES], "big"), tail[_SIZE_BYTES:]
        packed, type_bits = tail[:size], tail[size:] or None
        if flags & _FLAG_LOWER_HEX:
            data = packed.hex()
        elif flags & _FLAG_UPPER_HEX:
            data = packed.hex().upper()
        else:
            data = packed.decode()
        digest = b"" if kind == PositionKind.BOUNDARY else token_digest(data)
    if kind != PositionKind.BOUNDARY and len(digest) != DIGEST_BYTES:
        raise ValueError("no digest")
    return OpenedToken(Position(PositionKind(kind), cluster_time, data, digest, type_bits), binding, source)
