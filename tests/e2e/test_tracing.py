"""A service whose environment names a collector sends its spans there, over OTLP, the last ones while it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.service import Service, client_of

EXPECTED = {"feedsvc.upgrade", "feedsvc.subscribe", "feedsvc.request"}


class Collector:
    """Takes OTLP over HTTP. `names` are those of the spans so far, `services` who sent them."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.services: set[str] = set()
        self.complete = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                return None

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def take(self, path: str, body: bytes) -> None:
        assert path == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            attributes = {each.key: each.value.string_value for each in resource.resource.attributes}
            self.services.add(attributes["service.name"])
            self.names |= {span.name for scope in resource.scope_spans for span in scope.spans}
        if self.names >= EXPECTED:
            self.complete.set()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.close()


@pytest.mark.verify
@pytest.mark.parametrize("sent", ["soon", "at the end"])
async def test_spans_reach_the_collector(
    mongodb_uri: str, fresh_database: str, tmp_path: Path, collector: Collector, sent: str
) -> None:
    service = Service(mongodb_uri, tmp_path)
    delay_ms = {"soon": "100", "at the end": "60000"}[sent]
    service.environment |= {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": delay_ms,
        "NO_PROXY": "127.0.0.1",
    }
    try:
        service.start()
        async with client_of(service, fresh_database) as client:
            await client.subscribe("orders")
        assert service.get("/v1/status")[0] == 401
        if sent == "at the end":
            assert not collector.names
            assert service.stop() == 0
        assert collector.complete.wait(15)
        assert collector.services == {"feedsvc"}
    finally:
        service.kill()
