"""The resume token of a whole stream of server-sent events: one `id:` for all its topics (protocol.md section 10).

Theory of operation: a stream token is a sealed list of resume tokens, one per topic, each beside a digest of the topic
as the client asked for it. So resuming a stream is resuming each of its topics with a token of its own, with all that
follows from it (`topic_changed`, `source_changed`, rotation of keys), and nothing about positions is decided twice.

The digest tells a topic that is new from one that changed: where the same question now leads to another effective topic
the token found by digest is of another binding, and the answer is `resync topic_changed`. A topic that is only spelled
in another way is found by its binding. What is found by neither is not known to the token and starts now.

`StreamPositions` is the list while a stream is written. A topic keeps the entry that its client came with until the
stream has told a newer one: a client that is cut off while its snapshot is sent, or before `resync` was, has nothing
else to come back with.

Layout of the sealed payload: version, flags (1 byte each); per topic the digest (8), a length (2), and the bytes of its
resume token. Where that passes the wire limit the longest entries take the digest form of their positions.

Complexity: a move costs the decoding of one resume token, a stream token the sealing of all entries, at most 3 KiB.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from hashlib import blake2b

import msgspec

from feedsvc.core.messages import TopicRequest
from feedsvc.core.tokens import Seal, TokenInvalidError, TokenSealer

MAX_STREAM_TOKEN_CHARS = 4096
REQUEST_KEY_BYTES = 8

_PURPOSE = b"feedsvc stream token v1"
_VERSION = 1
_HEAD = struct.Struct(">BB")
_ENTRY = struct.Struct(f">{REQUEST_KEY_BYTES}sH")
_FLAG_ENDED = 1
_SIV_TAG_BYTES = 16
_MAX_ENTRIES_BYTES = MAX_STREAM_TOKEN_CHARS * 3 // 4 - _SIV_TAG_BYTES - _HEAD.size


class StreamToken(msgspec.Struct, frozen=True):
    """What a stream token says: resume tokens by request key. `ended`: the stream was closed for good."""

    resume_tokens: Mapping[bytes, str]
    ended: bool


def request_key(topic: TopicRequest) -> bytes:
    """8 bytes that stand for a topic as it was asked for, whatever the policy makes of it.

    Raises ValueError for what is nested too deep to be a topic.
    """
    try:
        text = json.dumps(msgspec.to_builtins(topic), sort_keys=True, separators=(",", ":"))
    except RecursionError:
        raise ValueError("nested too deep") from None
    return blake2b(text.encode(), digest_size=REQUEST_KEY_BYTES, person=b"feedsvc request").digest()


class StreamSealer:
    """Seals and opens stream tokens. `keys`: see `core.tokens.Seal`."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._seal = Seal(keys, _PURPOSE)
        self._topics = TokenSealer(keys)

    def open(self, tenant: str, stream_token: str) -> StreamToken:
        """Raises `TokenInvalidError` for whatever was not sealed here for this tenant."""
        if not 0 < len(stream_token) <= MAX_STREAM_TOKEN_CHARS:
            raise TokenInvalidError("length")
        try:
            return _decode(self._seal.open(stream_token, tenant.encode()))
        except (ValueError, struct.error) as error:
            raise TokenInvalidError("seal") from error

    def seal(self, tenant: str, entries: Sequence[bytes], *, ended: bool) -> str:
        payload = _HEAD.pack(_VERSION, _FLAG_ENDED if ended else 0) + b"".join(entries)
        return self._seal.seal(payload, tenant.encode())

    def binding(self, tenant: str, resume_token: str) -> bytes | None:
        """Of which topic a resume token is; None where it does not open."""
        try:
            return self._topics.open(tenant, resume_token).binding
        except TokenInvalidError:
            return None

    def shortened(self, tenant: str, resume_token: str) -> str:
        """The same position in digest form."""
        opened = self._topics.open(tenant, resume_token)
        position = msgspec.structs.replace(opened.position, data=None, type_bits=None)
        return self._topics.seal(tenant, opened.binding, opened.source, position)


class StreamPositions:
    """The positions of one stream, by index of its topics; `keys` are those of their requests."""

    def __init__(self, sealer: StreamSealer, tenant: str, keys: Sequence[bytes]) -> None:
        self.keys = keys
        self._sealer = sealer
        self._tenant = tenant
        self._start = [b""] * len(keys)
        self._entries = [b""] * len(keys)

    def begins(self, index: int, resume_token: str) -> None:
        """A topic starts here: what its client came with, or the first thing that it will be told."""
        self._start[index] = self._entries[index] = _packed(self.keys[index], resume_token)

    def moved(self, index: int, resume_token: str) -> None:
        """The client is told this token of the topic."""
        self._entries[index] = _packed(self.keys[index], resume_token)

    def start_token(self) -> str | None:
        """The stream token before anything is told; None where no topic has a position yet."""
        return self._sealed(self._start, ended=False) if any(self._start) else None

    def token(self, *, ended: bool = False) -> str:
        """The stream token: URL-safe, at most 4,096 characters."""
        return self._sealed(self._entries, ended=ended)

    def _sealed(self, entries: list[bytes], *, ended: bool) -> str:
        if sum(map(len, entries)) > _MAX_ENTRIES_BYTES:
            self._shorten(entries)
        return self._sealer.seal(self._tenant, entries, ended=ended)

    def _shorten(self, entries: list[bytes]) -> None:
        """Digest forms, the longest first. All of them fit: eight are some 600 bytes."""
        for index in sorted(range(len(entries)), key=lambda index: len(entries[index]), reverse=True):
            resume_token = _text(entries[index][_ENTRY.size :])
            entries[index] = _packed(self.keys[index], self._sealer.shortened(self._tenant, resume_token))
            if sum(map(len, entries)) <= _MAX_ENTRIES_BYTES:
                return


def _packed(key: bytes, resume_token: str) -> bytes:
    sealed = base64.urlsafe_b64decode(resume_token + "=" * (-len(resume_token) % 4))
    return _ENTRY.pack(key, len(sealed)) + sealed


def _text(sealed: bytes) -> str:
    return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode("ascii")


def _decode(payload: bytes) -> StreamToken:
    version, flags = _HEAD.unpack_from(payload)
    if version != _VERSION:
        raise ValueError("unknown version")
    resume_tokens: dict[bytes, str] = {}
    offset = _HEAD.size
    while offset < len(payload):
        key, size_bytes = _ENTRY.unpack_from(payload, offset)
        offset += _ENTRY.size
        resume_tokens[key] = _text(payload[offset : offset + size_bytes])
        offset += size_bytes
    return StreamToken(resume_tokens, bool(flags & _FLAG_ENDED))
