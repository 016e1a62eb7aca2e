from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from feedsvc.core.filters import parse
from feedsvc.core.limits import LIMITS, Limits, limits_table

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"

PROTOCOL_NUMBERS = {
    "FEEDSVC_CHECKPOINT_INTERVAL": 15,
    "FEEDSVC_HEARTBEAT_INTERVAL": 20,
    "FEEDSVC_STALL_AFTER": 5,
    "FEEDSVC_SLOW_AFTER": 30,
    "FEEDSVC_DRAIN": 30,
    "FEEDSVC_MAX_AGE": 3600,
    "FEEDSVC_PEER_TIMEOUT": 60,
    "FEEDSVC_MAX_TAILS": 64,
    "FEEDSVC_LOG_BYTES": 64 * 1024 * 1024,
    "FEEDSVC_MAX_EVENT_BYTES": 1024 * 1024,
    "FEEDSVC_MAX_REPLAY_BYTES": 1024 * 1024 * 1024,
    "FEEDSVC_MAX_SNAPSHOT_BYTES": 1024 * 1024 * 1024,
    "FEEDSVC_MAX_SNAPSHOT_DOCUMENTS": 10_000_000,
    "FEEDSVC_JWT_LEEWAY": 30,
    "FEEDSVC_JWKS_REFRESH": 300,
    "FEEDSVC_JWKS_STALE": 24 * 3600,
    "FEEDSVC_METRIC_TENANTS": 0,
    "FEEDSVC_ANNOUNCE": 0,
}


def test_the_struct_is_the_table() -> None:
    """`Limits` has the fields of the table, in its order, with its defaults."""
    fields = msgspec.structs.asdict(Limits())
    assert list(fields) == list(LIMITS)
    assert fields == {name: limit.default for name, limit in LIMITS.items()}


def test_protocol_defaults() -> None:
    """The configurable numbers and their defaults are those of protocol.md section 11."""
    found = {item.environment_variable: item.default for item in LIMITS.values() if item.environment_variable}
    assert found == PROTOCOL_NUMBERS


@pytest.mark.parametrize("name", LIMITS)
def test_each_limit_is_explained(name: str) -> None:
    """A limit has a reason, lies within its bounds, and its name carries the unit of time or size."""
    limit = LIMITS[name]
    assert limit.reason.endswith(".")
    assert "|" not in limit.reason
    if limit.environment_variable or limit.policy_key:
        assert limit.minimum <= limit.default <= limit.maximum
    assert name.endswith("_s") == (limit.unit == "seconds")
    assert name.endswith("_bytes") == (limit.unit == "bytes")
    assert name.endswith("_chars") == (limit.unit == "characters")
    assert re.fullmatch("[a-z_]+", name)


def test_document_contains_the_table() -> None:
    """docs/configuration.md shows exactly the generated table."""
    assert f"\n{limits_table()}\n" in DOCUMENT.read_text(encoding="utf-8")


def test_the_filter_parser_has_the_bounds_of_the_table() -> None:
    """The parser states its bounds itself; they are those of the table."""
    limits = Limits()
    assert (
        limits.filter_bytes,
        limits.filter_depth,
        limits.filter_in_values,
    ) == (parse.MAX_FILTER_BYTES, parse.MAX_DEPTH, parse.MAX_IN_VALUES)
