"""Verifies JWTs with the keys that a key server publishes (`ports.Verifier`).

The set of keys is a cache with one rule: **a JWT waits for the key server only if nothing here can answer it.**

- `start`, or the first JWT, fetches the set; from then on a timer fetches it again before it is `refresh_s` old,
  whether or not anybody connects. So a key that the server no longer names is refused within `refresh_s`, and
  clients whose key is known never wait.
- There is at most one fetch (`_flight`). Who needs its result waits beside it; a client that leaves does not end it.
- A JWT whose key is not in the set may come from a key that is newer than the set: fetch once, look again. Anybody
  can make up such JWTs, so after each such fetch there is none for the same reason until `unknown_kid_cooldown_s` are
  over; in between they are refused at once.
- A fetch that fails changes nothing: the old set stays in use until it is `stale_s` old. The next attempt waits for a
  backoff, and unknown keys do not shorten it.

Whose fault is it? `auth_invalid` is said only of a JWT that the issuer's current keys do not verify. Where that cannot
be known (no set yet, too old a set, an empty one, or an unknown key while the server does not answer), it is
`source_unavailable` and `retryable`, so that clients come back instead of giving up.

A set without a usable key is the server's word and taken: nobody is let in by a key that is gone. But as nobody could
be let in at all, it counts as a failure to be repeated.

The `kid` selects among the published keys; what the header brings along (`jwk`, `jku`, `x5u`, `x5c`) is not looked at.
A JWT whose signature does not verify causes no fetch. Times are monotonic seconds of `clock_monotonic`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence

from feedsvc.adapters.jwt.jwk import JwtHeader, KeySet, KeySetError, parse_jwt_header, parse_key_set
from feedsvc.adapters.jwt.jwks_fetch import FetchError
from feedsvc.adapters.jwt.keys import PUBLIC_ALGORITHMS, JwtKey
from feedsvc.core.limits import Limits
from feedsvc.ports import AuthError, Claims, Metrics, NoMetrics, Verifier

_FIRST_RETRY_S = 1.0
_LONGEST_RETRY_S = 30.0
"""Doubled between the two after each failure: a short fault is over soon, and an outage costs the server little."""
_REFRESH_FROM = 0.7
_REFRESH_TO = 0.9
"""At which part of `refresh_s` the next fetch begins: instances spread, and a first failure still has time."""
_GRACE_S = 1.0
"""A fetch ends by itself when its time is over; who waits for it gives it this much longer to say so."""

Fetch = Callable[[], Awaitable[bytes]]
"""Gives the document of the key server or raises `FetchError`; `jwks_fetch.JwksFetch`."""
VerifierOf = Callable[[JwtKey], Verifier]
"""A verifier of JWTs for one key: checks signature and claims."""


class JwksVerifier:
    """`algorithms` narrow what the keys may verify; none means each key's own. `limits` give the times and bounds.

    `report(event, fields)` hears `jwks.changed` (the usable keys are others than before) and `jwks.failed`. `random`
    returns a float in [0, 1). Call `aclose` at the end.
    """

    def __init__(
        self,
        fetch: Fetch,
        verifier_of: VerifierOf,
        *,
        limits: Limits,
        clock_monotonic: Callable[[], float],
        algorithms: Sequence[str] = (),
        report: Callable[[str, Mapping[str, object]], None] = lambda event, fields: None,
        metrics: Metrics = NoMetrics(),
        random: Callable[[], float] = random.random,
    ) -> None:
        self._fetch = fetch
        self._verifier_of = verifier_of
        self._limits = limits
        self._clock = clock_monotonic
        self._algorithms = frozenset(algorithms)
        self._report = report
        self._metrics = metrics
        self._random = random
        self._keys = KeySet(())
        self._verifiers: list[Verifier] = []
        """One for each of `_keys.keys`."""
        self._fetched_at: float | None = None
        self._failure: str | None = None
        """Why the last fetch failed; None where it did not."""
        self._failures = 0
        self._retry_from = float("-inf")
        self._unknown_from = float("-inf")
        self._flight: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def start(self) -> None:
        """Fetch the keys now, so that the first client finds them. Needs a running loop; safe to leave out."""
        self._begin()

    async def verify(self, jwt: str) -> Claims:
        """As `ports.Verifier`; raises `AuthError("source_unavailable", retryable=True)` where no keys can be had."""
        header = self._header(jwt)
        verifier = self._find(header) or await self._learn(header)
        return await verifier.verify(jwt)

    async def refresh(self) -> str | None:
        """Fetch now, or wait for the fetch under way: None, or for an operator what went wrong."""
        self._begin()
        return self._failure if await self._landed() else "no answer in time"

    async def aclose(self) -> None:
        """End the fetch under way and all later ones. What was learnt stays in use."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._flight is not None:
            self._flight.cancel()
            await asyncio.wait({self._flight})

    # -- one JWT ------------------------------------------------------------------------------------------

    def _header(self, jwt: str) -> JwtHeader:
        if len(jwt) > self._limits.jwt_bytes:
            raise AuthError("auth_invalid", f"the JWT is larger than {self._limits.jwt_bytes} bytes")
        header = parse_jwt_header(jwt)
        if header is None:
            raise AuthError("auth_invalid", "the JWT is malformed")
        if header.alg not in (self._algorithms or PUBLIC_ALGORITHMS):
            raise AuthError("auth_invalid", "the JWT's algorithm is not accepted here")
        return header

    def _find(self, header: JwtHeader) -> Verifier | None:
        """The verifier of the one key that the header means, if it is here. Raises where a fetch could not help."""
        if not self._usable():
            return None
        candidates = self._keys.candidates(header)
        if len(candidates) > 1:
            raise AuthError("auth_invalid", "the JWT has no kid, and several keys fit its algorithm")
        if not candidates and header.kid is not None and self._keys.names(header.kid):
            raise AuthError("auth_invalid", "the JWT's algorithm is not that of the key it names")
        return self._verifiers[candidates[0]] if candidates else None

    async def _learn(self, header: JwtHeader) -> Verifier:
        """The set did not answer: wait for the fetch under way, then for one more if that is allowed.

        Raises `AuthError` where that brings no key either.
        """
        if self._flight is not None:
            if not await self._landed():
                raise _unavailable()
            verifier = self._find(header)
            if verifier is not None:
                return verifier
        if self._may_ask():
            self._begin()
            if not await self._landed():
                raise _unavailable()
            verifier = self._find(header)
            if verifier is not None:
                return verifier
        if not self._usable() or self._failure is not None or self._closed:
            raise _unavailable()
        raise AuthError("auth_invalid", "the issuer publishes no key for this JWT")

    def _may_ask(self) -> bool:
        """Whether a JWT may cause a fetch now; if so, and only because its key is unknown, the cooldown begins."""
        now = self._clock()
        if now < self._retry_from:
            return False
        if self._usable():
            if now < self._unknown_from:
                return False
            self._unknown_from = now + self._limits.jwks_unknown_kid_cooldown_s
        return True

    def _usable(self) -> bool:
        """Whether the set may decide: it holds keys and is not too old."""
        return (
            self._fetched_at is not None
            and bool(self._keys.keys)
            and self._clock() - self._fetched_at < max(self._limits.jwks_stale_s, self._limits.jwks_refresh_s)
        )

    # -- the fetch ----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Start the one fetch, unless it is under way."""
        if self._flight is not None or self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._flight = asyncio.get_running_loop().create_task(self._fly(), name="jwks")

    async def _landed(self) -> bool:
        """Wait for the fetch under way; False if it does not end in time. A cancelled waiter leaves it alone."""
        if self._flight is None:
            return True
        _, pending = await asyncio.wait({self._flight}, timeout=self._limits.jwks_timeout_s + _GRACE_S)
        return not pending

    async def _fly(self) -> None:
        """One fetch and what follows from it. Raises nothing: there may be nobody to hear it."""
        try:
            document = await self._fetch()
            keys = parse_key_set(document, self._algorithms, max_keys=self._limits.jwks_keys)
        except (FetchError, KeySetError) as error:
            self._failed(str(error))
        except Exception as error:
            self._failed(f"unexpected {type(error).__name__}")
        else:
            self._took(keys)
        finally:
            self._flight = None
            self._plan()

    def _plan(self) -> None:
        """When to fetch next."""
        if self._failure is None:
            share = _REFRESH_FROM + (_REFRESH_TO - _REFRESH_FROM) * self._random()
            wait_s = self._limits.jwks_refresh_s * share
            self._retry_from = float("-inf")
        else:
            longest_s = min(_FIRST_RETRY_S * 2.0 ** min(self._failures - 1, 16), _LONGEST_RETRY_S)
            wait_s = longest_s * (0.5 + 0.5 * self._random())
            self._retry_from = self._clock() + wait_s
        if not self._closed:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._begin)

    def _took(self, keys: KeySet) -> None:
        self._fetched_at = self._clock()
        changed = keys != self._keys
        if changed:
            self._keys = keys
            self._verifiers = [self._verifier_of(published.key) for published in keys.keys]
            self._report("jwks.changed", {"keys": len(keys.keys), "ignored": "; ".join(keys.ignored)})
        if not keys.keys:
            self._failed("the key server publishes no usable key")
            return
        self._metrics.count("jwks_fetches", outcome="changed" if changed else "unchanged")
        self._failure = None
        self._failures = 0

    def _failed(self, reason: str) -> None:
        self._failure = reason
        self._failures += 1
        age_s = None if self._fetched_at is None else round(self._clock() - self._fetched_at)
        self._metrics.count("jwks_fetches", outcome="failed")
        self._report("jwks.failed", {"reason": reason, "failures": self._failures, "age_s": age_s})


def _unavailable() -> AuthError:
    message = "the key server does not answer; try again later"
    return AuthError("source_unavailable", message, retryable=True)
