"""Spans of requests where OpenTelemetry is wanted and installed, with names and codes, and nothing else at all."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import opentelemetry.trace
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from feedsvc.adapters.telemetry.tracing import OtelTracer, Tracing
from feedsvc.adapters.web.spans import traced
from feedsvc.core.errors import Refusal
from feedsvc.core.limits import Limits
from feedsvc.ports import NO_TRACER
from tests.runtime.world import DATABASE, running, until
from tests.web.asking import application

KINDS = frozenset({"feedsvc.upgrade", "feedsvc.auth", "feedsvc.subscribe", "feedsvc.catch_up"}) | {
    "feedsvc.snapshot",
    "feedsvc.request",
}


class Spans:
    """What was exported, in memory."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._provider = TracerProvider(shutdown_on_exit=False)
        self._provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = OtelTracer(self._provider, "1.2.3")

    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[dict[str, Any]]:
        """The attributes of the spans of that name."""
        assert name in KINDS
        return [dict(span.attributes or {}) for span in self.all() if span.name == name]

    def close(self) -> None:
        self._provider.shutdown()


@pytest.fixture
def spans() -> Iterator[Spans]:
    found = Spans()
    yield found
    found.close()


def test_a_span_has_its_attributes_and_those_that_are_found_out(spans: Spans) -> None:
    with spans.tracer.span("feedsvc.request", method="GET") as note:
        note(status=200)
    (span,) = spans.all()
    assert dict(span.attributes or {}) == {"feedsvc.method": "GET", "feedsvc.status": 200}
    assert span.status.status_code is StatusCode.UNSET
    assert span.instrumentation_scope is not None and span.instrumentation_scope.name == "feedsvc"


def test_a_refusal_is_an_answer_and_a_fault_is_told_by_its_kind(spans: Spans) -> None:
    """What an exception says may quote somebody; the log has it, redacted."""
    for error in (Refusal("forbidden", "a-secret"), KeyError("a-secret")):
        with pytest.raises(type(error)), spans.tracer.span("feedsvc.request"):
            raise error
    refused, failed = spans.all()
    assert dict(refused.attributes or {}) == {"feedsvc.refused": "forbidden"}
    assert refused.status.status_code is StatusCode.UNSET
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "KeyError")
    assert "a-secret" not in refused.to_json() + failed.to_json()


async def test_credentials_and_subscriptions(spans: Spans) -> None:
    async with running(tracer=spans.tracer) as world:
        peer = await world.signed_in()
        await peer.subscribed("orders", topic={"filter": {"a-path": "a-value"}})
        peer.subscribe("nothing-of-the-policy", id="refused")
        await peer.frame("error")
        world.oplog.insert(DATABASE, "orders", {"_id": 1, "a-path": "a-value"})
        await peer.frame("event")
    assert len(spans.named("feedsvc.auth")) == 1
    subscribed, refused = spans.named("feedsvc.subscribe")
    assert subscribed.keys() == {"feedsvc.topic", "feedsvc.collection"}
    assert subscribed["feedsvc.collection"] == "orders"
    assert refused == {"feedsvc.refused": "unknown_collection"}
    assert {span.name for span in spans.all()} == {"feedsvc.auth", "feedsvc.subscribe"}, (
        "no span for an event"
    )
    text = "".join(span.to_json() for span in spans.all())
    for written in ("a-path", "a-value", "nothing-of-the-policy", "alice"):
        assert written not in text


async def test_snapshots_and_catch_ups(spans: Spans) -> None:
    limits = msgspec.structs.replace(Limits(), ring_records=2)
    async with running(limits, tracer=spans.tracer) as world:
        peer = await world.signed_in()
        token = (await peer.subscribed("orders"))["token"]
        for number in range(9):
            world.oplog.insert(DATABASE, "users", {"_id": number})
        await world.read_all()
        back = await world.signed_in()
        back.subscribe("orders", resumeAfter=token, topic={})
        assert (await back.frame("subscribed"))["resumed"] is True
        await back.frame("live")
        world.oplog.create(DATABASE, "users", images=True)
        back.subscribe("users", snapshot="always")
        await until(lambda: bool(spans.named("feedsvc.snapshot")))
        await until(lambda: bool(spans.named("feedsvc.catch_up")))
        assert spans.named("feedsvc.catch_up") == [{"feedsvc.level": "deployment"}]
        (snapshot,) = spans.named("feedsvc.snapshot")
        assert snapshot["feedsvc.ended"] is True and snapshot.keys() == {"feedsvc.topic", "feedsvc.ended"}


async def test_requests_are_named_after_routes(spans: Spans) -> None:
    """Probes, scrapes and streams have none."""
    async with application(tracer=spans.tracer) as asked:
        transport = httpx.ASGITransport(app=traced(asked.app, spans.tracer))
        async with httpx.AsyncClient(transport=transport, base_url="http://feedsvc") as client:
            for method, path in (
                ("GET", "/v1/status"),
                ("POST", "/v1/tickets"),
                ("GET", "/a-secret"),
                ("GET", "/healthz/ready"),
                ("GET", "/metrics"),
                ("GET", "/v1/sse"),
            ):
                await client.request(method, path)
            await client.get("/v1/status", headers={"Accept": "text/event-stream"})
    assert [tuple(found.values()) for found in spans.named("feedsvc.request")] == [
        ("/v1/status", "GET", 401),
        ("/v1/tickets", "POST", 401),
        ("other", "GET", 404),
    ]
    assert spans.named("feedsvc.upgrade") == [{"feedsvc.transport": "sse", "feedsvc.refused": "auth_invalid"}]


def test_an_application_without_a_tracer_is_left_as_it_is() -> None:
    app: Any = object()
    assert traced(app, NO_TRACER) is app


def test_the_null_object_notes_nothing() -> None:
    with NO_TRACER.span("feedsvc.request", path="/") as note:
        note(status=200)
    with pytest.raises(ValueError), NO_TRACER.span("feedsvc.request"):
        raise ValueError


ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


@pytest.mark.parametrize("environment", [{}, {**ENDPOINT, "OTEL_SDK_DISABLED": "true"}])
def test_nobody_wants_spans(environment: dict[str, str]) -> None:
    assert Tracing(environment, "1").tracer is NO_TRACER


def test_without_the_extra_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.setitem(sys.modules, name, None)
    tracing = Tracing(ENDPOINT, "1")
    assert tracing.tracer is NO_TRACER
    tracing.close()


def test_a_provider_that_is_there_is_used(monkeypatch: pytest.MonkeyPatch, spans: Spans) -> None:
    monkeypatch.setattr(opentelemetry.trace, "_TRACER_PROVIDER", spans._provider)
    with Tracing({}, "1").tracer.span("feedsvc.request"):
        pass
    assert len(spans.all()) == 1
