"""One scene and one Chromium for the tests of a module; Chromium is the distribution's (`.ci/run` installs it)."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright

from tests.browser.scene import Scene, scene
from tests.support.service import make_jwt

WITHIN_S = 60.0
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    path = next(filter(None, map(shutil.which, CHROMIUM)), None)
    assert path is not None, f"install one of {', '.join(CHROMIUM)}: on Debian, apt-get install chromium"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seen(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with scene(tmp_path_factory.mktemp("scene"), drain="2") as found:
        yield found


class Admin:
    """A tab at `/admin`. `console`: all that the browser complained about."""

    def __init__(self, page: Page, service_url: str) -> None:
        self.page = page
        self.console: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.console.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.console.append(f"error: {error}"))
        page.on("request", lambda request: self.requests.append(request.url))
        self._url = f"{service_url}/admin"

    async def load(self) -> None:
        await self.page.goto(self._url)
        await self.visible("#sign-in")

    async def sign_in(self, jwt: str | None = None) -> None:
        """By keyboard: the field has the focus."""
        await self.page.keyboard.insert_text(jwt or make_jwt("ops", scope="feedsvc:admin"))
        await self.page.keyboard.press("Enter")

    async def show(self) -> None:
        await self.load()
        await self.sign_in()
        await self.visible("#status")

    async def visible(self, selector: str) -> None:
        await self.page.wait_for_selector(selector, state="visible", timeout=WITHIN_S * 1000)

    async def text(self, selector: str) -> str:
        found = await self.page.text_content(selector)
        return " ".join((found or "").split())

    async def rows(self, table: str) -> dict[str, list[str]]:
        """What a table shows, by the first words of each row; numbers without their commas."""
        cells: list[list[str]] = await self.page.eval_on_selector_all(
            f"{table} tbody tr",
            "rows => rows.map(row => [...row.cells].map(cell => cell.querySelector('.value').textContent))",
        )
        return {first: [value.replace(",", "") for value in rest] for first, *rest in cells}

    async def until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        """Ask again until it holds: the page is written once a second."""
        async with asyncio.timeout(WITHIN_S):
            while not await holds():
                await self.page.wait_for_timeout(100)

    async def until_text(self, selector: str, words: str) -> None:
        async def holds() -> bool:
            return words in await self.text(selector)

        try:
            await self.until(holds)
        except TimeoutError:
            raise AssertionError(f"{selector} says {await self.text(selector)!r}, not {words!r}") from None

    async def shoot(self, name: str) -> None:
        """Keep a picture where ADMIN_PICTURES names a directory."""
        directory = os.environ.get("ADMIN_PICTURES")
        if directory:
            await self.page.screenshot(path=f"{directory}/{name}.png", full_page=True)


OpenAdmin = Callable[..., Awaitable[Admin]]


@pytest_asyncio.fixture(loop_scope="module")
async def open_admin(browser: Browser, seen: Scene) -> AsyncIterator[OpenAdmin]:
    """Opens tabs that are closed after the test; `width`, `scheme` as the visitor's system has them."""
    contexts: list[Any] = []

    async def opened(width: int = 1280, scheme: Any = "light") -> Admin:
        context = await browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
        contexts.append(context)
        return Admin(await context.new_page(), f"http://127.0.0.1:{seen.service.port}")

    yield opened
    for context in contexts:
        await context.close()
