"""Whether collections keep images: asked once for many, cached, and asked again for all who hold topics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from feedsvc.core.changes import Namespace
from feedsvc.core.errors import Refusal
from feedsvc.ports import CollectionInfo, SourceRefused, SourceUnavailable
from feedsvc.runtime import image_modes as image_modes_module
from feedsvc.runtime.image_modes import AT_ONCE, IMAGES_FRESH_S, ImageModes
from feedsvc.runtime.pulse import BEAT_S
from feedsvc.testing import ManualClock, MemoryOplog, MemorySource
from tests.runtime.world import until

ORDERS, USERS = Namespace("app", "orders"), Namespace("app", "users")


class Answers(MemorySource):
    """Keeps the questions, fails as told, and answers while `open_gate` is set, each as of its beginning."""

    def __init__(self) -> None:
        super().__init__(MemoryOplog())
        self.asked: list[tuple[str, ...]] = []
        self.reported: list[tuple[str, Mapping[str, object]]] = []
        self.faults: dict[str, Exception] = {}
        self.under_way = self.most_under_way = 0
        self.open_gate = asyncio.Event()
        self.open_gate.set()

    def report(self, event: str, fields: Mapping[str, object]) -> None:
        self.reported.append((event, fields))

    async def describe(self, database: str, collections: Collection[str]) -> Mapping[str, CollectionInfo]:
        self.asked.append((database, *sorted(collections)))
        answer = await super().describe(database, collections)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self.open_gate.wait()
        finally:
            self.under_way -= 1
        if database in self.faults:
            raise self.faults[database]
        return answer

    def images(self, namespace: Namespace, kept: bool) -> None:
        self.oplog.create(namespace.database, namespace.collection, images=kept)


class CountingClock(ManualClock):
    """Knows how often it was asked: the watch asks once in each round."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def monotonic(self) -> float:
        self.asked += 1
        return super().monotonic()


class Held:
    """Somebody with a topic; lets go when told, but for the first `stays` times."""

    def __init__(self, modes: ImageModes, namespace: Namespace, *, exact: bool, stays: int = 0) -> None:
        self.told = 0
        self._modes, self._namespace, self._exact, self._stays = modes, namespace, exact, stays
        modes.hold(namespace, self, exact=exact)

    def mode_changed(self) -> None:
        self.told += 1
        if self.told > self._stays:
            self.let_go()

    def let_go(self) -> None:
        self._modes.release(self._namespace, self, exact=self._exact)


@pytest.fixture(autouse=True)
def short_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's beat is short; that of the clock, which the tests move, stays as it is."""
    monkeypatch.setattr(image_modes_module, "WAIT_S", 0.001)


def make() -> tuple[ImageModes, Answers, CountingClock]:
    source, clock = Answers(), CountingClock()
    source.images(ORDERS, True)
    return ImageModes(source, clock, source.report), source, clock


@asynccontextmanager
async def run(modes: ImageModes) -> AsyncIterator[None]:
    closing = asyncio.Event()
    task = asyncio.create_task(modes.run(closing))
    yield
    closing.set()
    await task


async def beats(clock: CountingClock) -> None:
    """Let the watch come round: what it would do, it has done."""
    enough = clock.asked + 4
    await until(lambda: clock.asked >= enough)


# For new subscribers


async def test_images_are_asked_once_by_many() -> None:
    """A storm of subscribers costs the database one question for each collection."""
    modes, source, _ = make()
    source.open_gate.clear()
    asking = [asyncio.create_task(modes.images(ORDERS)) for _ in range(50)]
    asking.append(asyncio.create_task(modes.images(USERS)))
    await asyncio.sleep(0)
    source.open_gate.set()
    assert await asyncio.gather(*asking) == [True] * 50 + [False]
    assert sorted(source.asked) == [("app", "orders"), ("app", "users")]


