"""`feedsvc doctor`: tries what the service will need, and says of each thing what was found and what to do.

It reads and writes nothing but change streams and queries of no effect. `catalogue.py` is the list of what is looked
at, and the documentation is made of it. `run.py` goes through it within a time; configuration, machine, keys and
deployment have a module each.
"""

from __future__ import annotations

from feedsvc.doctor.findings import Report
from feedsvc.doctor.run import Options, diagnose

__all__ = ["Options", "Report", "diagnose"]
