"""Which collections keep pre- and post-images, and who has to know when that changes.

MongoDB tells no stream about it (`modify` events need showExpandedEvents, which its Stable API leaves out), so it is
asked: one `listCollections` for each database with held topics, every `IMAGES_FRESH_S`, and at once, but not more than
once a beat, where an exact topic met a change without its pre-image. A few at a time, so that a thousand tenants with a
database each cost MongoDB a hundred small questions a second and never a burst.

A topic's image mode is part of its id. Whoever holds one that was opened in the other mode is told, and told again with
every beat until it lets go: nothing hangs on the moment of the change. Between the change and its detection

* an exact topic meets changes without pre-image: `resync images_lost`, where it needs the image;
* a partial topic goes on as partial, which is right with images too.

A collection that does not exist has no mode: whoever holds it goes on with what is created under its name, and is told
if that is other than it was. Who subscribes meanwhile gets what a collection without images gives.

A beat costs O(collections held), a subscription O(1).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Protocol

import msgspec

from feedsvc.core.changes import Namespace
from feedsvc.core.errors import Refusal
from feedsvc.ports import ChangeSource, Clock, CollectionInfo, SourceError, SourceUnavailable
from feedsvc.runtime.pulse import BEAT_S
from feedsvc.runtime.set_within import set_within
from feedsvc.runtime.tail import Report

IMAGES_FRESH_S = 10.0
"""How long an answer about a collection's images is used."""
ANSWER_WITHIN_S = 2.0
WAIT_S = BEAT_S
"""How long the watch waits between two looks at what is due."""
AT_ONCE = 4
"""Questions about databases under way at a time, beside those of new subscribers."""
_MAX_CACHED = 10_000
_TOLD_AT_ONCE = 32
"""Holders that are told before others run: each seals a token and leaves its topic, a tenth of a millisecond."""


class Holder(Protocol):
    def mode_changed(self) -> None:
        """The topic was opened in the other image mode: let go of it, now or when told again. Must not raise."""
        ...


class _Answer(msgspec.Struct, frozen=True):
    """`images` None: no such collection. `asked_at`: when the question was put, in monotonic seconds."""

    asked_at: float
    images: bool | None


_UNKNOWN = _Answer(float("-inf"), None)


class _HeldCollection(msgspec.Struct):
    """`holders`: those of partial and those of exact topics. `reported`: the last mode that the log was told of."""

    answer: _Answer
    holders: tuple[dict[Holder, None], dict[Holder, None]]
    reported: bool | None = None


class _HeldDatabase(msgspec.Struct):
    """`refused`: the last question was, and the log knows."""

    asked_at: float
    suspected: bool = False
    refused: bool = False
    collections: dict[str, _HeldCollection] = {}