async def test_images_stay_fresh_for_a_while() -> None:
    """A setting that is changed is noticed after that."""
    modes, source, clock = make()
    assert await modes.images(ORDERS)
    source.images(ORDERS, False)
    clock.advance(IMAGES_FRESH_S - 1)
    assert await modes.images(ORDERS)
    clock.advance(2)
    assert not await modes.images(ORDERS)
    assert source.asked == [("app", "orders")] * 2


async def test_a_failed_question_is_refused_to_all_and_forgotten() -> None:
    """All who waited for it are refused for now; the next one asks again."""
    modes, source, _ = make()
    source.faults = {"app": SourceUnavailable("down")}
    answers = await asyncio.gather(*(modes.images(ORDERS) for _ in range(3)), return_exceptions=True)
    assert [getattr(answer, "code", None) for answer in answers] == ["source_unavailable"] * 3
    assert all(isinstance(answer, Refusal) for answer in answers)
    source.faults = {}
    assert await modes.images(ORDERS)
    assert source.asked == [("app", "orders")] * 2


async def test_one_who_leaves_does_not_take_the_answer_from_the_others() -> None:
    """A client that disconnects while it waits cancels its own wait only."""
    modes, source, _ = make()
    source.open_gate.clear()
    leaves, stays = (asyncio.create_task(modes.images(ORDERS)) for _ in range(2))
    await asyncio.sleep(0)
    leaves.cancel()
    await asyncio.sleep(0)
    assert leaves.cancelled()
    source.open_gate.set()
    assert await stays


async def test_a_failure_that_nobody_waits_for_is_no_noise() -> None:
    """All who asked are gone, the question fails: no exception is left unseen, and no task."""
    modes, source, _ = make()
    source.open_gate.clear()
    asked = asyncio.create_task(modes.images(ORDERS))
    async with run(modes):
        await until(lambda: source.under_way == 1)
        asked.cancel()
        await asyncio.sleep(0)
        source.faults = {"app": SourceUnavailable("down")}
        source.open_gate.set()
    assert not modes._asking


