"""From a request for server-sent events and the token that it came with to a subscribe for each of its topics.

`snapshot` and `startAtOperationTime` are for all topics. A topic that the token knows resumes after it; the others
start at that time, or now. So an EventSource, which repeats the URL that it began with, does not start over when it
reconnects.

Linear in the number of topics, of which there are few.
"""

from __future__ import annotations

from msgspec import UNSET

from feedsvc.core.errors import Refusal
from feedsvc.core.messages import StreamRequest, Subscribe
from feedsvc.core.stream_token import StreamPositions, StreamSealer, StreamToken, request_key
from feedsvc.core.tokens import TokenInvalidError
from feedsvc.core.topics import Topic


class StreamPlan:
    """`requests` are in the order of the topics, their `id` is the index. Raises `Refusal`.

    `ended`: this client was told not to come back, and is to be told so again.
    """

    def __init__(self, sealer: StreamSealer, tenant: str, asked: StreamRequest) -> None:
        self._sealer = sealer
        self._tenant = tenant
        token = _opened(sealer, tenant, asked)
        try:
            keys = [request_key(topic) for topic in asked.topics]
        except ValueError:
            raise Refusal("bad_request", "the topic is nested too deep") from None
        self._others = [text for key, text in token.resume_tokens.items() if key not in keys]
        self.ended = token.ended
        self.positions = StreamPositions(sealer, tenant, keys)
        self.requests: list[Subscribe] = []
        for index, (topic, key) in enumerate(zip(asked.topics, keys, strict=True)):
            known = token.resume_tokens.get(key)
            if known is not None:
                self.positions.begins(index, known)
            self.requests.append(
                Subscribe(
                    str(index),
                    topic,
                    resume_after=UNSET if known is None else known,
                    start_at_operation_time=asked.start_at_operation_time if known is None else UNSET,
                    snapshot=asked.snapshot,
                )
            )

    def by_binding(self, request: Subscribe, topic: Topic) -> str | None:
        """The resume token for a request that the stream token does not know as it is spelled now."""
        for resume_token in self._others:
            if self._sealer.binding(self._tenant, resume_token) == topic.binding:
                self.positions.begins(int(request.id), resume_token)
                return resume_token
        return None


def _opened(sealer: StreamSealer, tenant: str, asked: StreamRequest) -> StreamToken:
    if asked.resume_after is UNSET:
        return StreamToken({}, ended=False)
    try:
        return sealer.open(tenant, asked.resume_after)
    except TokenInvalidError:
        raise Refusal("token_invalid", "the resume token does not open; drop it and start anew") from None
