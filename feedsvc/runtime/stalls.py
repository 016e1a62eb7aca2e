"""Which scopes have no healthy upstream, since when, and whose fault that is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feedsvc.core.changes import TailScope
from feedsvc.ports import Clock
from feedsvc.runtime.deployment import Deployment
from feedsvc.runtime.feed import Feed
from feedsvc.runtime.tail import Report


class Stalls:
    """Call `look` now and then; `feeds` is the hub's own table, read and never changed.

    Those who hold a topic of a scope are told at once when it stalls or recovers (`Listener.stall_changed`).
    """

    def __init__(
        self,
        feeds: Mapping[TailScope, Feed],
        deployment: Deployment,
        clock: Clock,
        report: Report,
        *,
        stall_after_s: float,
    ) -> None:
        self._feeds = feeds
        self._deployment = deployment
        self._clock = clock
        self._report = report
        self._stall_after_s = stall_after_s
        self._since: dict[TailScope, float] = {}

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._since)

    def __contains__(self, scope: TailScope) -> bool:
        return scope in self._since

    def in_use(self) -> list[TailScope]:
        """The scopes with subscriptions whose upstream does not answer."""
        return [scope for scope in self._since if self._feeds[scope].placement.subscriptions]

    def only_here(self) -> bool:
        """Whether MongoDB answered a question that was put after a change stream in use had stopped answering.

        A frozen majority point is not meant: its streams answer, and every instance sees the same.
        """
        answered_at, now = self._deployment.pulse.answered_at, self._clock.monotonic()
        return (
            answered_at is not None
            and self._deployment.failure is None
            and any(
                answered_at > self._since[scope] and self._feeds[scope].silent(now, self._stall_after_s)
                for scope in self.in_use()
            )
        )

    def look(self, scope: TailScope, feed: Feed) -> None:
        now, stall_after_s = self._clock.monotonic(), self._stall_after_s
        stalled = feed.silent(now, stall_after_s) or feed.frozen(now, stall_after_s, self._deployment.pulse)
        if stalled == (scope in self._since):
            return
        if stalled:
            self._since[scope] = now
        else:
            del self._since[scope]
        self._report("tail.stalled" if stalled else "tail.recovered", {"scope": scope})
        for subscription in feed.placement.all_subscriptions():
            listener: Any = subscription.outlet
            listener.stall_changed()

    def forget(self, scope: TailScope) -> None:
        """Its feed ends."""
        self._since.pop(scope, None)
