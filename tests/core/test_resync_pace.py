"""How long clients wait before they fetch again."""

from __future__ import annotations

from feedsvc.core import resync_pace
from feedsvc.core.resync_pace import ResyncPace


def test_the_wait_doubles_up_to_a_minute() -> None:
    """For each topic by itself."""
    pace = ResyncPace(0.0)
    waits = [pace.retry_after_ms("t") for _ in range(40)]
    assert waits == sorted(waits)
    assert (waits[0], waits[1], waits[-1]) == (250, 500, 30_000)
    assert pace.retry_after_ms("u") == 250


def test_the_jitter_is_half_of_the_wait() -> None:
    """Clients of one topic do not come at once."""
    assert [ResyncPace(jitter).retry_after_ms("t") for jitter in (0.0, 0.5, 0.99)] == [250, 375, 497]


def test_a_bounded_number_of_topics_is_remembered() -> None:
    """The one that was resynced longest ago is forgotten first."""
    pace = ResyncPace(0.0)
    for number in range(resync_pace._MAX_TOPICS + 1):
        pace.retry_after_ms(str(number))
    assert pace.retry_after_ms("1") == 500
    assert pace.retry_after_ms("0") == 250
