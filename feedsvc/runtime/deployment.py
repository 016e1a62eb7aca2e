"""What is known of the MongoDB deployment beside its changes: identity, pulse, image settings.

Answers are cached and asked for once at a time, so that a storm of subscribers costs the database one question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from feedsvc.core.changes import Namespace
from feedsvc.core.errors import Refusal
from feedsvc.core.tokens import source_id
from feedsvc.ports import ChangeSource, Clock, SourceError
from feedsvc.runtime.pulse import BEAT_S, Pulse
from feedsvc.runtime.tail import Report

IMAGES_FRESH_S = 10.0
"""How long an answer about a collection's images is used; a topic keeps the mode it was opened with."""
ANSWER_WITHIN_S = 10.0
_MAX_CACHED = 10_000


class Deployment:
    """`source`: 8 bytes that name deployment, epoch and scope level, once `identified` is set."""

    def __init__(
        self,
        source: ChangeSource,
        clock: Clock,
        random: Callable[[], float],
        report: Report,
        *,
        epoch: str,
        level: str,
    ) -> None:
        self._port = source
        self._clock = clock
        self._random = random
        self._report = report
        self._epoch = epoch
        self._level = level
        self._images: dict[Namespace, tuple[float, bool]] = {}
        self._asking: dict[Namespace, asyncio.Task[bool]] = {}
        self.identified = asyncio.Event()
        self.pulse = Pulse(source, clock)
        self.failure: str | None = None
        """Why the last question of `run` was not answered."""
        self._answers = False
        self._source: bytes | None = None

    @property
    def source(self) -> bytes:
        if self._source is None:
            raise Refusal("source_unavailable", "MongoDB has not answered yet; try again")
        return self._source

    async def run(self, closing: asyncio.Event) -> None:
        """Ask for the identity until it is known, and feel the pulse, until `closing`."""
        while not closing.is_set():
            try:
                if self._source is None:
                    self._source = source_id(await self._port.identity(), self._epoch, self._level)
                    self.identified.set()
                await self.pulse.beat()
                self._note(None)
            except Exception as error:
                # Not only SourceError: this task must outlive a fault of the driver, or nobody could subscribe again.
                self._note(f"{type(error).__name__}: {error}")
            try:
                async with asyncio.timeout(BEAT_S * (0.8 + 0.2 * self._random())):
                    await closing.wait()
            except TimeoutError:
                continue
        await asyncio.gather(*self._asking.values(), return_exceptions=True)

    def _note(self, failure: str | None) -> None:
        """Log what changed: before anybody has subscribed no tail would say that MongoDB is away."""
        if failure is not None and failure != self.failure:
            self._report("source.failed", {"error": failure})
        elif failure is None and not self._answers:
            self._report("source.answers", {})
        self.failure, self._answers = failure, failure is None

    async def ready(self) -> None:
        """Wait for the first answer. Raises `Refusal('source_unavailable')` where none comes in time."""
        try:
            # Not wait_for: that of Python 3.11 swallows the cancellation of a client that leaves just now.
            async with asyncio.timeout(ANSWER_WITHIN_S):
                await self.identified.wait()
        except TimeoutError:
            raise Refusal("source_unavailable", "MongoDB does not answer; try again later") from None

    async def images(self, namespace: Namespace) -> bool:
        """Whether a collection keeps pre- and post-images. Raises `Refusal('source_unavailable')`."""
        known = self._images.get(namespace)
        if known is not None and self._clock.monotonic() - known[0] < IMAGES_FRESH_S:
            return known[1]
        task = self._asking.get(namespace)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask(namespace), name="describe")
            self._asking[namespace] = task
            task.add_done_callback(lambda done: self._answered(namespace, done))
        try:
            return await asyncio.shield(task)
        except SourceError:
            raise Refusal("source_unavailable", "MongoDB does not answer; try again later") from None

    def _answered(self, namespace: Namespace, task: asyncio.Task[bool]) -> None:
        del self._asking[namespace]
        if not task.cancelled():
            task.exception()  # seen, even if all who asked are gone

    async def operation_time(self) -> int:
        """The deployment's current time. Raises `Refusal('source_unavailable')`."""
        try:
            return await self._port.operation_time()
        except SourceError:
            raise Refusal("source_unavailable", "MongoDB does not answer; try again later") from None

    async def _ask(self, namespace: Namespace) -> bool:
        info = await self._port.describe(namespace.database, namespace.collection)
        if len(self._images) >= _MAX_CACHED:
            self._images.pop(next(iter(self._images)))
        self._images[namespace] = (self._clock.monotonic(), info.images)
        return info.images
