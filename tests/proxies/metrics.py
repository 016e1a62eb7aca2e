"""What an instance says of itself on its metrics page."""

from __future__ import annotations

from tests.support.service import Service


def figure(service: Service, name: str) -> int:
    """The sum of a metric over its labels; 0 where it is not there yet."""
    lines = service.get("/metrics")[1].splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith((f"{name} ", f"{name}{{"))))


def connections(service: Service) -> int:
    """Clients that it holds."""
    return figure(service, "feedsvc_connections")
