"""Streams that are opened at the operation time while somebody writes: none begins behind a change that it owes.

SecantusDB looks through all its oplog for such a time. Where no entry had it yet and that took half a second, it starts
behind whatever was committed meanwhile (decision 5). A client that another instance had told such a change was then
told `token_expired`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from feedsvc.adapters.mongo import MongoSource
from feedsvc.core.changes import TailScope
from feedsvc.core.positions import boundary, cluster_time_of
from tests.faults.numbers import COLLECTION, Writer
from tests.support.engine import Engine

ENTRIES = 50_000
"""So many that the engine needs longer than it takes the time for."""

OPENS = 12


@pytest.fixture
def long_oplog() -> Iterator[Engine]:
    engine = Engine(oplog_max_entries=10 * ENTRIES).start()
    for _ in range(0, ENTRIES, 1_000):
        engine.client["filler"]["filler"].insert_many([{} for _ in range(1_000)])
    yield engine
    engine.stop()


@pytest.mark.verify
async def test_no_stream_begins_behind_a_change_that_it_owes(long_oplog: Engine, fresh_database: str) -> None:
    source = MongoSource(long_oplog.uri, max_streams=1, await_s=0.2)
    await source.start()
    begun = []
    with Writer(long_oplog.uri, fresh_database, 1 << 30, random.Random(1), rest_s=0.002) as writer:
        writer.wait_for(1)
        for _ in range(OPENS):
            asked = await source.operation_time()
            stream = await source.open(TailScope("collection", fresh_database, COLLECTION), boundary(asked))
            while not (changes := (await stream.read()).changes):
                pass
            begun.append((asked, changes[0].position.cluster_time))
            await stream.close()
    assert writer.error is None
    await source.close()
    written = [
        cluster_time_of(entry["ts"].time, entry["ts"].inc)
        for entry in long_oplog.client["local"]["oplog.rs"].find({"ns": f"{fresh_database}.{COLLECTION}"})
    ]
    missed = [sum(asked <= time < first for time in written) for asked, first in begun]
    print(f"\n{OPENS} streams opened beside a writer miss {missed} changes")
    assert not any(missed)
