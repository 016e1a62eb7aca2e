"""The small evaluator says what Prometheus would, and refuses what it cannot read."""

from __future__ import annotations

import pytest

from tests.ops.holding import holds


@pytest.mark.parametrize(
    ("alert", "line", "expected"),
    [
        ("FeedsvcOplogDistance", "feedsvc_oldest_position_used_ratio 0.51", True),
        ("FeedsvcOplogDistance", "feedsvc_oldest_position_used_ratio 0.5", False),
        ("FeedsvcOplogDistance", "feedsvc_oldest_position_used_ratio NaN", False),
        ("FeedsvcSourceUnavailable", "feedsvc_source_up 0.0", True),
        ("FeedsvcSourceUnavailable", "feedsvc_source_up 1.0", False),
        ("FeedsvcOplogShort", "feedsvc_oplog_window_seconds 3599.0", True),
    ],
)
def test_a_comparison_with_a_number(alert: str, line: str, expected: bool) -> None:
    assert holds(alert, f"{line}\n") is expected


def test_what_it_cannot_decide_is_no_answer() -> None:
    with pytest.raises(ValueError):
        holds("FeedsvcPumpDelay", "")
    with pytest.raises(KeyError):
        holds("FeedsvcSourceUnavailable", 'feedsvc_source_up{instance="a"} 0.0\n')
