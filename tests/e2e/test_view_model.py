"""The model test of the view: whoever applies snapshot pages and events ends with what `find` returns.

One scenario: a new collection, random writes of every kind, and several clients of several topics that are cut, crash,
stay away and come back to either of two instances. At the end a last document is written for each topic; once its
event has come, all others have, and the state must be exactly what the effective filter finds: with images, and
without them where no policy filter asks for one. Where the policy allows partial views of shared collections, documents
that moved away may stay, but nothing of another tenant is ever sent and what matches is as it is found.

Everything random comes from a seed, so a failing run can be repeated: `VIEW_SEED=n pytest ...`. Only the interleaving
of processes is not in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from bson import json_util
from pymongo import MongoClient

from tests.support.engine import URI_VARIABLE, Engine
from tests.support.random_writes import HIDDEN, RandomWriter, Rows
from tests.support.service import Service, token_key
from tests.support.view import Documents, key_of
from tests.support.view_client import Progress, ViewClient
from tests.support.view_topics import FIELDS, WANTED, Effective

SHORT = os.environ.get("VERIFY_SCALE") == "short"
SHARED = "view_shared"
HIDDEN_FIELDS = {"secret": 0, "deep.secret": 0, "items.cost": 0}
SHARED_POLICY = {
    "tenant": {"claim": "tenant", "database": SHARED},
    "collections": {"*": {"filter": {"tenantId": "{tenant}"}, "fields": HIDDEN_FIELDS, "allowPartial": True}},
}
OWN_POLICY = {"tenant": {"claim": "tenant", "database": "view_{tenant}"}, "collections": {"*": {}}}
FAST = {"checkpoint_interval": "1"}
LARGE_CHARS = 90_000
END_WITHIN_S = 60.0
# Four services serve all of this module.
pytestmark = pytest.mark.xdist_group("view_model")


class Mode(NamedTuple):
    """`unsettled`: now and then the collection's images are switched, or it is dropped and made anew."""

    shared: bool
    images: bool
    unsettled: bool = False

    @property
    def deletes(self) -> bool:
        """Whether a client learns of all that leaves; only then are there snapshots."""
        return self.images or not self.shared


MODES = {
    "shared-images": Mode(True, True),
    "own-images": Mode(False, True),
    "own-partial": Mode(False, False),
    "shared-allowPartial": Mode(True, False),
    "own-unsettled": Mode(False, True, unsettled=True),
}
SETTLED = [name for name, mode in MODES.items() if not mode.unsettled]


class Watched(NamedTuple):
    """A client, what its view has to be, and the document that is written behind all others."""

    client: ViewClient
    effective: Effective
    last: dict[str, Any]


