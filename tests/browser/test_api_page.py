"""`/docs` in Chromium: as the service sends it, on a phone and on a desk, in light and dark, without a complaint."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser

from tests.support.service import Service

pytestmark = [pytest.mark.verify, pytest.mark.asyncio(loop_scope="module")]
SHORT = os.environ.get("VERIFY_SCALE") == "short"
LOOKS = [(390, "light"), (1280, "dark")] + [(390, "dark"), (1280, "light")] * (not SHORT)
PARTS = ["header", "nav", "#credentials", "#healthReady", "#schema-Event", "#closes"]
"""One of each kind: all of it takes axe-core minutes."""
RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice"],
    "resultTypes": ["violations"],
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Its database does not answer: the page is there all the same."""
    service = Service("mongodb://127.0.0.1:1/?directConnection=true", tmp_path_factory.mktemp("service"))
    service.launch()
    service.wait_for("/healthz/live", 200)
    yield service
    service.kill()


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
async def test_it_reads_well(browser: Browser, service: Service, width: int, scheme: Any) -> None:
    """It asks for nothing else, breaks no rule of its policy, is no wider than the screen; axe-core finds nothing by
    the rules of WCAG 2.2 AA. Screens are kept where PICTURES names a directory."""
    context = await browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
    try:
        page = await context.new_page()
        complaints: list[str] = []
        requests: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        url = f"http://127.0.0.1:{service.port}/docs"
        answer = await page.goto(url)
        assert answer is not None and answer.status == 200
        assert requests == [url] and complaints == []
        styled = await page.evaluate("getComputedStyle(document.body).margin")
        assert styled == "0px", "the policy refuses the style"
        assert await page.evaluate("document.documentElement.scrollWidth") == width
        if width < 1000:
            await page.click("nav summary")
        await page.click('nav a[href="#schema-Event"]:visible')
        place = await page.evaluate("document.getElementById('schema-Event').getBoundingClientRect().top")
        assert 0 <= place < 100
        await page.evaluate("document.querySelectorAll('details').forEach(e => e.open = true)")
        assert await page.evaluate("document.documentElement.scrollWidth") == width
        if directory := os.environ.get("PICTURES"):
            await page.screenshot(path=Path(directory) / f"docs-{width}-{scheme}.png")
        found = (await Axe().run(page, context=PARTS, options=RULES)).response
        assert [(v["id"], [n["html"][:120] for n in v["nodes"]][:3]) for v in found["violations"]] == []
        assert len(found["passes"]) > 10
    finally:
        await context.close()


async def test_what_is_not_its_own_is_not_run(browser: Browser, service: Service) -> None:
    """The policy as a browser reads it: a script or a style that somebody got into the page."""
    page = await browser.new_page()
    try:
        refused: list[str] = []
        page.on("console", lambda message: refused.append(message.text))
        await page.goto(f"http://127.0.0.1:{service.port}/docs")
        for name, text in (("script", "document.title = 'run'"), ("style", "body { margin: 9px }")):
            await page.evaluate(
                "([name, text]) => { const e = document.createElement(name); e.textContent = text;"
                " document.head.append(e); }",
                [name, text],
            )
        assert await page.title() == "feedsvc API"
        assert await page.evaluate("getComputedStyle(document.body).margin") == "0px"
        assert len(refused) == 2 and all("Content Security Policy" in text for text in refused)
    finally:
        await page.close()
