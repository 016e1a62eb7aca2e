"""`GET /admin`: the status of this process for people, live (protocol.md section 10; docs/admin.md).

The page is a handful of static files and holds no data, so anybody may load it. What it shows it reads from
`/v1/status` as an event stream, with `fetch` and the JWT that the operator gives it, which it keeps in memory only.

A page that is given an operator's JWT must run nothing but its own files: the policy below allows scripts and styles
from here, nothing inline and nothing from elsewhere, no frame around it, and no form that could carry the JWT into a
URL where the script did not load. Paths are relative, so it works behind a proxy that serves it under a prefix.

Rules for editing: no build step, no inline script or style, nothing of HTML from data (`textContent` only; Chromium
enforces it by trusted types), and every state of the connection is told.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from feedsvc.core.errors import REGISTRY

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "json": "application/json",
}
_PAGE = "page.html"
_POLICY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "; ".join(_POLICY),
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def routes() -> list[Route]:
    """`/admin` and its files, read once."""
    files = _files()

    async def page(request: Request) -> Response:
        return files[_PAGE]

    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name == _PAGE or name not in files:
            raise HTTPException(404)
        return files[name]

    async def slash(request: Request) -> Response:
        """The relative paths of the page would be wrong below it."""
        return RedirectResponse("../admin", 308, {"Cache-Control": "no-store"})

    return [
        Route("/admin", page, methods=["GET"]),
        Route("/admin/", slash, methods=["GET"]),
        Route("/admin/{name}", file, methods=["GET"]),
    ]


def _files() -> dict[str, Response]:
    found = {
        item.name: item.read_bytes()
        for item in importlib.resources.files(__name__).joinpath("page").iterdir()
        if item.is_file()
    }
    found["codes.json"] = msgspec.json.encode(close_codes())
    return {
        name: Response(body, 200, HEADERS, _TYPES[name.rpartition(".")[2]]) for name, body in found.items()
    }


def close_codes() -> dict[str, tuple[str, str]]:
    """Name and meaning of each close code of the registry, for the page."""
    return {
        str(entry.close_code): (entry.code, entry.meaning)
        for entry in REGISTRY.values()
        if entry.close_code is not None
    }
