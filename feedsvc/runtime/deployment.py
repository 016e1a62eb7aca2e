"""What is known of the MongoDB deployment beside its changes: identity and pulse."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from feedsvc.core.errors import Refusal
from feedsvc.core.tokens import source_id
from feedsvc.ports import ChangeSource, Clock, SourceError
from feedsvc.runtime.pulse import BEAT_S, Pulse
from feedsvc.runtime.set_within import set_within
from feedsvc.runtime.tail import Report

ANSWER_WITHIN_S = 10.0


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
        self._random = random
        self._report = report
        self._epoch = epoch
        self._level = level
        self.identified = asyncio.Event()
        self.pulse = Pulse(source, clock)
        self.failure: str | None = None
        """Why the last question of `run` was not answered."""
        self.answers = False
        """Whether the last question of `run` was answered."""
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
            await set_within(closing, BEAT_S * (0.8 + 0.2 * self._random()))

    def _note(self, failure: str | None) -> None:
        """Log what changed: before anybody has subscribed no tail would say that MongoDB is away."""
        if failure is not None and failure != self.failure:
            self._report("source.failed", {"error": failure})
        elif failure is None and not self.answers:
            self._report("source.answers", {})
        self.failure, self.answers = failure, failure is None

    async def ready(self) -> None:
        """Wait for the first answer. Raises `Refusal('source_unavailable')` where none comes in time."""
        if not await set_within(self.identified, ANSWER_WITHIN_S):
            raise Refusal("source_unavailable", "MongoDB does not answer; try again later")

    async def operation_time(self) -> int:
        """The deployment's current time. Raises `Refusal('source_unavailable')`."""
        try:
            return await self._port.operation_time()
        except SourceError:
            raise Refusal("source_unavailable", "MongoDB does not answer; try again later") from None
