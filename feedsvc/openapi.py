"""`openapi.yaml`, its page and `docs/errors.md`, generated from the messages and the error registry.

`python -m feedsvc.openapi` writes them, `--check` fails where a file is not what would be written. Nothing in either is
written by hand: to change them, change `core.messages`, `core.errors` or the routes below and in `openapi_routes`.

OpenAPI does not describe WebSocket frames. They are in `components.schemas`, under `ClientFrame` and `ServerFrame`, so
that generators of types find them.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from feedsvc import openapi_examples
from feedsvc.core.errors import REGISTRY, ErrorEntry, close_action
from feedsvc.openapi_explain import explain
from feedsvc.openapi_operators import admin, status
from feedsvc.openapi_page import page
from feedsvc.openapi_routes import (
    TAGS,
    description,
    docs,
    everywhere,
    health,
    metrics,
    preflight,
    ticket_scheme,
    tickets,
)
from feedsvc.openapi_schemas import closing, schemas
from feedsvc.openapi_sse import sse
from feedsvc.openapi_ws import websocket

COMMAND = "python -m feedsvc.openapi"
_ABOUT = (
    "Clients subscribe to topics (a collection, a filter, fields) over a WebSocket or as server-sent events, and can "
    "resume after any position that the oplog still holds. The frames of both are the schemas below `ClientFrame` and "
    "`ServerFrame`. Errors of HTTP are problem documents (RFC 9457); `x-errors` lists the codes, `x-close-codes` what "
    "ends a connection and what the client does then. HEAD is answered where GET is, but for `/v1/sse`."
)
_READY = "Connections are welcome. Fails while draining; during an outage of MongoDB it says `degraded`."

_ON_FRAMES = frozenset(
    (
        *("bad_request", "auth_invalid", "auth_expired", "auth_in_url", "forbidden", "unknown_collection"),
        *("filter_invalid", "filter_unsupported", "images_required", "already_subscribed", "not_subscribed"),
        *("token_invalid", "subscription_limit", "topic_limit", "snapshot_unavailable", "rate_limited"),
        *("source_unavailable", "internal"),
    )
)
"""What an `error` frame can say (protocol.md section 8)."""

_ACTIONS = (
    (range(4000, 4100), "Do not reconnect: it would be refused again."),
    (range(4100, 4200), "Get new credentials once, then reconnect; stop if they are refused too."),
    (range(4200, 4300), "Reconnect with backoff and full jitter, and resume."),
    (
        range(4300, 4400),
        'Wait `retryAfterMs`, which is in the close reason (`{"retryAfterMs":n}`), then reconnect and resume.',
    ),
)
"""Close codes by range: what a client does is decided by the range alone (protocol.md section 8)."""


def action_of(close_code: int) -> str:
    """What a client does after this close code of ours."""
    return next(action for codes, action in _ACTIONS if close_code in codes)


def document() -> dict[str, Any]:
    """The OpenAPI 3.1 description of the routes that exist."""
    made = {
        "openapi": "3.1.0",
        "info": {
            "title": "feedsvc",
            "version": "1",
            "summary": "Change feeds from MongoDB to many WebSocket clients.",
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "The instance that serves this document."}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "paths": {
            "/v1/ws": {"get": websocket()},
            "/v1/sse": sse(),
            "/v1/tickets": tickets(),
            "/v1/topics/explain": {"post": explain(), "options": preflight("Explain", "POST")},
            "/v1/status": status(),
            "/healthz/live": health("live", "The process works."),
            "/healthz/startup": health("startup", "MongoDB has answered for the first time."),
            "/healthz/ready": health("ready", _READY),
            "/metrics": metrics(),
            **admin(),
            "/openapi.yaml": description(),
            "/docs": docs(),
        },
        "components": {
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "bearerFormat": "JWT",
                    "description": "A JWT of the issuer that the service is configured for.",
                },
                "ticket": ticket_scheme(),
            },
            "schemas": schemas(),
            "responses": everywhere(),
            "examples": openapi_examples.problem_examples(),
        },
        "x-close-codes": [
            {"closeCode": code, "code": entry.code, "action": action_of(code)} for code, entry in closing()
        ],
    }
    answered = set(_codes_of_responses(made))
    made["x-errors"] = [_error_row(entry, answered) for entry in REGISTRY.values()]
    return made


@functools.cache
def openapi_yaml() -> str:
    """The file `openapi.yaml`."""
    text = yaml.dump(
        document(), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110, default_flow_style=False
    )
    return f"# Generated by `{COMMAND}`; do not edit.\n{text}"


def openapi_html() -> str:
    """The page of `/docs`."""
    return page(document())


def errors_markdown() -> str:
    """The file `docs/errors.md`."""
    lines = [
        "# Errors and close codes",
        "",
        f"Generated by `{COMMAND}` from the registry in `feedsvc/core/errors.py`; do not edit.",
        "",
        "A code appears in `error` frames, behind close codes, in HTTP problem documents (RFC 9457, `code`) and as a",
        "label of metrics. *Retry* says whether the same request can succeed later without being changed.",
        "",
        "| code | meaning | HTTP status | close code | retry |",
        "|---|---|---|---|---|",
    ]
    for entry in REGISTRY.values():
        closes = "" if entry.close_code is None else str(entry.close_code)
        retry = "yes" if entry.retryable else "no"
        lines.append(f"| `{entry.code}` | {entry.meaning} | {entry.status} | {closes} | {retry} |")
    lines += [
        "",
        "An error frame leaves the connection open. A code with a close code can also end it:",
        "",
        "| close code | code | what the client does |",
        "|---|---|---|",
    ]
    lines += [f"| {code} | `{entry.code}` | {action_of(code)} |" for code, entry in closing()]
    lines += [
        "",
        "The range decides, so that a client also understands codes that are added later:",
        "",
        "| range | `action` of a `close` event | what the client does |",
        "|---|---|---|",
    ]
    lines += [
        f"| {codes.start}-{codes.stop - 1} | `{close_action(codes.start)}` | {action} |"
        for codes, action in _ACTIONS
    ]
    lines += [
        "",
        "Of the standard codes, 1002, 1003, 1007 and 1009 are mistakes of the client: do not reconnect. 1001, 1006,",
        "1011 and 1012 are not: reconnect with backoff and resume.",
    ]
    return "\n".join(lines) + "\n"


FILES: Mapping[str, Callable[[], str]] = {
    "openapi.yaml": openapi_yaml,
    "feedsvc/openapi.yaml": openapi_yaml,  # what an installed package serves, and as a page:
    "feedsvc/openapi.html": openapi_html,
    "docs/errors.md": errors_markdown,
}
"""Path from the root of the repository to what makes its content."""


def outdated(root: Path) -> list[str]:
    """The generated files that are missing or not what would be written."""
    return [
        path
        for path, make in FILES.items()
        if not (root / path).is_file() or (root / path).read_text(encoding="utf-8") != make()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files, or check them; the exit code."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Generate openapi.yaml and docs/errors.md.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing, exit with 1 where a file differs"
    )
    parser.add_argument("--root", type=Path, default=Path(), help="the repository (default: here)")
    options = parser.parse_args(arguments)
    if options.check:
        stale = outdated(options.root)
        for path in stale:
            print(f"{path} is not up to date: run `{COMMAND}` and commit the result", file=sys.stderr)
        return 1 if stale else 0
    for path, make in FILES.items():
        (options.root / path).parent.mkdir(parents=True, exist_ok=True)
        (options.root / path).write_text(make(), encoding="utf-8")
    return 0


class _Dumper(yaml.SafeDumper):
    """No anchors: equal parts are written out, which every tool reads."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _codes_of_responses(part: object) -> Iterator[str]:
    """The codes of all problem documents below."""
    if isinstance(part, dict):
        yield from part.get("application/problem+json", {}).get("examples", ())
        for inner in part.values():
            yield from _codes_of_responses(inner)


def _error_row(entry: ErrorEntry, answered: Container[str]) -> dict[str, Any]:
    """`in`: a problem document of a response, an `error` frame, or what closes a connection."""
    places = {
        "response": entry.code in answered,
        "frame": entry.code in _ON_FRAMES,
        "close": entry.close_code is not None,
    }
    return {
        "code": entry.code,
        "meaning": entry.meaning,
        "status": entry.status,
        "closeCode": entry.close_code,
        "retryable": entry.retryable,
        "in": [place for place, there in places.items() if there],
    }


if __name__ == "__main__":
    raise SystemExit(main())
