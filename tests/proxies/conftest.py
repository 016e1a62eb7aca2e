"""Fixtures of the tests behind proxies: an engine that no other test writes to, and room for many sockets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.proxies.fronts import many_files
from tests.support.engine import Engine


@pytest.fixture
def engine_of_its_own() -> Iterator[Engine]:
    """With a short oplog, since the engine reads all of it whenever a stream opens; it holds more than a minute."""
    engine = Engine(oplog_max_entries=10_000, sync_on_commit=False).start()
    yield engine
    engine.stop()


@pytest.fixture(autouse=True)
def files() -> Iterator[None]:
    with many_files():
        yield
