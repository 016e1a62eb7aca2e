"""Spans of OpenTelemetry: of requests and of what they wait for, never of a single event.

Nothing here is needed: without the extra `otel` there are no spans, and with it only where somebody wants them, which
the standard variables say. With OTEL_EXPORTER_OTLP_ENDPOINT (or its _TRACES_ form) the service sets up the SDK itself
and sends OTLP over HTTP; a provider that is there already (`opentelemetry-instrument`) is used as it is. Sampling,
resource and headers are the SDK's variables (OpenTelemetry specification, "Environment Variable Specification").

A span holds names, codes and kinds of failures; what a failure says is in the log, which is redacted. Callers' trace
headers are not followed: a client would decide what is sampled.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from feedsvc.core.errors import Refusal
from feedsvc.ports import NO_TRACER, Note, Tracer

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider as SdkProvider
    from opentelemetry.trace import TracerProvider

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_DISABLED = "OTEL_SDK_DISABLED"


class OtelTracer:
    """`ports.Tracer` on a provider of OpenTelemetry. A refusal is an answer, not an error of the service."""

    def __init__(self, provider: TracerProvider, version: str) -> None:
        self._tracer = provider.get_tracer("feedsvc", version)

    def span(self, name: str, **attributes: str | int | bool) -> AbstractContextManager[Note]:
        return self._span(name, attributes)

    @contextmanager
    def _span(self, name: str, attributes: Mapping[str, str | int | bool]) -> Iterator[Note]:
        from opentelemetry.trace import Status, StatusCode

        started = self._tracer.start_as_current_span(
            name, attributes=_named(attributes), record_exception=False, set_status_on_exception=False
        )
        with started as span:

            def note(**found: str | int | bool) -> None:
                span.set_attributes(_named(found))

            try:
                yield note
            except Refusal as refusal:
                note(refused=refusal.code)
                raise
            except asyncio.CancelledError:
                note(cancelled=True)
                raise
            except Exception as error:
                span.set_status(Status(StatusCode.ERROR, type(error).__name__))
                raise


def _named(attributes: Mapping[str, str | int | bool]) -> dict[str, str | int | bool]:
    return {f"feedsvc.{name}": value for name, value in attributes.items()}


class Tracing:
    """The tracer of this process, by its environment. `close` at the end: what is left is sent meanwhile."""

    def __init__(self, environment: Mapping[str, str], version: str) -> None:
        self.tracer: Tracer = NO_TRACER
        self._provider: SdkProvider | None = None
        if environment.get(_DISABLED, "").lower() == "true":
            return
        try:
            from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider
        except ImportError:
            return
        provided = get_tracer_provider()
        if not isinstance(provided, ProxyTracerProvider):
            self.tracer = OtelTracer(provided, version)
        elif any(environment.get(name) for name in _ENDPOINTS):
            self._provider = _own_provider(version)
            self.tracer = OtelTracer(self._provider, version)

    def close(self) -> None:
        """Never waits: the other end may be away, and the process ends without it."""
        if self._provider is not None:
            threading.Thread(target=self._provider.shutdown, name="tracing", daemon=True).start()


def _own_provider(version: str) -> SdkProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({"service.version": version})
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "feedsvc"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
