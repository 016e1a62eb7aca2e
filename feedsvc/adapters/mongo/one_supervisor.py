"""The driver's own resume, switched off: the tails' readers are the only ones that open a stream again.

It is for the blocking streams that Motor gives away; `PinnedStream` asks the server past the method that resumes. A
change stream of PyMongo resumes by itself, once per failure, at once, without a word. With a server that goes on
failing that is a loop without a pause inside `try_next()`, which no backoff of ours can see (the call returns None in
between, as if the stream were idle), and a position that is lost may be tried again. The driver has no option for
it, so this reaches into it: `_resume` of the stream is replaced by one that raises the error that was to be resumed
from. A contract test counts opens while a fail point is on, so that a driver that works otherwise is noticed.
Retryable reads, which would send a failed `aggregate` twice, have an option: `retryReads=False`.
"""

from __future__ import annotations

import sys
from typing import Any

from pymongo.errors import AutoReconnect


def without_resume(stream: Any) -> None:
    """Make a blocking change stream of PyMongo raise where it would resume."""

    def fail() -> None:
        raise sys.exc_info()[1] or AutoReconnect("the cursor of the stream is gone")

    stream._resume = fail
