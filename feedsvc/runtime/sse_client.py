"""A client whose topics are all named at the start: a stream of server-sent events.

The same client as over a WebSocket, with the same session, subscriptions and deadlines, but for two things. It cannot
say anything later, so all its topics are resolved before the first byte and one refusal refuses the stream. And it
cannot subscribe again, so a subscription that ends with `resubscribe` ends the stream: the client reconnects with its
`id:`, which is the same as subscribing again from where it stands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal

from feedsvc.core import session
from feedsvc.core.errors import Refusal
from feedsvc.core.messages import Subscribe
from feedsvc.core.session import Principal
from feedsvc.core.topics import Topic
from feedsvc.ports import Claims
from feedsvc.runtime.client import Client
from feedsvc.runtime.held import Held
from feedsvc.runtime.requests import Place

Resume = Callable[[Subscribe, Topic], str | None]
"""The resume token for a request that has none, now that its topic is known."""


class SseClient(Client):
    """`begin` instead of `start`; `receive` is never called."""

    async def begin(self, claims: Claims, requests: Sequence[Subscribe], resume: Resume) -> None:
        """Write `welcome` and attach all topics. Raises `Refusal`; then call `transport_closed`."""
        limit = self.hub.limits.subscriptions_per_connection
        if len(requests) > limit:
            raise Refusal("subscription_limit", f"a connection holds at most {limit} subscriptions")
        principal = self.admitted(claims)
        resolving = (self._resolved(principal, request, resume) for request in requests)
        places = await asyncio.gather(*resolving, return_exceptions=True)
        if self._session.state is session.State.CLOSED:
            raise Refusal("going_away", "this instance is shutting down; connect to another")
        self._session.verifying()
        wall = self._context.clock.wall()
        self._perform(self._session.verified(principal, now=self.now(), wall=wall))
        for request, place in zip(requests, places, strict=True):
            if isinstance(place, BaseException):
                raise place
            if place.topic.topic_id in self._session.topics:
                raise Refusal("already_subscribed", f"topic {request.id} is the same as one before it")
            self._hold(place, request)
        self._after(self._session.settled(self.now()))

    async def _resolved(self, principal: Principal, request: Subscribe, resume: Resume) -> Place:
        place = await self.resolve(principal, request)
        if request.resume_token is not None or request.snapshot == "always":
            return place
        resume_token = resume(request, place.topic)
        if resume_token is None:
            return place
        known = Subscribe(request.id, request.topic, resume_after=resume_token, snapshot=request.snapshot)
        return await self.resolve(principal, known)

    def end_held(
        self, held: Held, code: Literal["snapshot_too_large", "topic_changed"], *, resubscribe: bool
    ) -> None:
        super().end_held(held, code, resubscribe=resubscribe)
        if resubscribe:
            self.close("going_away")
        elif not self._held:
            self._perform(self._session.close("bad_request", f"no topic is left: {code}"))
