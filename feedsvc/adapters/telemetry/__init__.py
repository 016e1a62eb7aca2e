"""What an operator sees from outside: metrics and logs. The only owner of prometheus_client and structlog."""

from __future__ import annotations

from feedsvc.adapters.telemetry.logs import configure, report
from feedsvc.adapters.telemetry.metrics import PrometheusMetrics

__all__ = ["PrometheusMetrics", "configure", "report"]