async def test_only_so_many_answers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest goes, and is asked for again; who holds a topic of it is told all the same."""
    monkeypatch.setattr(image_modes_module, "_MAX_CACHED", 2)
    modes, source, clock = make()
    for name in ("a", "b", "c"):
        await modes.images(Namespace("app", name))
    await modes.images(Namespace("app", "a"))
    assert source.asked == [("app", name) for name in "abca"]
    spaces = [Namespace("app", f"held{number}") for number in range(5)]
    held = [Held(modes, space, exact=False) for space in spaces]
    for space in spaces:
        source.images(space, True)
    async with run(modes):
        clock.advance(IMAGES_FRESH_S)
        await until(lambda: all(each.told for each in held))


# For those who hold topics


@pytest.mark.parametrize("kept", [True, False])
async def test_a_switch_is_told_to_those_of_the_other_mode(kept: bool) -> None:
    """Within the time that an answer is fresh, and a beat; to each once it lets go, and to nobody else."""
    modes, source, clock = make()
    source.images(ORDERS, kept)
    source.images(USERS, kept)
    assert await modes.images(ORDERS) == await modes.images(USERS) == kept
    concerned, other = Held(modes, ORDERS, exact=kept), Held(modes, USERS, exact=kept)
    async with run(modes):
        source.images(ORDERS, not kept)
        clock.advance(IMAGES_FRESH_S - 0.1)
        await beats(clock)
        assert (concerned.told, len(source.asked)) == (0, 2)
        clock.advance(0.2)
        await until(lambda: concerned.told > 0)
        assert await modes.images(ORDERS) != kept
        right = Held(modes, ORDERS, exact=not kept)
        clock.advance(IMAGES_FRESH_S)
        await until(lambda: len(source.asked) == 4)
        await beats(clock)
        assert (concerned.told, other.told, right.told) == (1, 0, 0)
        # The new subscriber asked nothing: what the watch learned is for all.
        assert source.asked[2:] == [("app", "orders", "users")] * 2
        right.let_go()
        other.let_go()
    fields = {"database": "app", "collection": "orders", "images": not kept}
    assert source.reported == [("images.changed", fields)]


async def test_an_answer_that_was_old_is_asked_for_sooner() -> None:
    """A subscriber may have been answered from memory: the time runs from the question, not from its topic on."""
    modes, source, clock = make()
    assert await modes.images(ORDERS)
    clock.advance(IMAGES_FRESH_S / 2)
    assert not await modes.images(USERS)
    Held(modes, USERS, exact=False)
    async with run(modes):
        clock.advance(IMAGES_FRESH_S / 2 - 1)
        assert await modes.images(ORDERS)
        concerned = Held(modes, ORDERS, exact=True)
        source.images(ORDERS, False)
        await beats(clock)
        assert (concerned.told, len(source.asked)) == (0, 2)
        clock.advance(1)
        await until(lambda: concerned.told == 1)


async def test_who_cannot_let_go_yet_is_told_again() -> None:
    """With each beat, without another question, and with one line in the log."""
    modes, source, clock = make()
    concerned = Held(modes, ORDERS, exact=False, stays=4)
    async with run(modes):
        clock.advance(IMAGES_FRESH_S)
        await until(lambda: concerned.told == 5)
        await beats(clock)
    assert concerned.told == 5
    assert len(source.asked) == 1
    assert [event for event, _ in source.reported] == ["images.changed"]


async def test_a_new_subscribers_answer_is_news_to_the_others() -> None:
    """Whoever asked."""
    modes, source, clock = make()
    source.images(ORDERS, False)
    assert not await modes.images(ORDERS)
    clock.advance(IMAGES_FRESH_S / 2)
    assert not await modes.images(USERS)
    concerned = Held(modes, ORDERS, exact=False)
    source.images(ORDERS, True)
    modes._answers.clear()  # as if forgotten among many others
    assert await modes.images(ORDERS)
    async with run(modes):
        await until(lambda: concerned.told == 1)
    assert len(source.asked) == 3


async def test_a_collection_that_does_not_exist_has_no_mode() -> None:
    """Dropped and created anew as it was is no change, created otherwise is one; and one that is created later."""
    modes, source, clock = make()
    exact, partial = Held(modes, ORDERS, exact=True), Held(modes, USERS, exact=False)
    async with run(modes):
        source.oplog.drop("app", "orders")
        clock.advance(IMAGES_FRESH_S)
        await until(lambda: len(source.asked) == 1)
        await beats(clock)
        assert not await modes.images(ORDERS)
        source.images(ORDERS, True)
        clock.advance(IMAGES_FRESH_S)
        await until(lambda: len(source.asked) == 2)
        await beats(clock)
        assert (exact.told, partial.told, source.reported) == (0, 0, [])
        source.oplog.drop("app", "orders")
        source.images(ORDERS, False)
        source.images(USERS, True)
        clock.advance(IMAGES_FRESH_S)
        await until(lambda: exact.told == partial.told == 1)


async def test_one_question_for_each_database_and_a_few_at_a_time() -> None:
    """However many collections and holders; the longest unasked first."""
    modes, source, clock = make()
    held = []
    for number in range(3 * AT_ONCE):
        clock.advance(0.01)
        for name in ("x", "y"):
            space = Namespace(f"d{number:02}", name)
            await modes.images(space)
            held += [Held(modes, space, exact=False) for _ in range(3)]
    source.asked.clear()
    source.most_under_way = 0
    async with run(modes):
        source.open_gate.clear()
        clock.advance(IMAGES_FRESH_S)
        await until(lambda: source.under_way == AT_ONCE)
        source.open_gate.set()
        await until(lambda: len(source.asked) == 3 * AT_ONCE)
    assert source.asked == [(f"d{number:02}", "x", "y") for number in range(3 * AT_ONCE)]
    assert source.most_under_way == AT_ONCE
    for each in held:
        each.let_go()
    assert not modes._held


async def test_a_suspicion_is_looked_into_at_once_but_not_each_time() -> None:
    """Once a beat for a database, however many topics miss their images; of no database that nobody holds."""
    modes, source, clock = make()
    assert await modes.images(ORDERS)
    concerned = Held(modes, ORDERS, exact=True)
    source.images(ORDERS, False)
    async with run(modes):
        modes.suspect(Namespace("elsewhere", "x"))
        modes.suspect(ORDERS)
        await beats(clock)
        assert (concerned.told, len(source.asked)) == (0, 1)
        clock.advance(BEAT_S)
        await until(lambda: concerned.told == 1)
        still = Held(modes, ORDERS, exact=False)
        for _ in range(100):
            modes.suspect(ORDERS)
        await beats(clock)
        assert len(source.asked) == 2
        clock.advance(BEAT_S)
        await until(lambda: len(source.asked) == 3)
        clock.advance(BEAT_S)
        await beats(clock)
        assert (still.told, len(source.asked)) == (0, 3)


@pytest.mark.parametrize("fault", [SourceUnavailable("down"), SourceRefused("no"), RuntimeError("a bug")])
async def test_a_question_that_fails_is_put_again_in_its_turn(fault: Exception) -> None:
    """It costs the other databases nothing; what is not an outage is told once to the log."""
    modes, source, clock = make()
    lost = Held(modes, ORDERS, exact=False)
    source.images(Namespace("other", "x"), True)
    fine = Held(modes, Namespace("other", "x"), exact=False)
    source.faults = {"app": fault}
    async with run(modes):
        for asked in (2, 3):
            clock.advance(IMAGES_FRESH_S)
            await until(lambda asked=asked: len(source.asked) == asked)  # type: ignore[misc]
            await until(lambda: fine.told == 1)
            await beats(clock)
        assert lost.told == 0
        unknown = [fields for event, fields in source.reported if event == "images.unknown"]
        error = f"{type(fault).__name__}: {fault}"
        expected = [] if isinstance(fault, SourceUnavailable) else [{"database": "app", "error": error}]
        assert unknown == expected
        source.faults = {}
        clock.advance(IMAGES_FRESH_S)
        await until(lambda: lost.told == 1)


async def test_a_question_without_an_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that hangs holds neither the watch nor its end up."""
    monkeypatch.setattr(image_modes_module, "ANSWER_WITHIN_S", 0.01)
    modes, source, clock = make()
    concerned = Held(modes, ORDERS, exact=False)
    source.open_gate.clear()
    async with run(modes):
        clock.advance(IMAGES_FRESH_S)
        await until(lambda: len(source.asked) == 1 and source.under_way == 0)
        source.open_gate.set()
        clock.advance(IMAGES_FRESH_S)
        await until(lambda: concerned.told == 1)


