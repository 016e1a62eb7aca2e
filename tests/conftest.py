"""What every test of the suite shares, and nothing that belongs to one part of it."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.support.engine"]

# Examples are bounded by number, never by time: the machine is shared and a slow example is not a wrong one. Their
# number keeps `make test` short; the long forms of `make verify` set their own.
settings.register_profile(
    "default", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
# A run that nobody watches must not fail by chance on a change that has nothing to do with it; developers search.
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")
