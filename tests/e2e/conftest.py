"""Fixtures of the end-to-end tests: the engine, and services as processes that never outlive their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine import Engine
from tests.support.service import Service

StartService = Callable[..., Service]


@pytest.fixture
def start_service(mongodb_uri: str, tmp_path: Path) -> Iterator[StartService]:
    """Starts `feedsvc serve` against the shared engine, or `uri=`; arguments as those of `Service`."""
    started: list[Service] = []

    def start(*, uri: str = mongodb_uri, **arguments: Any) -> Service:
        service = Service(uri, tmp_path, **arguments)
        started.append(service)
        return service.start()

    yield start
    for service in started:
        service.kill()


@pytest.fixture
def small_oplog() -> Iterator[Engine]:
    """An engine of its own whose oplog keeps few entries."""
    engine = Engine(oplog_max_entries=500).start()
    yield engine
    engine.stop()
