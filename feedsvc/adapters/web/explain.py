"""`POST /v1/topics/explain`: what a `subscribe` with this topic would get, without a stream (protocol.md section 10).

The body is the `topic` of a `subscribe`. It takes the same way as one: origin, JWT, policy, images, filter; only
no tail is opened. 200 is the answer, also where the topic would be refused (`refused`), for that is what was asked; a
problem document says that the question could not be answered: who asks is not known, the body is no topic, MongoDB
does not answer, or this tenant asks too often.
"""

from __future__ import annotations

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from feedsvc.adapters.web.authentication import Authentication
from feedsvc.adapters.web.body import json_body
from feedsvc.adapters.web.problems import problem_response
from feedsvc.core.errors import Refusal
from feedsvc.core.explain import Explained, Refused, refused
from feedsvc.core.messages import TopicRequest, decode_topic_request
from feedsvc.core.session import Principal
from feedsvc.runtime.client_context import ClientContext
from feedsvc.runtime.quota import Quota

_NOT_ANSWERED = ("source_unavailable", "internal")
"""Refusals that say nothing about the topic."""


class ExplainEndpoint:
    """Create it in the running loop."""

    def __init__(self, context: ClientContext, authentication: Authentication) -> None:
        limits = context.hub.limits
        self._context = context
        self._authentication = authentication
        self._max_bytes = limits.frame_bytes
        self._quota = Quota(limits.explains_per_minute)

    async def __call__(self, request: Request) -> Response:
        try:
            claims = await self._authentication.bearer(request.headers, request.url.query)
            principal = self._authentication.principal(claims)
            self._quota.spend(principal.tenant, self._context.clock.monotonic())
            topic = decode_topic_request(await json_body(request, self._max_bytes))
            answer = await self._answer(principal, topic)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        except Refusal as refusal:
            self._context.metrics.count("explains", outcome="problem")
            return problem_response(refusal)
        self._context.metrics.count(
            "explains", outcome="refused" if isinstance(answer, Refused) else "explained"
        )
        return Response(msgspec.json.encode(answer), 200, {"Cache-Control": "no-store"}, "application/json")

    async def _answer(self, principal: Principal, topic: TopicRequest) -> Explained | Refused:
        try:
            return await self._context.hub.requests.explain(principal, topic)
        except Refusal as refusal:
            if refusal.code in _NOT_ANSWERED:
                raise
            return refused(refusal)