class Scenario:
    """`services`: two instances under the policy of the mode.

    `roll_at`: after how many writes `engine` and services forget them all, while `away` of the clients are away.
    """

    def __init__(
        self,
        mode: Mode,
        services: Sequence[Service],
        mongodb: MongoClient[dict[str, Any]],
        number: int,
        *,
        roll_at: int = 0,
        engine: Engine | None = None,
        away: int = 0,
    ) -> None:
        self.mode = mode
        self.figures: Counter[str] = Counter()
        self._services = services
        self._roll_at = roll_at
        self._engine = engine
        self._away = away
        self._rng = rng = random.Random(number)
        self._name = f"rows_{secrets.token_hex(6)}"
        self._rows: Rows = mongodb[SHARED if mode.shared else "view_alpha"].create_collection(
            self._name, changeStreamPreAndPostImages={"enabled": mode.images}
        )
        self._tenants = ("alpha", "beta") if mode.shared else ("alpha",)
        self.writer = RandomWriter(self._rows, random.Random(rng.random()), ("alpha", "beta"))
        self._progress = Progress()

    async def run(self, writes: int, clients: int) -> None:
        watched = [self._watched(number) for number in range(clients)]
        for number, (client, _, _) in enumerate(watched):
            # Of the same tenant: the tenants take turns.
            other = watched[number - len(self._tenants)].client
            if other.topic != client.topic:
                client.foreign_token = partial(getattr, other.view, "token")
        await asyncio.to_thread(self.writer.fill)
        await asyncio.to_thread(self._rows.insert_many, list(large(watched[: len(self._tenants)])))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(client.run()) for client, _, _ in watched]
            for written in range(1, writes + 1):
                await self._one_write(written)
                await self._progress.note(written)
            # Before the last documents: a state that begins behind them has to touch them.
            await self._progress.note(writes, ending=True)
            await asyncio.to_thread(self._rows.insert_many, [last for _, _, last in watched])
            await asyncio.wait(tasks, timeout=END_WITHIN_S)
            late = [client for (client, _, _), task in zip(watched, tasks, strict=True) if not task.done()]
            assert not late, f"these do not end: {[(client.topic, client.view) for client in late]}"
        for client, effective, _ in watched:
            self._compare(client, await asyncio.to_thread(effective.find))
            self.figures.update(client.figures)
        self.figures["writes"] = sum(self.writer.done.values())
        self.figures["refused writes"] = sum(self.writer.refused.values())

    async def _one_write(self, written: int) -> None:
        await asyncio.to_thread(self.writer.write)
        if self.mode.unsettled and self._rng.random() < 0.03:
            await asyncio.to_thread(self._unsettle)
        if written == self._roll_at and self._engine is not None:
            await self._progress.stayed_away(self._away)
            await asyncio.to_thread(self._forget, self._engine)

    def _forget(self, engine: Engine) -> None:
        """The oplog rolls, and the instances, which remember some of it, start anew."""
        for service in self._services:
            service.kill()
        engine.roll_oplog(engine.client.admin.command("ping")["operationTime"])
        launched(self._services)

    def _unsettle(self) -> None:
        """With images or without, at random."""
        images = {"enabled": self._rng.random() < 0.5}
        if self._rng.random() < 0.7:
            self._rows.database.command("collMod", self._name, changeStreamPreAndPostImages=images)
        else:
            self._rows.drop()
            self._rows.database.create_collection(self._name, changeStreamPreAndPostImages=images)
            self.figures["drops"] += 1

    def _compare(self, client: ViewClient, found: Documents) -> None:
        membership = "exact" if self.mode.images else "partial"
        assert self.mode.unsettled or client.fidelity == {
            "membership": membership,
            "deletes": self.mode.deletes,
        }
        held = {key: texts(document) for key, document in client.view.documents.items() if not is_last(key)}
        wanted = {key: texts(document) for key, document in found.items() if not is_last(key)}
        if not self.mode.deletes:
            held = {key: text for key, text in held.items() if key in wanted}
        assert held == wanted, client.topic
        assert client.last in found
        self.figures["documents compared"] += len(wanted)

    def _watched(self, number: int) -> Watched:
        rng = random.Random(self._rng.random())
        wanted, fields = rng.choice(WANTED), rng.choice(FIELDS)
        tenant = self._tenants[number % len(self._tenants)]
        last = {"_id": f"last {number}", **json_util.loads(json.dumps(wanted.witness)), "tenantId": tenant}
        effective = Effective(
            self._rows,
            self._rows.database.client["view_scratch"][f"{self._name}_{number}"],
            {"tenantId": tenant} if self.mode.shared else {},
            HIDDEN_FIELDS if self.mode.shared else {},
            wanted.filter,
            fields,
        )

        async def fetch(after: Mapping[str, Any]) -> Documents:
            return await asyncio.to_thread(effective.find, after)

        async def touch() -> None:
            await asyncio.to_thread(self._rows.update_one, {"_id": last["_id"]}, {"$inc": {"touched": 1}})

        client = ViewClient(
            self._services,
            tenant,
            {"collection": self._name, "filter": wanted.filter, "fields": fields},
            rng,
            self._progress,
            fetch=fetch,
            touch=touch,
            last=key_of(last["_id"]),
            snapshots=self.mode.deletes,
            strict=not self.mode.unsettled,
            away_until=self._roll_at if number < self._away else 0,
            own={"tenantId": tenant} if self.mode.shared else {},
            hidden=HIDDEN if self.mode.shared else None,
        )
        return Watched(client, effective, last)


def large(watched: Sequence[Watched]) -> Iterator[dict[str, Any]]:
    """Documents that these clients hold, too many for one page of a snapshot."""
    for number, (_, _, last) in enumerate(watched):
        for part in range(3):
            yield {**last, "_id": f"large {number}.{part}", "pad": "-" * LARGE_CHARS}


def is_last(key: str) -> bool:
    """Whether it is one of the documents that end a scenario: clients touch theirs while others are done."""
    return key.startswith('"last ')


def texts(document: Mapping[str, Any]) -> str:
    """Values with their types: 1, 1.0 and true are not one."""
    return json.dumps(document, sort_keys=True)


def seeds(count: int) -> list[int]:
    """The one of the environment, or so many: always the same ones in CI, as those of hypothesis."""
    given = int(os.environ.get("VIEW_SEED", "0"))
    rng = random.Random(1 if os.environ.get("CI") else None)
    return [given] if given else [rng.randrange(1, 1 << 30) for _ in range(count)]


def run(scenario: Scenario, writes: int, clients: int) -> Counter[str]:
    asyncio.run(scenario.run(writes, clients))
    return scenario.figures


