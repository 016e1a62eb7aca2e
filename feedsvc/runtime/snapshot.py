"""Snapshots: the tasks that read what placement says is due, page by page, as fast as one client takes it.

Position first (decision 10): a snapshot begins at the live head, is read not before that position, and ends there;
the events behind it are in the topic's log meanwhile, which is no concern of this module. States of a job::

    due -> WAITING -> QUEUED -> RUNNING -> (told) gone      WAITING: for its time: after a failure, a resync, an outage
              ^                    |                        QUEUED:  for a slot; tenants take turns (`turns.py`)
              +-- failed, due anew +                        RUNNING: a task, with one cursor and at most one page

What if ... the subscription ends or is lost: the task notices behind whatever it awaits, closes the cursor and gives
the slot back; a read is never cancelled (decision 13), it is bounded. The client does not read: the task waits for
room, with the page in its hands and no further read, until the client is closed as slow (4201) or its maximum age. The
source fails: another attempt from a new position (`runtime.backoff`), page 0 again. The live tail fails: nothing
begins before it answers, since a snapshot would begin at a position that grows old. It cannot be sent at all (an
undecodable document, a bound): the subscription ends with `snapshot_too_large`, because a next attempt would end alike.

Memory: one read (`DocumentCursor`) and one page for each slot, however large the collection and slow the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from feedsvc.core.changes import Document, Namespace, UndecodableError
from feedsvc.core.filters.query import find_query
from feedsvc.core.limits import Limits
from feedsvc.core.placement import Placement
from feedsvc.core.snapshot_pages import PageBounds, SnapshotPages, SnapshotTooLarge
from feedsvc.core.subscription import Place, Subscription
from feedsvc.core.topics import Topic
from feedsvc.ports import (
    NO_TRACER,
    Clock,
    DocumentSource,
    EventUnavailable,
    Metrics,
    SourceError,
    Tracer,
)
from feedsvc.runtime.backoff import Backoff
from feedsvc.runtime.tail import SLICE_S, Readers, Report
from feedsvc.runtime.turns import Turns

_LIVE_CHECK_S = 0.5


class Target(Protocol):
    """The client's side of a subscription. Nothing here blocks."""

    @property
    def writable(self) -> bool: ...

    def snapshot_page(self, frame: bytes) -> None: ...

    def snapshot_too_large(self) -> None:
        """End the subscription."""
        ...


class _Job:
    """A snapshot that is owed to one subscription. At most one of `timer` and `task` is set."""

    def __init__(self, subscription: Subscription, target: Target, readers: Readers, topic: Topic) -> None:
        self.subscription = subscription
        self.target = target
        self.readers = readers
        self.topic = topic
        self.backoff = Backoff(readers.random)
        self.not_before = float("-inf")
        """Monotonic seconds: the client was told to wait so long, and so is this service."""
        self.room = asyncio.Event()
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None


