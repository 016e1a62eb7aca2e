"""How near the oldest position that any client holds is to the end of the oplog.

A client's position is what it was told last (`Subscription.told`): an event, a checkpoint, or its own token where
nothing came since. It grows old while its topic is quiet and no checkpoint comes, while it waits for a catch-up tail,
or while its tail is dead; once the oplog's first entry has passed it, a reconnect ends in `resync`. Exact topics need
pre-images as well, which may go sooner, so each kind is compared with its own window and the worse share counts.

Not counted: who has no position to lose, because the service owes it a `subscribed`, a `resync` or a snapshot. What was
handed to a transport counts as had: a reader that takes nothing is closed after `slow_after_s`.

A compromise: it looks at every subscription, about 0.2 us each, whenever metrics or status are asked for. To keep a
minimum up to date instead would cost more, on each delivery.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from feedsvc.core.status import OldestPosition
from feedsvc.core.subscription import Place, Subscription
from feedsvc.ports import OplogWindow

_OWED = frozenset({Place.LOST, Place.SNAPSHOT, Place.CLOSED})


def oldest_position(
    subscriptions: Iterable[Subscription], window: OplogWindow | None, wall: float
) -> OldestPosition | None:
    """None where no client holds a position. `wall` (epoch seconds) stands in for the newest entry where the oplog may
    not be read; then there is no window."""
    oldest = _oldest(subscriptions)
    newest = int(wall) if window is None else window.last >> 32
    ages = {exact: max(0, newest - (time >> 32)) for exact, time in oldest.items()}
    if not ages:
        return None
    if window is None:
        return OldestPosition(max(ages.values()), None, None)
    reach = {False: window.seconds, True: window.seconds_with_images}
    used, exact = max((_share(age, reach[exact]), exact) for exact, age in ages.items())
    return OldestPosition(ages[exact], reach[exact], used)


def _oldest(subscriptions: Iterable[Subscription]) -> dict[bool, int]:
    """The least cluster time that was told, of exact topics (True) and of the others (False)."""
    found: dict[bool, int] = {}
    for subscription in subscriptions:
        subscription.settle()
        told = subscription.told
        if told is None:
            continue
        topic: Any = subscription.topic
        time, exact = told.cluster_time, topic.exact
        if time < found.get(exact, math.inf) and subscription.place not in _OWED:
            found[exact] = time
    return found


def _share(age_s: int, window_s: int) -> float:
    """How much of the window is used; more than 1 where the position is lost."""
    if window_s == 0:
        return float(age_s > 0)
    return age_s / window_s
