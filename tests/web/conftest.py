"""These tests run on the loop of the service: what a transport does is uvloop's, and a fan-out goes past it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from tests.support.transports import CarriedTransport


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def carried() -> AsyncIterator[CarriedTransport]:
    transport = CarriedTransport()
    await transport.open()
    yield transport
    await transport.close()