def shown(figures: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(figures.items()) if count)


def launched(services: Sequence[Service]) -> Sequence[Service]:
    """Started together, and ready."""
    for service in services:
        service.launch()
    for service in services:
        service.wait_for("/healthz/ready", 200)
    return services


@contextlib.contextmanager
def two_instances(uri: str, directory: Path, policy: Mapping[str, Any]) -> Iterator[Sequence[Service]]:
    keys = token_key()
    services = [Service(uri, directory, policy, token_keys=keys, **FAST) for _ in range(2)]
    try:
        yield launched(services)
    finally:
        for service in services:
            service.kill()


@pytest.fixture(scope="module")
def mongodb_uri() -> Iterator[str]:
    """Of an engine with a short oplog: services ask for its first entry, for which the embedded engine reads it all."""
    given = os.environ.get(URI_VARIABLE)
    if given:
        yield given
        return
    engine = Engine(oplog_max_entries=500, sync_on_commit=False).start()
    yield engine.uri
    engine.stop()


@pytest.fixture(scope="module")
def mongodb(mongodb_uri: str) -> Iterator[MongoClient[dict[str, Any]]]:
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        yield client


@pytest.fixture(scope="module")
def shared_instances(
    mongodb_uri: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sequence[Service]]:
    with two_instances(mongodb_uri, tmp_path_factory.mktemp("shared"), SHARED_POLICY) as services:
        yield services


@pytest.fixture(scope="module")
def own_instances(mongodb_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[Service]]:
    with two_instances(mongodb_uri, tmp_path_factory.mktemp("own"), OWN_POLICY) as services:
        yield services


@pytest.fixture
def instances(request: pytest.FixtureRequest, mode: str) -> Sequence[Service]:
    """Two instances under the policy of the mode."""
    services: Sequence[Service] = request.getfixturevalue(
        "shared_instances" if MODES[mode].shared else "own_instances"
    )
    return services


@pytest.mark.parametrize(
    "mode", [SETTLED[0], *(pytest.param(mode, marks=pytest.mark.verify) for mode in SETTLED[1:])]
)
def test_a_view_ends_as_find_returns_it(
    instances: Sequence[Service], mongodb: MongoClient[dict[str, Any]], mode: str
) -> None:
    """Cut, crashed and resynced clients of several topics, while everything is written that can be."""
    for number in seeds(1):
        print(f"\nVIEW_SEED={number} -k 'returns and {mode}'")
        scenario = Scenario(MODES[mode], instances, mongodb, number)
        figures = run(scenario, writes=120, clients=6)
        print(shown(figures), dict(scenario.writer.refused))
        assert figures["events"] and figures["cuts"] and figures["documents compared"]
        assert not figures["lost connections"]


def test_a_view_survives_an_oplog_that_forgets(small_oplog: Engine, tmp_path: Path) -> None:
    """Clients that were away for longer than the oplog reaches get `resync` and end as `find` returns."""
    (number,) = seeds(1)
    print(f"\nVIEW_SEED={number}")
    with two_instances(small_oplog.uri, tmp_path, SHARED_POLICY) as services:
        scenario = Scenario(
            MODES["shared-images"],
            services,
            small_oplog.client,
            number,
            roll_at=60,
            engine=small_oplog,
            away=3,
        )
        figures = run(scenario, writes=100, clients=6)
    print(shown(figures))
    assert figures["resync token_expired"] >= 3, figures


@pytest.mark.verify
@pytest.mark.parametrize("mode", list(MODES))
def test_many_seeds(instances: Sequence[Service], mongodb: MongoClient[dict[str, Any]], mode: str) -> None:
    """The same for many seeds; together they hold every kind of write and of return."""
    total: Counter[str] = Counter()
    done: Counter[str] = Counter()
    names: list[str] = []
    began = time.monotonic()
    for number in seeds(3 if SHORT else 12):
        print(
            f"\n{time.monotonic() - began:.0f} s: VIEW_SEED={number} -k 'many and {mode}'", end="", flush=True
        )
        scenario = Scenario(MODES[mode], instances, mongodb, number)
        total.update(run(scenario, writes=200, clients=6))
        done.update(scenario.writer.done)
        names = scenario.writer.names
    print(f"\n{mode}: {shown(total)}")
    print(f"writes: {shown(done)}")
    assert [name for name in names if not done[name]] == []
    assert total["refused writes"] < total["writes"] / 5
    assert total["cut before the fetch"] and total["resync topic_changed"] and total["crashes"]
    assert not MODES[mode].deletes or total["cut snapshots"]
    assert not MODES[mode].unsettled or (
        total["drops"] and total["images switched"] and total["resync images_lost"]
    )
    assert not total["lost connections"]
