"""What an in-memory oplog is made of."""

from __future__ import annotations

from typing import Any

import msgspec

from feedsvc.core.changes import Namespace

Document = dict[str, Any]


class Entry(msgspec.Struct, frozen=True):
    """One oplog entry. `operation` is "noop" for a tick; `after` is the document as this entry left it."""

    number: int
    cluster_time: int
    operation: str
    namespace: Namespace
    document_id: Any = None
    after: Document | None = None
    before: Document | None = None
    update: Document | None = None
    renamed_to: Namespace | None = None
