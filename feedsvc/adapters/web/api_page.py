"""`GET /docs`: the OpenAPI document as a page for people (protocol.md section 10).

One file that was made with `openapi.yaml` and needs nothing else. The policy allows its own style, by its hash, and
nothing more: no script, no picture, no font, no form, no frame around it.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

_STYLE = re.compile(rb"<style>(.*?)</style>", re.DOTALL)


def api_page(page: bytes) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint that sends `page`, an HTML file."""
    digests = (base64.b64encode(hashlib.sha256(style).digest()).decode() for style in _STYLE.findall(page))
    styles = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    policy = (
        f"default-src 'none'; style-src {styles}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {
        "Cache-Control": "no-cache",
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    response = Response(page, 200, headers, "text/html")

    async def endpoint(request: Request) -> Response:
        return response

    return endpoint
