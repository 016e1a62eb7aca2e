"""`/admin` as it is served: to anybody, with a strict policy, from its own files only; its texts cover the codes."""

from __future__ import annotations

import json
import logging
import re
from importlib.resources import files
from typing import get_args

from feedsvc.adapters.telemetry.logs import LEVELS
from feedsvc.adapters.telemetry.metric_kinds import CLOSE_CODES
from feedsvc.adapters.web.admin import HEADERS
from feedsvc.core.errors import REGISTRY
from feedsvc.core.messages import ResyncReason
from tests.web.asking import application, code

PAGE = files("feedsvc.adapters.web.admin").joinpath("page")
SOURCES = {item.name: item.read_text(encoding="utf-8") for item in PAGE.iterdir()}


async def test_anybody_may_load_it_and_it_holds_no_data() -> None:
    """The same bytes before and after there is something to tell."""
    async with application() as asked:
        before = await asked.request("GET", "/admin", jwt=None)
        await (await asked.world.signed_in("alice")).subscribed("users")
        after = await asked.request("GET", "/admin", jwt=None)
        assert (before.status_code, before.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert before.content == after.content == SOURCES["page.html"].encode()


async def test_every_file_has_the_policy_and_is_kept_by_nobody() -> None:
    async with application() as asked:
        for path in (
            "/admin",
            *(f"/admin/{name}" for name in SOURCES if name != "page.html"),
            "/admin/codes.json",
        ):
            response = await asked.request("GET", path, jwt=None)
            assert response.status_code == 200, path
            assert {name: response.headers[name] for name in HEADERS} == HEADERS
            assert response.headers["cache-control"] == "no-store"
            assert (await asked.request("HEAD", path, jwt=None)).status_code == 200


def test_the_policy_allows_nothing_inline_nothing_from_elsewhere_and_no_frame() -> None:
    policy = dict(part.split(" ", 1) for part in HEADERS["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["frame-ancestors"] == "'none'"
    assert {policy[f"{kind}-src"] for kind in ("script", "style", "img", "connect")} == {"'self'"}


async def test_what_is_not_a_file_of_it_is_not_there() -> None:
    async with application() as asked:
        for path in (
            "/admin/page.html",
            "/admin/__init__.py",
            "/admin/..%2f__init__.py",
            "/admin/x/y",
            "/admin/%00",
        ):
            response = await asked.request("GET", path, jwt=None)
            assert (response.status_code, code(response)) == (404, "not_found"), path
        response = await asked.request("POST", "/admin", jwt=None)
        assert (response.status_code, code(response)) == (405, "method_not_allowed")
        slash = await asked.request("GET", "/admin/", jwt=None)
        assert (slash.status_code, slash.headers["location"]) == (308, "../admin")


def test_nothing_comes_from_elsewhere_and_nothing_is_inline() -> None:
    """Also no markup from data, and nothing that outlives the page."""
    for name, text in SOURCES.items():
        addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'<]*", text)) - {
            "http://www.w3.org/2000/svg"
        }
        assert not addresses, name
        for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "localStorage"):
            assert word not in text, name
        assert "sessionStorage" not in text and "cookie" not in text, name
    page = SOURCES["page.html"]
    assert not re.search(r"\son\w+=|\sstyle=|<style|<script(?![^>]*\ssrc=)", page)
    for path in re.findall(r"(?:src|href)=\"([^\"]+)\"", page):
        assert not path.startswith("/"), "a prefix of a proxy would be lost"


def test_every_reason_code_and_event_has_its_words() -> None:
    """A literal of the protocol that the page does not know would be shown without its meaning."""
    texts = SOURCES["texts.js"]
    for word in (*get_args(ResyncReason), *(f'"{event}"' for event in _loud())):
        assert re.search(rf"^  {re.escape(word)}: ", texts, re.MULTILINE), word
    for close in {*CLOSE_CODES} & {"1000", "1005", "1006"}:
        assert f"  {close}: [" in texts


def _loud() -> list[str]:
    return [event for event, level in LEVELS.items() if level >= logging.WARNING]


async def test_close_codes_come_from_the_registry() -> None:
    async with application() as asked:
        found = json.loads((await asked.request("GET", "/admin/codes.json", jwt=None)).content)
        entries = [entry for entry in REGISTRY.values() if entry.close_code is not None]
        assert found == {str(entry.close_code): [entry.code, entry.meaning] for entry in entries}
