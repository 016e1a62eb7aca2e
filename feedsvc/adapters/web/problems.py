"""RFC 9457 problem documents from the registry."""

from __future__ import annotations

import math

import orjson
from starlette.responses import Response

from feedsvc.core.errors import Refusal, problem


def problem_response(refusal: Refusal) -> Response:
    """The HTTP answer to a refusal."""
    headers = {"Cache-Control": "no-store"}
    if refusal.retry_after_ms is not None:
        headers["Retry-After"] = str(max(1, math.ceil(refusal.retry_after_ms / 1000)))
    if refusal.entry.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(
        orjson.dumps(problem(refusal.code, refusal.message)),
        refusal.entry.status,
        headers,
        "application/problem+json",
    )
