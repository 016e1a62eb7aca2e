"""A client from its socket to the line in the log: what goes wrong at one end ends that client alone."""

from __future__ import annotations

from typing import Any

import pytest

from feedsvc.adapters.web.asgi_connection import AsgiConnection
from feedsvc.adapters.web.ws import _Held
from feedsvc.runtime.client import Client
from feedsvc.runtime.lifecycle import Lifecycle
from tests.runtime.world import running


@pytest.mark.parametrize("where", ["start", "receive"])
async def test_a_fault_of_ours_closes_and_is_reported(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """At the start, too: no deadline is set yet, so a socket that was accepted would stay for ever."""

    def fail(*arguments: object) -> None:
        raise RuntimeError("a fault")

    async def send(message: Any) -> None:
        return None

    monkeypatch.setattr(Client, where, fail)
    async with running() as world:
        lifecycle = Lifecycle()
        connection = AsgiConnection(send, 1 << 16)
        held = _Held(world.context, connection, lifecycle)
        held.start(None)
        held.receive("{}")
        assert connection.close_sent is not None and connection.close_sent[0] == 4203
        assert world.reported("client.failed")
        held.ended(1005, "")
        assert not lifecycle.clients
