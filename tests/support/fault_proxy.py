"""A TCP proxy that misbehaves on command: between a service and its engine, or between a client and a service.

It runs in a thread with a loop of its own, so a test may block and several processes may use it. Faults apply to the
connections that are open now and, where it says so, to new ones; `heal` ends every fault but cuts and half-open links.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Literal

from tests.support.resets import resets_when_closed

_CHUNK_BYTES = 64 << 10

Direction = Literal["up", "down"]


class _Link:
    """One client socket and its socket to the target."""

    def __init__(self, proxy: FaultProxy, client: asyncio.StreamWriter, target: asyncio.StreamWriter) -> None:
        self.proxy = proxy
        self.writers = (client, target)
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.dead = False

    def die(self) -> None:
        self.dead = True
        self.flowing.clear()

    def reset(self) -> None:
        """RST to both sides: nothing is flushed."""
        for writer in self.writers:
            sock = writer.get_extra_info("socket")
            if not writer.transport.is_closing():
                resets_when_closed(sock)
            writer.transport.abort()

    def close(self) -> None:
        """What was written still arrives."""
        for writer in self.writers:
            writer.close()

    async def pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        proxy = self.proxy
        while True:
            chunk = await reader.read(_CHUNK_BYTES)
            await self.flowing.wait()
            if not chunk:
                if writer.can_write_eof():
                    writer.write_eof()
                return
            if proxy.bytes_per_s is not None:
                await asyncio.sleep(len(chunk) / proxy.bytes_per_s)
            proxy.transferred[direction] += len(chunk)
            if proxy.duplicates[direction] > 0:
                proxy.duplicates[direction] -= 1
                writer.write(chunk)
            writer.write(chunk)
            await writer.drain()


class FaultProxy:
    """Use as a context manager; `port` is where it listens, `target_port` where it connects to (both on loopback)."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self.accepted = 0
        self.bytes_per_s: float | None = None
        self.duplicates: dict[Direction, int] = {"up": 0, "down": 0}
        self.transferred: dict[Direction, int] = {"up": 0, "down": 0}
        self._refusing = False
        self._stalled = False
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._server: asyncio.Server | None = None

    @property
    def links(self) -> int:
        """Connections that are open now."""
        return len(self._links)

    def cut(self) -> None:
        """Reset every open connection."""
        self._each(_Link.reset)

    def half_open(self) -> None:
        """Open connections stay open and carry nothing from now on, for ever; new ones work."""
        self._each(_Link.die)

    def stall(self) -> None:
        """Nothing moves, on new connections neither, until `heal`; then everything that waited does."""

        def act() -> None:
            self._stalled = True
            for link in self._links:
                link.flowing.clear()

        self._call(act)

    def slow(self, bytes_per_s: float) -> None:
        self._call(lambda: setattr(self, "bytes_per_s", bytes_per_s))

    def duplicate_next(self, direction: Direction, count: int = 1) -> None:
        """Send the next chunks of a direction twice: no peer may take that for sense, or hang on it."""
        self._call(lambda: self.duplicates.__setitem__(direction, count))

    def refuse(self) -> None:
        """Reset new connections at once."""
        self._call(lambda: setattr(self, "_refusing", True))

    def heal(self) -> None:
        def act() -> None:
            self._stalled = self._refusing = False
            self.bytes_per_s = None
            self.duplicates = {"up": 0, "down": 0}
            for link in self._links:
                if not link.dead:
                    link.flowing.set()

        self._call(act)

    def _each(self, act: Callable[[_Link], None]) -> None:
        def run() -> None:
            for link in list(self._links):
                act(link)

        self._call(run)

    def _call(self, act: Callable[[], object]) -> None:
        """Run on the proxy's loop and wait for it."""
        done: Future[None] = Future()

        def run() -> None:
            try:
                act()
            except Exception as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        self._loop.call_soon_threadsafe(run)
        done.result(10)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self._refusing:
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(self, writer, up_writer)
        if self._stalled:
            link.flowing.clear()
        self._links.add(link)
        try:
            await asyncio.gather(
                link.pump(reader, up_writer, "up"),
                link.pump(up_reader, writer, "down"),
                return_exceptions=False,
            )
            link.close()
        except (OSError, asyncio.CancelledError):
            link.reset()
        finally:
            self._links.discard(link)

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=_CHUNK_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
