"""`/docs`: the description as a page that needs nothing and may load nothing."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

from starlette.requests import Request

from feedsvc import openapi
from feedsvc.adapters.web.api_page import api_page
from feedsvc.openapi_page import page
from tests.web.asking import application

PAGE = openapi.openapi_html()
DOCUMENT = openapi.document()


class Read(HTMLParser):
    """Anchors, links, what would be loaded, and the text that a reader sees."""

    VOID = frozenset({"meta"})

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: set[str] = set()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.text = ""
        self.feed(PAGE)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            self.attributes.add(name)
            if name == "id":
                self.ids.append(str(value))
            if name == "href":
                self.links.add(str(value))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data


READ = Read()


async def test_it_is_served_to_anybody_under_a_policy_that_allows_its_style_only() -> None:
    async with application() as asked:
        response = await asked.request("GET", "/docs", jwt=None)
        assert (response.status_code, response.text) == (200, "<!doctype html><style>p {}</style><p>feedsvc")
        assert response.headers["content-type"] == "text/html; charset=utf-8"
        assert response.headers["x-content-type-options"] == "nosniff"
        digest = base64.b64encode(hashlib.sha256(b"p {}").digest()).decode()
        rules = response.headers["content-security-policy"].split("; ")
        assert rules[:2] == ["default-src 'none'", f"style-src 'sha256-{digest}'"]
        assert {"base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"} == set(rules[2:])


async def test_the_policy_covers_the_style_of_the_real_page() -> None:
    """To the byte, as a browser hashes it."""
    response = await api_page(PAGE.encode())(Request({"type": "http"}))
    (style,) = re.findall(r"<style>(.*?)</style>", PAGE, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in response.headers["content-security-policy"]


def test_it_needs_nothing_from_anywhere() -> None:
    """No script, picture, font or frame, no style on elements, no address of another host."""
    assert READ.open == []
    assert READ.elements.isdisjoint({"script", "img", "link", "iframe", "object", "form", "svg", "base"})
    assert READ.attributes.isdisjoint({"style", "src", "srcset", "onclick", "onload"})
    assert not re.search(r"url\(|@import", PAGE)
    assert {link for link in READ.links if not link.startswith("#")} == {"openapi.yaml"}


def test_every_link_within_it_leads_somewhere_and_every_anchor_is_one_place() -> None:
    assert {link[1:] for link in READ.links if link.startswith("#")} <= set(READ.ids)
    assert len(set(READ.ids)) == len(READ.ids)


def plain(text: str) -> str:
    """As a reader sees it: backquotes are code."""
    return text.replace("`", "")


def test_it_shows_every_operation_with_its_parameters_and_responses() -> None:
    for path, item in DOCUMENT["paths"].items():
        for operation in item.values():
            assert operation["operationId"] in READ.ids and path in READ.text
            assert plain(operation["summary"]) in READ.text
            assert plain(operation.get("description", "")) in READ.text
            for parameter in operation.get("parameters", ()):
                assert parameter["name"] in READ.text and plain(parameter["description"]) in READ.text
            for response in operation["responses"].values():
                if "application/problem+json" not in response.get("content", ()):
                    assert plain(response["description"]) in READ.text


def test_it_shows_every_schema_field_error_and_close_code() -> None:
    for name, schema in DOCUMENT["components"]["schemas"].items():
        assert f"schema-{name}" in READ.ids
        assert plain(schema["description"]) in READ.text
        for field, inner in schema.get("properties", {}).items():
            assert field in READ.text and plain(inner.get("description", "")) in READ.text
    for row in DOCUMENT["x-errors"]:
        assert f"error-{row['code']}" in READ.ids and plain(row["meaning"]) in READ.text
    for row in DOCUMENT["x-close-codes"]:
        assert str(row["closeCode"]) in READ.text and plain(row["action"]) in READ.text


def test_what_the_document_says_cannot_become_markup() -> None:
    made = page({**DOCUMENT, "info": {**DOCUMENT["info"], "summary": "<script>alert(1)</script> & `<b>`"}})
    assert "<script>" not in made and "<b>`" not in made
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; <code>&lt;b&gt;</code>" in made