async def test_an_older_answer_does_not_replace_a_newer_one() -> None:
    """A question of a subscriber that is answered late knows the collection as it was before the watch asked."""
    modes, source, clock = make()
    source.images(ORDERS, False)
    source.open_gate.clear()
    late = asyncio.create_task(modes.images(ORDERS))
    await until(lambda: source.under_way == 1)
    first, source.open_gate = source.open_gate, asyncio.Event()
    source.open_gate.set()
    source.images(ORDERS, True)
    clock.advance(1)
    held = Held(modes, ORDERS, exact=False)
    async with run(modes):
        await until(lambda: held.told == 1)
        right = Held(modes, ORDERS, exact=True)
        first.set()
        assert not await late
        assert await modes.images(ORDERS)
        await beats(clock)
        assert (right.told, len(source.asked)) == (0, 2)


async def test_a_crowd_is_told_a_few_at_a_time() -> None:
    """Each holder costs a token and a frame: ten thousand in one go would hold up everybody else for a second."""
    modes, source, clock = make()
    holders = [Held(modes, ORDERS, exact=True) for _ in range(200)]
    counts: list[int] = []
    async with run(modes):
        await beats(clock)
        source.images(ORDERS, False)
        clock.advance(IMAGES_FRESH_S)
        while sum(holder.told for holder in holders) < len(holders):
            await asyncio.sleep(0)
            counts.append(sum(holder.told for holder in holders))
    assert [holder.told for holder in holders] == [1] * len(holders)
    assert max(later - before for before, later in pairwise(counts)) <= 32
