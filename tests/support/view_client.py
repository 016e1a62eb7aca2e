"""A client that keeps a `View` and comes back to it, whatever happens to its connections.

Everything random comes from its `rng`: it is cut between any two frames, within a snapshot, or after a resync before it
has fetched; a crash takes it back to what was saved, a mere cut does not; it comes back to either instance, with its
token, with one of another topic, with none, or for a snapshot. It does not wait `retryAfterMs`, which spares the
database and is no part of what is right.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from tests.support.frames import received
from tests.support.service import Service, make_jwt
from tests.support.view import Documents, View, documents_of

Fetch = Callable[[Mapping[str, Any]], Awaitable[Documents]]
"""The state as of a `clusterTime` or later."""

_SILENT_S = 30.0
_RETRY_S = 0.05
_CUT_EVERY = 15
"""Frames, about."""


class Progress:
    """How many writes there are, for clients that stay away until some more; `ending` calls all of them back."""

    def __init__(self) -> None:
        self.written = 0
        self.ending = False
        self._moved = asyncio.Condition()
        self._away = 0

    async def note(self, written: int, *, ending: bool = False) -> None:
        async with self._moved:
            self.written, self.ending = written, ending
            self._moved.notify_all()

    async def reach(self, written: int) -> None:
        async with self._moved:
            await self._moved.wait_for(lambda: self.ending or self.written >= written)

    async def stay_away(self, written: int) -> None:
        """As `reach`; `stayed_away` counts who does."""
        async with self._moved:
            self._away += 1
            self._moved.notify_all()
        await self.reach(written)

    async def stayed_away(self, count: int) -> None:
        """Until so many stay away, or have done so."""
        async with self._moved:
            await self._moved.wait_for(lambda: self._away >= count)


class ViewClient:
    """Keeps a `View` until `progress` is ending and the event of the document `last` has come, behind all others.

    `touch` writes that document again: a state that begins at the end has no event of it yet. `foreign_token` gives
    a resume token of another topic of the tenant. `own`: fields that every document has, with these values. `hidden`:
    a text that no frame holds. `snapshots`: whether snapshots are asked for; else the client fetches every state
    itself. `away_until`: it is cut as soon as it is live, stays away until there are so many writes, and comes back
    with its own token, then and later.
    """

    def __init__(
        self,
        services: Sequence[Service],
        tenant: str,
        topic: Mapping[str, Any],
        rng: random.Random,
        progress: Progress,
        *,
        fetch: Fetch,
        touch: Callable[[], Awaitable[None]],
        last: str,
        snapshots: bool,
        strict: bool = True,
        away_until: int = 0,
        own: Mapping[str, Any],
        hidden: str | None = None,
    ) -> None:
        self.view = View(strict=strict)
        self.figures = self.view.figures
        self.foreign_token: Callable[[], str | None] = lambda: None
        self.fidelity: Mapping[str, Any] = {}
        self._services = services
        self._tenant = tenant
        self.topic = topic
        self._rng = rng
        self._progress = progress
        self._fetch = fetch
        self._touch = touch
        self.last = last
        self._snapshots = snapshots
        self._away_until = away_until
        self._own = own
        self._hidden = hidden
        self._done = False

    async def run(self) -> None:
        while not self._done:
            try:
                await self._one_connection(self._rng.choice(self._services))
            except (OSError, WebSocketException):
                self.figures["lost connections"] += 1
                await asyncio.sleep(_RETRY_S)
                continue
            if self._done or self.view.ended:
                continue
            self.figures["cuts"] += 1
            if self._progress.written < self._away_until:
                if self.view.token is not None:
                    await self._progress.stay_away(self._away_until)
                continue
            if self._rng.random() < 0.4:
                self.view.crash()
                self.figures["crashes"] += 1
            if self._rng.random() < 0.3:
                await self._progress.reach(self._progress.written + self._rng.randint(1, 30))

    def _request(self) -> dict[str, Any]:
        """Where to begin: mostly with the client's own token, and without one for a new state."""
        rng, own = self._rng, self.view.token
        if own is None or (rng.random() < 0.1 and not self._away_until):
            if not self._snapshots or rng.random() < 0.4:
                return {}
            return {
                "snapshot": "always",
                **({"resumeAfter": own} if own is not None and rng.random() < 0.3 else {}),
            }
        foreign = self.foreign_token() if rng.random() < 0.15 and not self._away_until else None
        on_resync = {"snapshot": "onResync"} if self._snapshots and rng.random() < 0.6 else {}
        return {rng.choice(("resumeAfter", "startAfter")): foreign or own, **on_resync}

    async def _one_connection(self, service: Service) -> None:
        url = f"ws://127.0.0.1:{service.port}/v1/ws"
        headers = {"Authorization": f"Bearer {make_jwt(self._tenant)}"}
        async with connect(
            url, additional_headers=headers, proxy=None, max_size=None, close_timeout=1
        ) as socket:
            position = self._request()
            self.view.asked(position.get("resumeAfter") or position.get("startAfter"))
            await socket.send(json.dumps({"type": "subscribe", "id": "v", "topic": self.topic, **position}))
            frames_left = self._rng.randint(2, 2 * _CUT_EVERY)
            while await self._frame(socket):
                frames_left -= 1
                if frames_left <= 0 and not self._progress.ending:
                    break
            socket.transport.abort()

    async def _frame(self, socket: ClientConnection) -> bool:
        """Take in one frame; whether the connection is used on."""
        try:
            text = await asyncio.wait_for(socket.recv(decode=True), _SILENT_S)
        except TimeoutError:
            raise AssertionError(f"nothing came for {_SILENT_S} s: {self.topic}, {self.view}") from None
        assert self._hidden is None or self._hidden not in text, text
        frame = received(text)
        for document in documents_of(frame):
            assert all(document[name] == value for name, value in self._own.items()), frame
        if frame["type"] in ("welcome", "heartbeat"):
            return True
        if frame["type"] == "error":
            assert frame["retryable"], frame
            self.figures["refused for now"] += 1
            await asyncio.sleep(_RETRY_S)
            return False
        if frame["type"] == "subscribed":
            self.fidelity = frame["fidelity"]
        if self.view.apply(frame):
            if self._chance(0.2):
                self.figures["cut before the fetch"] += 1
                return False
            self.view.fetched(await self._fetch(frame["clusterTime"]), frame["token"])
            await self._begun()
        elif frame["type"] == "snapshotEnd":
            await self._begun()
        elif frame["type"] == "snapshot" and self._chance(0.3):
            self.figures["cut snapshots"] += 1
            return False
        elif frame["type"] in ("event", "checkpoint") and self._chance(0.2):
            self.view.save()
        elif frame["type"] == "live" and self._progress.written < self._away_until:
            return False
        self._done = self._progress.ending and self.last in self.view.event_keys
        return not (self._done or self.view.ended)

    def _chance(self, probability: float) -> bool:
        return not self._progress.ending and self._rng.random() < probability

    async def _begun(self) -> None:
        """A new state stands."""
        if self._rng.random() < 0.5:
            self.view.save()
        if self._progress.ending:
            await self._touch()
