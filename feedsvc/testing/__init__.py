"""In-memory implementations of the ports, for tests of this service and of programs that embed it.

`MemoryOplog` is the database; a `MemorySource` is one instance's view of it, which may lag (`see_only`), fail
(`fail_next_read`, `fail_next_open`) and cut its batches anywhere (`max_records`). Nothing needs a running loop until
`read()` has to wait: `MemorySource.open_now` and `MemoryStream.poll` do the same work synchronously, so that a
scheduler can drive thousands of schedules; `find_now` and `MemoryCursor.poll` are the same for a find, which
`fail_next_find` and `fail_next_cursor_read` make fail. The semantics are those of `ports.ChangeSource` and
`ports.DocumentSource`, under the same contract tests as the adapter for MongoDB.
"""

from __future__ import annotations

from feedsvc.testing.documents import MemoryCursor
from feedsvc.testing.edges import ManualClock, MemoryConnection, MemoryVerifier
from feedsvc.testing.entries import Entry
from feedsvc.testing.oplog import START, MemoryOplog
from feedsvc.testing.source import MemorySource
from feedsvc.testing.stream import MemoryStream

__all__ = [
    "START",
    "Entry",
    "ManualClock",
    "MemoryConnection",
    "MemoryCursor",
    "MemoryOplog",
    "MemorySource",
    "MemoryStream",
    "MemoryVerifier",
]
