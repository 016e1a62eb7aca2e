"""The JSON body of a request, bounded in size and in time."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from feedsvc.adapters.web.http_protocol import REQUEST_WITHIN_S
from feedsvc.core.errors import Refusal


async def json_body(request: Request, max_bytes: int) -> bytes:
    """The whole body. Raises `Refusal`, without reading what is too long to the end, and `ClientDisconnect`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal("bad_request", "Content-Type must be application/json")
    body = b""
    try:
        async with asyncio.timeout(REQUEST_WITHIN_S):
            async for part in request.stream():
                body += part
                if len(body) > max_bytes:
                    raise Refusal("bad_request", f"the body must not be longer than {max_bytes} bytes")
    except TimeoutError:
        raise Refusal("bad_request", f"the body did not come within {REQUEST_WITHIN_S:g} s") from None
    return body
