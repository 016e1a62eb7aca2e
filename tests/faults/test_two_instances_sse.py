"""Two instances, streams of server-sent events that are cut, instances that die (issue 2's must show 1 by
`Last-Event-ID`)."""

from __future__ import annotations

import os
import ssl

import httpx
import pytest

from tests.faults.numbers import Reader
from tests.faults.test_two_instances import drop_and_resume, synced_engine, two_services
from tests.support.engine import Engine
from tests.support.service import Service
from tests.support.sse import Stream, arguments

__all__ = ["synced_engine", "two_services"]

_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""httpx makes a context for each client, and reads all certificates of the machine for it."""

SHORT = os.environ.get("VERIFY_SCALE") == "short"


class StreamReader(Reader):
    """The same reader over `/v1/sse`: it comes back with the last `id:` that it has read."""

    async def _one_connection(self, service: Service, quota: int) -> None:
        given = arguments(self.tenant, self.topic, last_event_id=self.token)
        timeout = httpx.Timeout(5, read=self.silent_s)
        try:
            async with (
                httpx.AsyncClient(trust_env=False, verify=_NO_TLS, timeout=timeout) as client,
                client.stream("GET", self._url(service), **given) as response,
            ):
                if response.status_code != 200:
                    assert response.status_code == 503, await response.aread()
                    raise ConnectionError(response.status_code)
                await self._listen(Stream(response), quota)
        except (httpx.TransportError, EOFError) as error:
            raise ConnectionError(repr(error)) from error

    def _url(self, service: Service) -> str:
        return f"http://127.0.0.1:{self.port_of(service)}/v1/sse"

    async def _listen(self, stream: Stream, quota: int) -> None:
        while len(self.got) < self.total:
            if quota <= 0 and self.token is not None:
                self.drops += 1
                return
            quota -= self._take(await stream.receive(self.silent_s))
            self.token = stream.last_event_id or self.token


@pytest.mark.verify
async def test_streams_that_are_cut_and_dying_instances_lose_nothing(
    synced_engine: Engine, two_services: list[Service], fresh_database: str
) -> None:
    """Every number exactly once after dropping repeated `_id`s, in order, no resync."""
    await drop_and_resume(
        synced_engine,
        two_services,
        fresh_database,
        total=4_000 if SHORT else 20_000,
        drops=200,
        kill_every_s=3.0,
        reader_class=StreamReader,
    )
