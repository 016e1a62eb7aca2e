"""Fixtures of the end-to-end tests: the engine, and services as processes that never outlive their test or module."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.database import Database

from tests.support.engine import Engine
from tests.support.service import Service

StartService = Callable[..., Service]
Documents = Database[dict[str, Any]]


@contextlib.contextmanager
def _starting(mongodb_uri: str, directory: Path) -> Iterator[StartService]:
    started: list[Service] = []

    def start(*, uri: str = mongodb_uri, **arguments: Any) -> Service:
        service = Service(uri, directory, **arguments)
        started.append(service)
        return service.start()

    try:
        yield start
    finally:
        for service in started:
            service.kill()


@pytest.fixture
def start_service(mongodb_uri: str, tmp_path: Path) -> Iterator[StartService]:
    """Starts `feedsvc serve` against the shared engine, or `uri=`; arguments as those of `Service`."""
    with _starting(mongodb_uri, tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def start_for_module(mongodb_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartService]:
    """As `start_service`, for services that the tests of one module share."""
    with _starting(mongodb_uri, tmp_path_factory.mktemp("services")) as start:
        yield start


@pytest.fixture(scope="session")
def mongodb(mongodb_uri: str) -> Iterator[MongoClient[dict[str, Any]]]:
    """A blocking client for the writes of the tests."""
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        yield client


@pytest.fixture
def database(mongodb: MongoClient[dict[str, Any]], fresh_database: str) -> Documents:
    """The database of a tenant of that name, which no other test uses."""
    return mongodb[fresh_database]


@pytest.fixture
def small_oplog() -> Iterator[Engine]:
    """An engine of its own whose oplog keeps few entries."""
    engine = Engine(oplog_max_entries=500).start()
    yield engine
    engine.stop()


def seed(rows: Collection[dict[str, Any]], *documents: dict[str, Any]) -> None:
    """Documents that exist before anybody subscribes.

    A live tail opens at the deployment's time, inclusively, so the very last write before it may still be told to a
    fresh subscriber: something else is written behind them.
    """
    rows.insert_many(documents)
    rows.database["unrelated"].insert_one({})
