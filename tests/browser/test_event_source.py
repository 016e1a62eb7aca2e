"""A browser's own `EventSource` on `/v1/sse`, from a page of another origin, with a ticket (protocol.md, 2 and 10)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page
from pymongo import MongoClient

from tests.support.engine import Engine
from tests.support.ports import free_port
from tests.support.service import ONE_DATABASE_PER_TENANT, Service, make_jwt

pytestmark = [pytest.mark.verify, pytest.mark.asyncio(loop_scope="module")]

WITHIN_S = 20.0
TENANT = "browser"
STREAMS = 3
PAGE = """<!doctype html><title>app</title><script>
const KINDS = ["welcome", "subscribed", "live", "event", "checkpoint", "heartbeat", "resync", "unsubscribed", "goaway",
               "close"];
const seen = [];
let source;
async function follow(service, jwt, query) {
  const asked = {method: "POST", headers: {Authorization: `Bearer ${jwt}`}};
  const {ticket} = await (await fetch(`${service}/v1/tickets`, asked)).json();
  open(`${service}/v1/sse?${query}&ticket=${ticket}`);
}
function open(url) {
  source = new EventSource(url);
  for (const kind of KINDS) source.addEventListener(kind, ({data}) => seen.push(JSON.parse(data)));
  source.addEventListener("error", () => seen.push({type: "error", state: source.readyState}));
}
</script>"""


class Tab:
    """The page, and what its EventSource has dispatched so far."""

    def __init__(self, page: Page, service: Service) -> None:
        self._page = page
        self._service = f"http://127.0.0.1:{service.port}"

    async def follow(self, query: str, **claims: Any) -> None:
        jwt = make_jwt(TENANT, **claims)
        await self._page.evaluate("([...given]) => follow(...given)", [self._service, jwt, query])

    async def open(self, query: str) -> None:
        await self._page.evaluate("url => open(url)", f"{self._service}/v1/sse?{query}")

    async def seen(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await self._page.evaluate("seen")
        return found

    async def until(self, kind: str, count: int = 1) -> list[dict[str, Any]]:
        """All frames, once so many are of this kind."""
        expression = "([kind, count]) => seen.filter(frame => frame.type === kind).length >= count"
        await self._page.wait_for_function(expression, arg=[kind, count], timeout=WITHIN_S * 1000)
        return await self.seen()

    async def ends(self) -> list[tuple[int, str]]:
        """Code and action of each stream that there was."""
        seen = await self.seen()
        found = [(frame["code"], frame["action"]) for frame in seen if frame["type"] == "close"]
        assert len(found) == [frame["type"] for frame in seen].count("welcome")
        return found

    async def closed(self) -> None:
        """The EventSource has given up: `readyState` is CLOSED."""
        await self._page.wait_for_function("source.readyState === 2", timeout=WITHIN_S * 1000)


def topic(collection: str) -> str:
    return "topic=" + json.dumps({"collection": collection}, separators=(",", ":"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def origins() -> AsyncIterator[tuple[str, str]]:
    """Two origins that serve the page; the first one is allowed."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(PAGE)}\r\nConnection: close\r\n\r\n"
        writer.write((head + PAGE).encode())
        await writer.drain()
        writer.close()

    ports = free_port(), free_port()
    servers = [await asyncio.start_server(serve, "127.0.0.1", port) for port in ports]
    yield f"http://localhost:{ports[0]}", f"http://localhost:{ports[1]}"
    for server in servers:
        server.close()


@pytest.fixture(scope="module")
def orders(engine: Engine) -> Iterator[Any]:
    with MongoClient[dict[str, Any]](engine.uri) as client:
        yield client[TENANT]["orders"]
        client.drop_database(TENANT)


@pytest.fixture(scope="module")
def service(
    engine: Engine, origins: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    directory: Path = tmp_path_factory.mktemp("event_source")
    with Service(
        engine.uri,
        directory,
        ONE_DATABASE_PER_TENANT,
        allowed_origins=origins[0],
        max_age="3",
        max_snapshot_bytes="2000",
        heartbeat_interval="1",
    ) as service:
        yield service


@pytest_asyncio.fixture(loop_scope="module")
async def tab(browser: Browser, service: Service, origins: tuple[str, str]) -> AsyncIterator[Tab]:
    page = await browser.new_page()
    await page.goto(origins[0])
    yield Tab(page, service)
    await page.close()


async def test_it_reconnects_by_itself_and_misses_nothing(tab: Tab, orders: Any) -> None:
    """Each stream ends after three seconds; the browser waits as it is told and comes back with the `id:` it has."""
    await tab.follow(topic("orders"))
    await tab.until("live")
    written = 0
    while [frame["type"] for frame in await tab.seen()].count("welcome") < STREAMS:
        await asyncio.to_thread(orders.insert_one, {"_id": written})
        written += 1
        await asyncio.sleep(0.1)  # the pace of the writes
    frames = await tab.until("event", written)
    events = [frame["event"]["documentKey"]["_id"] for frame in frames if frame["type"] == "event"]
    assert events == list(range(written))
    kinds = [frame["type"] for frame in frames]
    assert written > 2 * STREAMS
    assert "heartbeat" in kinds
    assert "resync" not in kinds
    assert [frame["resumed"] for frame in frames if frame["type"] == "subscribed"][1:] == [True] * (
        kinds.count("subscribed") - 1
    )
    assert {frame["code"] for frame in frames if frame["type"] == "close"} == {4205}
    assert {frame["state"] for frame in frames if frame["type"] == "error"} == {0}, "it goes on connecting"


async def test_a_jwt_that_has_expired_stops_it(tab: Tab) -> None:
    """`close` 4101; the browser comes back once and gets 401, which ends an EventSource."""
    await tab.follow(topic("orders"), ttl_s=2)
    await tab.closed()
    assert await tab.ends() == [(4101, "authenticate")]


async def test_what_shall_not_come_back_gets_204_and_stops(tab: Tab, orders: Any) -> None:
    """A snapshot that is too large to be ever given: `close` 4000, and the `id:` of it tells the next request."""
    large = [{"text": "x" * 500} for _ in range(10)]
    await asyncio.to_thread(orders.database["large"].insert_many, large)
    await tab.follow(f"{topic('large')}&snapshot=always")
    await tab.closed()
    assert await tab.ends() == [(4000, "stop")]


async def test_a_page_of_another_origin_gets_nothing(
    browser: Browser, service: Service, origins: tuple[str, str]
) -> None:
    """Neither a ticket nor, with one that it has stolen, a stream."""
    page = await browser.new_page()
    await page.goto(origins[1])
    foreign = Tab(page, service)
    with pytest.raises(Exception, match="Failed to fetch"):
        await foreign.follow(topic("orders"))
    allowed = await browser.new_page()
    await allowed.goto(origins[0])
    ticket = await allowed.evaluate(
        """async ([service, jwt]) => (await (await fetch(`${service}/v1/tickets`,
           {method: "POST", headers: {Authorization: `Bearer ${jwt}`}})).json()).ticket""",
        [f"http://127.0.0.1:{service.port}", make_jwt(TENANT)],
    )
    await foreign.open(f"{topic('orders')}&ticket={ticket}")
    await foreign.closed()
    assert await foreign.seen() == [{"type": "error", "state": 2}]
    for each in (page, allowed):
        await each.close()
