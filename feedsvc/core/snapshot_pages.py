"""The pages of a snapshot: documents that a `find` returned become the frames of one client.

The find may return more than the topic sees, so each document is matched again by the rules of the stream, and shown
through the same projection: snapshot and events agree on every document (decision 10). A page is closed once the next
document would not fit, so what is held is one page. There is always a page 0, an empty one too: it is what tells a
client that whatever it held of an earlier attempt does not count.

O(size) for each document; frames are joined once, from documents that are encoded once.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from feedsvc.core.changes import Document
from feedsvc.core.filters.regex import TooMuchText
from feedsvc.core.topics import Topic

_END = b"]}"


class SnapshotTooLarge(Exception):
    """The snapshot passes a bound of the service, or one of its documents does: it fits into no frame, or has more text
    than the filter may search."""


class PageBounds(msgspec.Struct, frozen=True):
    """`page_bytes` is kept but for a single document, `frame_bytes` always. `documents` counts those that were read."""

    page_bytes: int
    frame_bytes: int
    total_bytes: int
    documents: int


class SnapshotPages:
    """One snapshot of one topic. `encode_json` raises `UndecodableError` for what JSON cannot carry."""

    def __init__(self, topic: Topic, encode_json: Callable[[object], bytes], bounds: PageBounds) -> None:
        self._topic = topic
        self._encode_json = encode_json
        self._bounds = bounds
        self._page = 0
        self._documents: list[bytes] = []
        self._head = self._head_of_page()
        self._size_bytes = len(self._head) + len(_END)
        self._read = 0
        self.sent_bytes = 0

    def add(self, document: Document) -> bytes | None:
        """Take a document in; the frame of a page that it did not fit into, if any. Raises `SnapshotTooLarge`."""
        self._read += 1
        if self._read > self._bounds.documents:
            raise SnapshotTooLarge(f"more than {self._bounds.documents} documents were read")
        try:
            if not self._topic.matches(document):
                return None
        except TooMuchText:
            raise SnapshotTooLarge("a document has more text than the filter may search") from None
        encoded = self._encode_json(self._topic.projection.apply(document))
        full = None
        if self._documents and self._size_bytes + 1 + len(encoded) > self._bounds.page_bytes:
            full = self.finish()
        self._size_bytes += len(encoded) + bool(self._documents)
        self._documents.append(encoded)
        if self._size_bytes > self._bounds.frame_bytes:
            raise SnapshotTooLarge(f"a document does not fit into {self._bounds.frame_bytes} bytes")
        return full

    def finish(self) -> bytes:
        """The frame of the page so far. At the end of a snapshot it is owed if `unfinished`."""
        frame = b"".join((self._head, b",".join(self._documents), _END))
        self.sent_bytes += len(frame)
        if self.sent_bytes > self._bounds.total_bytes:
            raise SnapshotTooLarge(f"it is longer than {self._bounds.total_bytes} bytes")
        self._page += 1
        self._documents = []
        self._head = self._head_of_page()
        self._size_bytes = len(self._head) + len(_END)
        return frame

    @property
    def unfinished(self) -> bool:
        """Whether there is something on the page, or no page yet."""
        return bool(self._documents) or self._page == 0

    def _head_of_page(self) -> bytes:
        # The field names of `messages.Snapshot`; a test holds the two together.
        head = {"type": "snapshot", "topic": self._topic.topic_id, "page": self._page}
        return msgspec.json.encode(head)[:-1] + b',"documents":['
