"""What the readers of the in-memory source have in common: `poll()` is `read()` without the wait.

A read that finds nothing waits until the oplog says that there may be more. The first error ends a reader: each
later poll raises it again, as a cursor of MongoDB does not come back either.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from feedsvc.ports import SourceError, SourceUnavailable
from feedsvc.testing.oplog import MemoryOplog

T = TypeVar("T")


class Polled(ABC, Generic[T]):
    """A reader of `oplog`; `T` is what one read returns. `name` is for the error of a read behind the close."""

    def __init__(self, oplog: MemoryOplog, name: str) -> None:
        self._name = name
        self._closed = False
        self._error: SourceError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._stop_listening = oplog.listen(self._wake)

    def poll(self) -> T | None:
        """What a read would return now, or None where it would wait."""
        if self._closed:
            raise SourceUnavailable(f"the {self._name} is closed")
        if self._error is not None:
            raise self._error
        try:
            return self._poll()
        except SourceError as error:
            self._error = error
            raise

    @abstractmethod
    def _poll(self) -> T | None:
        """`poll` of a reader that is open and has not failed."""

    async def close(self) -> None:
        self.close_now()

    def close_now(self) -> None:
        """`close` without a loop."""
        self._closed = True
        self._stop_listening()
        self._wake()

    async def _until_more(self) -> None:
        """Until there may be more, or it was closed."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
