"""One connected client: carries out what its session decides, and holds its subscriptions.

The session says what a frame means, the hub does it, the connection carries the bytes; `held.py` turns what happens
on a subscription into frames, and `clocked_client.py` has what nobody asked for. Everything runs in callbacks; a task
exists only while a JWT is verified or a subscription is resolved, one at a time, so frames stay in order.

What if ... the transport goes away: `transport_closed` detaches everything at once and cancels the task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Literal

import msgspec

from feedsvc.core import messages, session
from feedsvc.core.errors import Refusal
from feedsvc.core.resync_pace import ResyncPace
from feedsvc.core.session import Effect, Principal
from feedsvc.ports import AuthError, Claims, Connection
from feedsvc.runtime.client_context import ClientContext
from feedsvc.runtime.clocked_client import ClockedClient
from feedsvc.runtime.held import Held
from feedsvc.runtime.requests import Place


class Client(ClockedClient):
    """`closed` is called once, when the client is gone and holds nothing any more."""

    def __init__(
        self,
        context: ClientContext,
        connection: Connection,
        connection_id: str,
        closed: Callable[[Client], None],
    ) -> None:
        super().__init__(context, connection, connection_id)
        self._closed = closed
        self._tenant: str | None = None
        self._waiting = False
        self._task: asyncio.Task[None] | None = None
        self.resync_pace = ResyncPace(self.jitter)
        self._applied: bytes | None = None

    # -- what the transport calls -------------------------------------------------------------------------

    def start(self, claims: Claims | None) -> None:
        """The socket was accepted, with verified credentials in the upgrade or without any."""
        if claims is None:
            self._wait_for_auth()
        else:
            self._session.verifying()
            self._admit(claims)
            self._after(self._session.settled(self.now()))
        self._arm()

    def receive(self, text: str | bytes) -> None:
        """A text frame arrived. Never blocks: the reader of the socket must stay free for pings."""
        self._perform(self._session.receive(text, self.now()))
        self._arm()

    def transport_closed(self) -> None:
        """The socket is gone, for whatever reason. Safe to call twice."""
        if self._gone:
            return
        self._gone = True
        self._session.closed()
        self._disarm()
        if self._task is not None:
            self._task.cancel()
        for held in list(self._held.values()):
            self._drop(held)
        self._waited()
        if self._tenant is not None:
            self.hub.admission.leave(self._tenant)
        self._closed(self)

    # -- what the lifecycle calls -------------------------------------------------------------------------

    def goaway(self, reconnect_after_ms: int) -> None:
        self._perform(self._session.goaway(reconnect_after_ms))

    # -- credentials --------------------------------------------------------------------------------------

    def _wait_for_auth(self) -> None:
        try:
            self.hub.admission.wait()
        except Refusal as refusal:
            self._perform(self._session.close(refusal.code, retry_after_ms=refusal.retry_after_ms))
        else:
            self._waiting = True

    def _waited(self) -> None:
        if self._waiting:
            self._waiting = False
            self.hub.admission.waited()

    # -- carrying out effects -----------------------------------------------------------------------------

    def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case session.Send(frame):
                    self.send(frame)
                case session.Verify(jwt):
                    self._run(partial(self._verify, jwt))
                case session.Open(frame):
                    self._run(partial(self._open, frame))
                case session.Drop(topic):
                    if topic in self._held:  # an answer before it may have closed the connection
                        self._drop(self._held[topic])
                case session.Reauthorize():
                    self._reauthorize()
                case session.CheckpointDue():
                    self._beat(self._checkpoint())
                case session.HeartbeatDue():
                    self._beat(self._heartbeat())
                case session.Close(code, reason):
                    for held in list(self._held.values()):
                        self._drop(held)
                    self.connection.close(code, reason)

    def _run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._to_the_end(work), name="client-request")

    async def _to_the_end(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Carry out a request, then go on with the frames behind it. A fault of ours closes: the session waits for it,
        and rights that could not be applied anew must not stay in force."""
        try:
            await work()
            self._after(self._session.settled(self.now()))
        except Exception as error:
            self._failed("request", error)
            self.close("internal")

    async def _verify(self, jwt: str) -> None:
        try:
            with self._context.tracer.span("feedsvc.auth"):
                claims = await self._context.verifier.verify(jwt)
        except AuthError as error:
            self._refuse_auth(error.code, error.message)
        else:
            self._admit(claims)

    def _admit(self, claims: Claims) -> None:
        """The JWT is genuine: does it name a tenant, and has that tenant room?"""
        try:
            principal = self.admitted(claims)
        except Refusal as refusal:
            if refusal.retry_after_ms is None:
                self._refuse_auth(refusal.code, refusal.message)
            else:
                self._after(self._session.close(refusal.code, retry_after_ms=refusal.retry_after_ms))
            return
        self._after(self._session.verified(principal, now=self.now(), wall=self._context.clock.wall()))

    def admitted(self, claims: Claims) -> Principal:
        """Whom a genuine JWT speaks for. Raises `Refusal` where it is over, or its tenant is none or has no room."""
        tenant = self.hub.policy.tenant(claims.claims)
        if claims.expires_at <= self._context.clock.wall():
            raise Refusal("auth_expired", "the JWT has expired")
        if self._tenant is None and not self._gone:
            self.hub.admission.admit(tenant, self.now())
            self._tenant = tenant
            self._context.metrics.count("connections_opened")
            self._waited()
        return Principal(tenant, claims.subject, claims.scopes, claims.claims, claims.expires_at)

    def _refuse_auth(self, code: str, message: str) -> None:
        self._context.metrics.count("auth_refused", code=code)
        self._after(self._session.refused_auth(code, message, now=self.now()))

    async def _open(self, frame: messages.Subscribe) -> None:
        principal = self._session.principal
        assert principal is not None
        effects: Sequence[Effect] = ()
        try:
            place = await self.resolve(principal, frame)
            if place.topic.topic_id in self._session.topics:
                message = "this connection already holds that topic"
                effects = self._error("already_subscribed", message, frame.id, place.topic.topic_id)
            elif self._session.state is session.State.OPEN:
                self._hold(place, frame)
        except Refusal as refusal:
            effects = self._error(refusal.code, refusal.message, frame.id, None, refusal.retry_after_ms)
        except Exception as error:
            effects = self._error("internal", f"logged as {self._failed('subscribe', error)}", frame.id)
        self._after(effects)

    async def resolve(self, principal: Principal, frame: messages.Subscribe) -> Place:
        """Where a subscription begins. Raises `Refusal`."""
        with self._context.tracer.span("feedsvc.subscribe") as note:
            place = await self.hub.resolve(principal, frame)
            note(topic=place.topic.topic_id, collection=place.topic.namespace.collection)
            return place

    def _error(
        self,
        code: str,
        message: str,
        request_id: str,
        topic: str | None = None,
        retry_after_ms: int | None = None,
    ) -> list[Effect]:
        return self._session.error(
            code, message, self.now(), request_id=request_id, topic=topic, retry_after_ms=retry_after_ms
        )

    # -- subscriptions ------------------------------------------------------------------------------------

    def _hold(self, place: Place, frame: messages.Subscribe) -> None:
        held = Held(self, place.topic, frame)
        self._held[place.topic.topic_id] = held
        self._session.topics.add(place.topic.topic_id)
        try:
            held.subscription = self.hub.attach(place, held)
            held.feed = self.hub.feed(held.topic)
        except BaseException:
            self._forget(held)
            raise
        if held.topic.topic_id not in self._held:
            # `subscribed` was too much for a peer that does not read, and closed this client.
            self._drop(held)

    def _drop(self, held: Held) -> None:
        self._forget(held)
        subscription, held.subscription = held.subscription, None
        if subscription is not None:
            self.hub.detach(subscription)

    def end_held(
        self, held: Held, code: Literal["snapshot_too_large", "topic_changed"], *, resubscribe: bool
    ) -> None:
        """End a subscription whose topic is not served to this client any more; it may be told so twice."""
        if held.subscription is not None:
            self._drop(held)
            self.send(messages.Unsubscribed(held.topic.topic_id, code, resubscribe=resubscribe))

    def _forget(self, held: Held) -> None:
        self._held.pop(held.topic.topic_id, None)
        self._session.topics.discard(held.topic.topic_id)

    def _reauthorize(self) -> None:
        """P5: from now on these claims decide. What they no longer allow ends before anything else is sent.

        The same claims once more change nothing, and a client that repeats its JWT costs nothing.
        """
        principal = self._session.principal
        assert principal is not None
        rights = msgspec.json.encode((principal.scopes, principal.claims), order="deterministic")
        if rights == self._applied:
            return
        for held in list(self._held.values()):
            try:
                now = self.hub.requests.topic_now(principal, held.request.topic, held.topic)
            except Refusal:
                self._drop(held)
                self.send(messages.Unsubscribed(held.topic.topic_id, "forbidden", resubscribe=False))
                continue
            if now != held.topic:
                self._drop(held)
                self.send(messages.Unsubscribed(held.topic.topic_id, "topic_changed", resubscribe=True))
        self._applied = rights

    def count_resync(self, reason: str) -> None:
        self._context.metrics.count("resyncs", reason=reason)
