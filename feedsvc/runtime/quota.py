"""How often each tenant may ask for something: a bucket per tenant that fills steadily.

A bucket that is full again is forgotten once it is the one that was used least recently, so the memory is that of the
tenants that asked lately. Constant time, amortised.
"""

from __future__ import annotations

import math

from feedsvc.core.errors import Refusal

_MINUTE_S = 60.0


class Quota:
    """`per_minute` at once, and that many more in each minute. `now` arguments are monotonic seconds."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._empty_at: dict[str, float] = {}
        """When each tenant's bucket would have been empty, had it filled steadily since; in order of use."""

    def spend(self, tenant: str, now: float) -> None:
        """Take one. Raises `Refusal('rate_limited')`, which costs nothing."""
        self.check(tenant, now)
        filled_from = max(self._empty_at.pop(tenant, now - _MINUTE_S), now - _MINUTE_S)
        self._empty_at[tenant] = filled_from + _MINUTE_S / self._per_minute
        self._forget(now)

    def check(self, tenant: str, now: float) -> None:
        """Raises `Refusal('rate_limited')` where `spend` would."""
        filled_from = max(self._empty_at.get(tenant, now - _MINUTE_S), now - _MINUTE_S)
        wait_s = filled_from + _MINUTE_S / self._per_minute - now
        if wait_s > 0:
            raise Refusal(
                "rate_limited",
                f"at most {self._per_minute} of these requests a minute for one tenant",
                retry_after_ms=math.ceil(wait_s * 1000),
            )

    def _forget(self, now: float) -> None:
        """Drop the buckets at the front that are full."""
        while self._empty_at:
            tenant = next(iter(self._empty_at))
            if self._empty_at[tenant] > now - _MINUTE_S:
                return
            del self._empty_at[tenant]
