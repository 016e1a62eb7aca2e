"""Room for tails: each costs MongoDB a stream, and there are few for all tenants.

Where none is left, one that only lingers gives way. Of those for collections that the policy does not name (`*`) a
tenant has a share: it could invent names without end. A tail counts for each tenant that has a subscription on it, and
for the one that had it opened while nobody has: it is opened before its subscription is there, and lingers behind it.
What tenants share in one database counts for each of them, so that nobody is charged for what only others use.

A tail that lingers gives way to its own tenant first where that has reached its share. Linear in the tails, at an
opening only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from feedsvc.core.changes import TailScope
from feedsvc.core.errors import Refusal
from feedsvc.core.limits import Limits
from feedsvc.runtime.feed import Feed


class TailRoom:
    """`feeds` are those of the hub, which tells of every opening, end and subscription."""

    def __init__(self, limits: Limits, feeds: Mapping[TailScope, Feed]) -> None:
        self._most = limits.max_tails
        self._share = max(1, limits.max_tails * limits.tail_share // 100)
        self._feeds = feeds
        self._opened_by: dict[TailScope, str] = {}
        self._held: Counter[tuple[str, TailScope]] = Counter()

    def make(self, tenant: str, *, named: bool) -> TailScope | None:
        """Which feed to end so that `tenant` can have one more, None where there is room. `named`: the policy names
        the collection. Raises `Refusal('topic_limit')`."""
        if not named:
            own = [scope for scope in self._opened_by if self._counts(tenant, scope)]
            if len(own) >= self._share:
                return self._lingering(
                    own,
                    f"the tenant watches {self._share} collections that the policy does not name, the most it may; "
                    "unsubscribe from others",
                )
        if len(self._feeds) >= self._most:
            return self._lingering(
                self._feeds, f"this instance watches {self._most} collections, the most it may"
            )
        return None

    def opened(self, tenant: str, scope: TailScope, *, named: bool) -> None:
        if not named:
            self._opened_by[scope] = tenant

    def ended(self, scope: TailScope) -> None:
        self._opened_by.pop(scope, None)

    def enter(self, tenant: str, scope: TailScope) -> None:
        """A subscription of the tenant begins."""
        self._held[tenant, scope] += 1

    def exit(self, tenant: str, scope: TailScope) -> None:
        """A subscription of the tenant has ended."""
        self._held[tenant, scope] -= 1
        if not self._held[tenant, scope]:
            del self._held[tenant, scope]

    def _counts(self, tenant: str, scope: TailScope) -> bool:
        if (tenant, scope) in self._held:
            return True
        return self._opened_by[scope] == tenant and self._feeds[scope].idle_since is not None

    def _lingering(self, scopes: Iterable[TailScope], otherwise: str) -> TailScope:
        """One that nobody needs. One that is not open yet has been asked for just now."""
        for scope in scopes:
            feed = self._feeds[scope]
            if feed.idle_since is not None and feed.opened.is_set():
                return scope
        raise Refusal("topic_limit", otherwise)