class ImageModes:
    """One `run` for all; `images` may be asked by anybody at any time."""

    def __init__(self, source: ChangeSource, clock: Clock, report: Report) -> None:
        self._source = source
        self._clock = clock
        self._report = report
        self._answers: dict[Namespace, _Answer] = {}
        self._asking: dict[Namespace, asyncio.Task[bool]] = {}
        self._held: dict[str, _HeldDatabase] = {}
        self._wanted = asyncio.Event()

    # -- for a new subscriber -----------------------------------------------------------------------------

    async def images(self, namespace: Namespace) -> bool:
        """Whether a collection keeps pre- and post-images; not if it does not exist. Many who ask at a time cost one
        question. Raises `Refusal('source_unavailable')`."""
        known = self._answers.get(namespace)
        if known is not None and self._clock.monotonic() - known.asked_at < IMAGES_FRESH_S:
            return bool(known.images)
        task = self._asking.get(namespace)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask(namespace), name="describe")
            self._asking[namespace] = task
            task.add_done_callback(lambda done: self._answered(namespace, done))
        try:
            return await asyncio.shield(task)
        except SourceError:
            raise Refusal("source_unavailable", "MongoDB does not answer; try again later") from None

    async def _ask(self, namespace: Namespace) -> bool:
        asked_at, name = self._clock.monotonic(), namespace.collection
        found = await self._source.describe(namespace.database, [name])
        self._learn(namespace.database, [name], found, asked_at)
        return name in found and found[name].images

    def _answered(self, namespace: Namespace, task: asyncio.Task[bool]) -> None:
        del self._asking[namespace]
        if not task.cancelled():
            task.exception()  # seen, even if all who asked are gone

    # -- for who holds a topic ----------------------------------------------------------------------------

    def hold(self, namespace: Namespace, holder: Holder, *, exact: bool) -> None:
        """Tell `holder` when the collection is no longer in this mode. Pair with `release`."""
        database = self._held.get(namespace.database)
        if database is None:
            database = self._held[namespace.database] = _HeldDatabase(self._clock.monotonic())
        collection = database.collections.get(namespace.collection)
        if collection is None:
            answer = self._answers.get(namespace, _UNKNOWN)
            collection = database.collections[namespace.collection] = _HeldCollection(answer, ({}, {}))
            database.asked_at = min(database.asked_at, answer.asked_at)
        collection.holders[exact][holder] = None

    def release(self, namespace: Namespace, holder: Holder, *, exact: bool) -> None:
        database = self._held[namespace.database]
        collection = database.collections[namespace.collection]
        del collection.holders[exact][holder]
        if not any(collection.holders):
            del database.collections[namespace.collection]
            if not database.collections:
                del self._held[namespace.database]

    def suspect(self, namespace: Namespace) -> None:
        """An exact topic met a change without its pre-image: have a look soon, and not only in some seconds."""
        database = self._held.get(namespace.database)
        if database is not None:
            database.suspected = True
            self._wanted.set()

    # -- the watch ----------------------------------------------------------------------------------------

    async def run(self, closing: asyncio.Event) -> None:
        """Ask for what may have changed and tell the holders, until `closing`."""
        closed = asyncio.get_running_loop().create_task(self._close(closing), name="image-modes-close")
        while not closing.is_set():
            self._wanted.clear()
            due = self._due()
            await asyncio.gather(*(self._ask_all(due, closing) for _ in range(AT_ONCE)))
            await self._tell()
            await set_within(self._wanted, WAIT_S)
        await asyncio.gather(closed, *self._asking.values(), return_exceptions=True)

    async def _close(self, closing: asyncio.Event) -> None:
        await closing.wait()
        self._wanted.set()

    def _due(self) -> list[str]:
        """The databases to ask about, those that were asked longest ago last."""
        now = self._clock.monotonic()
        ages = {
            name: now - held.asked_at
            for name, held in self._held.items()
            if now - held.asked_at >= (BEAT_S if held.suspected else IMAGES_FRESH_S)
        }
        return sorted(ages, key=ages.__getitem__)

    async def _ask_all(self, due: list[str], closing: asyncio.Event) -> None:
        """Take from the end of `due` until it is empty; several do so at a time."""
        while due and not closing.is_set():
            name = due.pop()
            held = self._held.get(name)
            if held is None:
                continue
            held.asked_at, held.suspected = self._clock.monotonic(), False
            try:
                names = list(held.collections)
                async with asyncio.timeout(ANSWER_WITHIN_S):
                    found = await self._source.describe(name, names)
            except (SourceUnavailable, TimeoutError):
                continue  # an outage, which the pulse reports: asked again in its turn
            except Exception as error:
                # Not only SourceError: this task must outlive a fault of the driver.
                if not held.refused:
                    self._report(
                        "images.unknown", {"database": name, "error": f"{type(error).__name__}: {error}"}
                    )
                held.refused = True
            else:
                held.refused = False
                self._learn(name, names, found, held.asked_at)

    def _learn(
        self, database: str, names: Collection[str], found: Mapping[str, CollectionInfo], asked_at: float
    ) -> None:
        """Note an answer, unless a question that was put later has been answered already."""
        held = self._held.get(database)
        for name in names:
            namespace = Namespace(database, name)
            answer = _Answer(asked_at, found[name].images if name in found else None)
            answer = max(answer, self._answers.pop(namespace, _UNKNOWN), key=lambda each: each.asked_at)
            self._answers[namespace] = answer
            if held is not None and name in held.collections:
                held.collections[name].answer = answer
        while len(self._answers) > _MAX_CACHED:
            del self._answers[next(iter(self._answers))]

    async def _tell(self) -> None:
        told = 0
        for database, held in list(self._held.items()):
            for name, collection in list(held.collections.items()):
                images = collection.answer.images
                if images is None:
                    continue
                others = collection.holders[not images]
                if others and collection.reported != images:
                    collection.reported = images
                    fields = {"database": database, "collection": name, "images": images}
                    self._report("images.changed", fields)
                for holder in list(others):
                    if holder in others:  # it may have let go while others ran
                        holder.mode_changed()
                    told += 1
                    if not told % _TOLD_AT_ONCE:
                        await asyncio.sleep(0)