class Snapshots:
    """All snapshots of the process. Create it in the running loop; `close` once all clients are gone."""

    def __init__(
        self,
        source: DocumentSource,
        limits: Limits,
        encode_json: Callable[[object], bytes],
        clock: Clock,
        metrics: Metrics,
        report: Report,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self._source = source
        self._encode_json = encode_json
        self._clock = clock
        self._metrics = metrics
        self._report = report
        self._tracer = tracer
        self._bounds = PageBounds(
            page_bytes=min(limits.snapshot_page_bytes, limits.max_event_bytes),
            frame_bytes=limits.max_event_bytes,
            total_bytes=limits.max_snapshot_bytes,
            documents=limits.max_snapshot_documents,
        )
        self._turns: Turns[_Job] = Turns(limits.snapshots, limits.snapshots_per_tenant)
        self._jobs: dict[Subscription, _Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    @property
    def running(self) -> int:
        return self._turns.taken

    @property
    def waiting(self) -> int:
        """Those without a slot."""
        return len(self._jobs) - sum(job.task is not None for job in self._jobs.values())

    def due(self, subscription: Subscription, target: Target, readers: Readers, delay_s: float) -> None:
        """Placement owes a snapshot, to be begun in so many seconds at the earliest."""
        job = self._jobs.get(subscription)
        if job is None:
            topic = subscription.topic
            assert isinstance(topic, Topic)
            job = self._jobs[subscription] = _Job(subscription, target, readers, topic)
        job.not_before = self._clock.monotonic() + delay_s
        if job.task is None:
            self._wait(job, delay_s)
        else:
            job.room.set()  # the task under way finds that it was abandoned, and its end looks for what is due

    def writable(self, subscription: Subscription) -> None:
        """Its connection can take more."""
        job = self._jobs.get(subscription)
        if job is not None:
            job.room.set()

    def gone(self, subscription: Subscription) -> None:
        """The subscription was detached. A task of it ends behind its bounded read."""
        job = self._jobs.pop(subscription, None)
        if job is None:
            return
        self._stop_waiting(job)
        job.room.set()

    async def close(self) -> None:
        """Begin nothing more, and let what is under way end after its bounded read."""
        self._closing = True
        for job in list(self._jobs.values()):
            self._stop_waiting(job)
            job.room.set()
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    # -- waiting ------------------------------------------------------------------------------------------

    def _wait(self, job: _Job, delay_s: float) -> None:
        self._stop_waiting(job)
        if self._closing:
            return
        if delay_s > 0:
            job.timer = asyncio.get_running_loop().call_later(delay_s, self._timed, job)
        else:
            self._timed(job)

    def _timed(self, job: _Job) -> None:
        """Its time has come: queue for a slot, unless the live tail fails: what fails it fails a find too."""
        job.timer = None
        loop = asyncio.get_running_loop()
        if job.readers.live_failed_until > loop.time():
            job.timer = loop.call_later(_LIVE_CHECK_S, self._timed, job)
            return
        self._turns.wait(job.topic.tenant, job)
        self._start_next()

    def _stop_waiting(self, job: _Job) -> None:
        self._turns.leave(job.topic.tenant, job)
        if job.timer is not None:
            job.timer.cancel()
            job.timer = None

    def _start_next(self) -> None:
        while not self._closing and (job := self._turns.next()) is not None:
            task = asyncio.get_running_loop().create_task(self._run(job), name="snapshot")
            job.task = task
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    # -- running ------------------------------------------------------------------------------------------

    async def _run(self, job: _Job) -> None:
        try:
            delay_s = await self._attempt(job)
        finally:
            job.task = None
            self._turns.free(job.topic.tenant)
        if self._jobs.get(job.subscription) is job:
            self._look_again(job, delay_s)
        self._start_next()

    def _look_again(self, job: _Job, delay_s: float) -> None:
        """Behind an attempt: another one is owed, or will be (LOST), or that was it."""
        place = job.subscription.place
        if place is Place.SNAPSHOT:
            self._wait(job, max(delay_s, job.not_before - self._clock.monotonic()))
        elif place is not Place.LOST:
            del self._jobs[job.subscription]

    async def _attempt(self, job: _Job) -> float:
        """One snapshot from its position to its end, or as far as it comes; seconds until the next one if it failed."""
        try:
            with self._tracer.span("feedsvc.snapshot", topic=job.topic.topic_id) as note:
                ended = await self._read(job)
                note(ended=ended)
        except (EventUnavailable, UndecodableError, SnapshotTooLarge) as error:
            self._give_up(job, "too_large", error)
        except SourceError as error:
            self._count("failed")
            fields = {"topic": job.topic.topic_id, "error": f"{type(error).__name__}: {error}"}
            self._report("snapshot.failed", fields)
            return job.backoff.after(error, self._clock.monotonic())
        except Exception as error:
            self._give_up(job, "broken", error)
        else:
            self._count("sent" if ended else "abandoned")
            if ended:
                job.backoff.reset()
        return 0.0

    async def _read(self, job: _Job) -> bool:
        """Whether the whole snapshot was sent; False where it was abandoned."""
        placement, topic = job.readers.placement, job.topic
        async with job.readers.lock:
            position = placement.begin_snapshot(job.subscription)
        owed = job.subscription.snapshots_owed
        if position is None:
            return False
        pages = SnapshotPages(topic, self._encode_json, self._bounds)
        query = find_query(topic)
        if not await self._write_pages(job, owed, pages, topic.namespace, query, position.cluster_time):
            return False
        if pages.unfinished and not await self._write(job, owed, pages.finish()):
            return False
        return await self._end(job, owed, placement)

    async def _write_pages(
        self,
        job: _Job,
        owed: int,
        pages: SnapshotPages,
        namespace: Namespace,
        query: Document,
        after: int,
    ) -> bool:
        cursor = await self._source.find(namespace, query, after)
        try:
            while self._wanted(job, owed):
                documents = await cursor.read()
                if not documents:
                    return True
                started = self._clock.monotonic()
                for document in documents:
                    page = pages.add(document)
                    if page is not None and not await self._write(job, owed, page):
                        return False
                    if self._clock.monotonic() - started > SLICE_S:
                        await asyncio.sleep(0)
                        started = self._clock.monotonic()
            return False
        finally:
            await cursor.close()

    async def _write(self, job: _Job, owed: int, frame: bytes) -> bool:
        """Write a page once there is room for it; False where it is not wanted any more."""
        if not await self._room(job, owed):
            return False
        job.target.snapshot_page(frame)
        await asyncio.sleep(0)  # a turn for others behind each page
        return True

    async def _end(self, job: _Job, owed: int, placement: Placement) -> bool:
        while await self._room(job, owed):
            async with job.readers.lock:
                if self._wanted(job, owed) and placement.end_snapshot(job.subscription):
                    return True
        return False

    async def _room(self, job: _Job, owed: int) -> bool:
        """Wait until the connection takes more: True, with nothing awaited since; False where that is of no use."""
        while self._wanted(job, owed):
            if job.target.writable:
                return True
            job.room.clear()
            await job.room.wait()
        return False

    def _wanted(self, job: _Job, owed: int) -> bool:
        subscription = job.subscription
        return (
            not self._closing
            and not subscription.closed
            and subscription.place is Place.SNAPSHOT
            and subscription.snapshots_owed == owed
        )

    # -- what became of it --------------------------------------------------------------------------------

    def _give_up(self, job: _Job, outcome: str, error: Exception) -> None:
        self._count(outcome)
        # Without the text of what nobody foresaw: it may quote a document.
        text = type(error).__name__ if outcome == "broken" else f"{type(error).__name__}: {error}"
        fields = {"topic": job.topic.topic_id, "outcome": outcome, "error": text}
        self._report("snapshot.given_up", fields)
        if not job.subscription.closed:
            job.target.snapshot_too_large()

    def _count(self, outcome: str) -> None:
        self._metrics.count("snapshots", outcome=outcome)
