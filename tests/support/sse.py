"""A bare client of `/v1/sse`: the event stream format by the letter (WHATWG HTML, section 9.2.6), over httpx.

What it dispatches is what an EventSource would: a block without data moves `last_event_id` and nothing else. Every
event is held against the schemas of the protocol (`tests.support.frames`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx

from tests.support.frames import Frame, received
from tests.support.service import FRAME_TIMEOUT_S, Address, make_jwt


class Parser:
    """Lines to events. `feed` returns what is dispatched: (event type, data, last event id)."""

    def __init__(self) -> None:
        self.retry_ms: int | None = None
        self.last_event_id = ""
        self.blocks = 0
        """Ends of blocks, whether they dispatched anything or not."""
        self._id = ""
        self._rest = ""
        self._type = ""
        self._data: list[str] = []

    def feed(self, text: str) -> list[tuple[str, str, str]]:
        self._rest += text
        lines = self._rest.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._rest = lines.pop()
        found = []
        for line in lines:
            if line:
                self._field(line)
            elif (event := self._dispatch()) is not None:
                found.append(event)
        return found

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "event":
                self._type = value
            case "data":
                self._data.append(value)
            case "id":
                self._id = value
            case "retry":
                self.retry_ms = int(value)
            case _:
                raise AssertionError(f"a field that no client knows: {line!r}")

    def _dispatch(self) -> tuple[str, str, str] | None:
        self.blocks += 1
        self.last_event_id = self._id
        kind, data = self._type, "\n".join(self._data)
        self._type, self._data = "", []
        return (kind or "message", data, self.last_event_id) if data else None


class Stream:
    """One response that is an event stream."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.parser = Parser()
        self.seen: list[Frame] = []
        self.ids: list[str] = []
        """The last event id behind each of `seen`."""
        self._chunks = response.aiter_text()
        self._events: list[tuple[str, str, str]] = []

    @property
    def last_event_id(self) -> str:
        """As an EventSource would send it now: of what was read so far."""
        return self.ids[-1] if self.ids else self.parser.last_event_id

    async def receive(self, timeout_s: float = FRAME_TIMEOUT_S) -> Frame:
        """The next event. `EOFError` at the end of the response."""
        async with asyncio.timeout(timeout_s):
            while not self._events:
                await self._more()
        kind, data, last_id = self._events.pop(0)
        frame = received(data, event=kind)
        self.seen.append(frame)
        self.ids.append(last_id)
        return frame

    async def prelude(self) -> str:
        """The id that came before any event."""
        async with asyncio.timeout(FRAME_TIMEOUT_S):
            while not self.parser.blocks:
                await self._more()
        return self._events[0][2] if self._events else self.parser.last_event_id

    async def until(self, wanted: Callable[[Frame], bool] | str, timeout_s: float = FRAME_TIMEOUT_S) -> Frame:
        """The next event of a type, or for which `wanted` holds."""
        matches = (lambda frame: frame["type"] == wanted) if isinstance(wanted, str) else wanted
        async with asyncio.timeout(timeout_s):
            while True:
                frame = await self.receive(timeout_s)
                if matches(frame):
                    return frame

    async def live(self, count: int = 1) -> list[Frame]:
        """All `count` topics are live; their `subscribed`, by index."""
        while self.types().count("live") < count:
            await self.receive()
        found = [frame for frame in self.seen if frame["type"] == "subscribed"]
        return sorted(found, key=lambda frame: int(frame["id"]))

    async def events(self, count: int) -> list[Frame]:
        """The first `count` changes of this stream."""
        while len(seen := [frame["event"] for frame in self.seen if frame["type"] == "event"]) < count:
            await self.receive()
        return seen

    async def to_the_end(self) -> list[Frame]:
        """Read until the response ends."""
        with contextlib.suppress(EOFError):
            while True:
                await self.receive()
        return self.seen

    def types(self) -> list[str]:
        return [frame["type"] for frame in self.seen]

    async def _more(self) -> None:
        try:
            text = await anext(self._chunks)
        except (StopAsyncIteration, httpx.ReadError, httpx.RemoteProtocolError):
            raise EOFError from None
        self._events += self.parser.feed(text)


def arguments(
    tenant: str, *topics: Any, last_event_id: str | None = None, **parameters: str
) -> dict[str, Any]:
    """Of a GET: `httpx`'s arguments but the URL. `jwt=` or claims by `claims=` are not parameters of the query."""
    query: Sequence[tuple[str, str]] = [
        *(
            ("topic", json.dumps({"collection": topic} if isinstance(topic, str) else topic))
            for topic in topics
        ),
        *parameters.items(),
    ]
    headers = {"Authorization": f"Bearer {make_jwt(tenant)}"}
    if last_event_id is not None:
        headers["Last-Event-ID"] = last_event_id
    return {"params": query, "headers": headers}


@contextlib.asynccontextmanager
async def stream_of(
    service: Address, tenant: str, *topics: Any, last_event_id: str | None = None, **parameters: str
) -> AsyncIterator[Stream]:
    """An open stream by GET, cut at the end of the block."""
    given = arguments(tenant, *topics, last_event_id=last_event_id, **parameters)
    async with opened(service, "GET", **given) as stream:
        yield stream


@contextlib.asynccontextmanager
async def opened(service: Address, method: str, **given: Any) -> AsyncIterator[Stream]:
    async with (
        httpx.AsyncClient(trust_env=False, verify=False, timeout=httpx.Timeout(30)) as client,
        client.stream(method, sse_url(service), **given) as response,
    ):
        if response.status_code != 200:
            await response.aread()
            raise AssertionError((response.status_code, response.text))
        yield Stream(response)


async def refused(service: Address, tenant: str, *topics: Any, **more: Any) -> httpx.Response:
    """The answer to a GET that begins no stream."""
    given = arguments(tenant, *topics, **more)
    async with (
        httpx.AsyncClient(trust_env=False, verify=False) as client,
        client.stream("GET", sse_url(service), **given) as response,
    ):
        assert response.status_code != 200
        await response.aread()
        return response


def sse_url(service: Address) -> str:
    return f"http://127.0.0.1:{service.port}/v1/sse"
