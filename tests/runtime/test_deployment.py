"""What is known of the deployment: asked again after any failure, and told once to the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from feedsvc.core.errors import Refusal
from feedsvc.core.tokens import source_id
from feedsvc.ports import OplogWindow, SourceRefused, SourceUnavailable
from feedsvc.runtime import deployment as deployment_module
from feedsvc.runtime.deployment import Deployment
from feedsvc.testing import ManualClock, MemoryOplog, MemorySource
from tests.runtime.world import until


class Answers(MemorySource):
    """A source that counts questions and fails as told."""

    def __init__(self, oplog: MemoryOplog) -> None:
        super().__init__(oplog)
        self.asked: list[str] = []
        self.reported: list[tuple[str, object]] = []
        self.faults: list[Exception] = []

    def report(self, event: str, fields: Mapping[str, object]) -> None:
        self.reported.append((event, fields.get("error")))

    def note(self, question: str) -> None:
        self.asked.append(question)
        if self.faults:
            raise self.faults.pop(0)

    async def identity(self) -> str:
        self.note("identity")
        return await super().identity()

    async def oplog_window(self, *, first_age_s: float = 0.0) -> OplogWindow | None:
        self.note("window")
        return await super().oplog_window(first_age_s=first_age_s)

    async def operation_time(self) -> int:
        self.note("time")
        return await super().operation_time()


def make() -> tuple[Deployment, Answers]:
    source = Answers(MemoryOplog())
    deployment = Deployment(source, ManualClock(), lambda: 0.0, source.report, epoch="e1", level="collection")
    return deployment, source


@asynccontextmanager
async def run(deployment: Deployment) -> AsyncIterator[None]:
    closing = asyncio.Event()
    task = asyncio.create_task(deployment.run(closing))
    yield
    closing.set()
    await task


async def test_the_source_is_known_once_identified() -> None:
    """Before that a subscription is refused for now; then it names deployment, epoch and level."""
    deployment, source = make()
    with pytest.raises(Refusal) as caught:
        _ = deployment.source
    assert caught.value.code == "source_unavailable"
    async with run(deployment):
        await deployment.ready()
        assert deployment.source == source_id("memory", "e1", "collection")
        await until(lambda: deployment.pulse.window is not None)
        assert deployment.pulse.window == await source.oplog_window()


@pytest.mark.parametrize("fault", [SourceUnavailable("down"), SourceRefused("no"), RuntimeError("a bug")])
async def test_a_failure_is_asked_again(fault: Exception) -> None:
    """Whatever it is: without an identity nobody could ever subscribe."""
    deployment, source = make()
    source.faults = [fault]
    async with run(deployment):
        await until(lambda: deployment.failure is not None)
        assert deployment.failure is not None
        assert str(fault) in deployment.failure
        await deployment.ready()
        await until(lambda: deployment.failure is None)
    assert source.asked[:3] == ["identity", "identity", "time"]


async def test_an_outage_is_told_once_to_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nobody has subscribed; each other reason too, and the end of it."""
    monkeypatch.setattr(deployment_module, "BEAT_S", 0.001)
    deployment, source = make()
    source.faults = [SourceUnavailable("down")] * 3 + [SourceRefused("who are you")]
    async with run(deployment):
        await until(lambda: deployment.failure is None and len(source.asked) > 20)
        source.faults = [SourceUnavailable("down")] * 2
        await until(lambda: not source.faults and deployment.failure is None)
    down, refused = "SourceUnavailable: down", "SourceRefused: who are you"
    assert source.reported == [
        ("source.failed", down),
        ("source.failed", refused),
        ("source.answers", None),
        ("source.failed", down),
        ("source.answers", None),
    ]


async def test_waiting_for_the_identity_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request is refused instead of hanging."""
    monkeypatch.setattr(deployment_module, "ANSWER_WITHIN_S", 0.01)
    deployment, _ = make()
    with pytest.raises(Refusal) as caught:
        await deployment.ready()
    assert caught.value.code == "source_unavailable"


async def test_the_operation_time_is_refused_while_the_source_is_away() -> None:
    """The driver's message is not for clients."""
    deployment, source = make()
    assert await deployment.operation_time() == source.oplog.now
    source.faults = [SourceUnavailable("mongodb://secret@host")]
    with pytest.raises(Refusal) as caught:
        await deployment.operation_time()
    assert caught.value.code == "source_unavailable"
    assert "secret" not in caught.value.message
