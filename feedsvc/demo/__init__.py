"""`feedsvc demo`: a database, sample orders and the service, for one person on one machine."""

from __future__ import annotations

from feedsvc.demo.run import run_demo

__all__ = ["run_demo"]
