"""Must show 4: `/admin` in Chromium, on a phone and on a desk, in light and dark.

No complaint of the browser, the figures of `/metrics`, all of it by keyboard, and every state of the connection told.
"""

from __future__ import annotations

import asyncio
import os
import re

import pytest
from axe_playwright_python.async_playwright import Axe

from tests.browser.conftest import Admin, OpenAdmin
from tests.browser.scene import STALLED, TENANTS, Scene
from tests.support.service import Service, client_of, make_jwt

pytestmark = [pytest.mark.verify, pytest.mark.asyncio(loop_scope="module")]
SHORT = os.environ.get("VERIFY_SCALE") == "short"
LOOKS = [(390, "light"), (1280, "dark")] + [(390, "dark"), (1280, "light")] * (not SHORT)


async def metrics(service: Service) -> dict[str, int]:
    """Series to value, labels and all, without the prefix."""
    page = (await asyncio.to_thread(service.get, "/metrics"))[1]
    lines = (line.rsplit(" ", 1) for line in page.splitlines() if line and line[0] != "#")
    return {name.removeprefix("feedsvc_"): int(float(value)) for name, value in lines if value != "NaN"}


def by_label(found: dict[str, int], name: str) -> dict[str, int]:
    """A counter by the value of its one label, but for zeros."""
    pattern = re.compile(rf'{name}{{\w+="(\w+)"}}')
    return {match[1]: value for key, value in found.items() if (match := pattern.fullmatch(key)) and value}


async def shown(admin: Admin, table: str) -> dict[str, int]:
    """The last column of a table of counters by the first word of each row."""
    return {name.split()[0]: int(cells[-1]) for name, cells in (await admin.rows(table)).items()}


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
async def test_the_figures_are_those_of_the_metrics(
    seen: Scene, open_admin: OpenAdmin, width: int, scheme: str
) -> None:
    admin = await open_admin(width, scheme)
    await admin.show()

    async def equal() -> bool:
        found = await metrics(seen.service)
        for name in ("connections", "subscriptions", "topics", "tails"):
            if int((await admin.text(f"#figure-{name} .number")).replace(",", "")) != found[name]:
                return False
        return (
            await shown(admin, "#resyncs") == by_label(found, "resyncs_total") != {}
            and await shown(admin, "#closes") == by_label(found, "closes_total") != {}
            and await shown(admin, "#tail-errors") == by_label(found, "tail_errors_total")
            and len(await admin.rows("#tails")) == found["tails"]
        )

    await admin.until(equal)
    tenants = {name: int(cells[0]) for name, cells in (await admin.rows("#tenants")).items()}
    assert tenants == {"acme": 3, "globex": 2, "initech": 1}
    tails = await admin.rows("#tails")
    assert set(tails) == {f"{tenant}.{name}" for tenant, names in TENANTS.items() for name in names}
    assert sum(int(cells[2]) for cells in tails.values()) == (await metrics(seen.service))["subscriptions"]
    overflow = await admin.page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert overflow <= 0, "the page is wider than the screen"
    assert admin.console == []
    origin = f"http://127.0.0.1:{seen.service.port}/"
    assert all(url.startswith(origin) and "eyJ" not in url for url in admin.requests)
    print(
        f"\n/admin at {width} pixels, {scheme}: {len(tails)} tails, {sum(tenants.values())} connections, "
        f"{await shown(admin, '#resyncs')}: equal to /metrics; {len(admin.console)} complaints of the browser"
    )
    await admin.shoot(f"serving-{width}-{scheme}")


async def nothing_is_hard_to_use(admin: Admin) -> None:
    """What axe-core finds by the rules of WCAG 2.2 AA: contrast, names, roles, structure."""
    options = {
        "runOnly": ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice"],
        "resultTypes": ["violations"],
    }
    result = await Axe().run(admin.page, options=options)
    found = [
        (violation["id"], [node["html"][:120] for node in violation["nodes"]][:3])
        for violation in result.response["violations"]
    ]
    assert found == []
    assert len(result.response["passes"]) > 10


async def test_all_of_it_works_by_keyboard(seen: Scene, open_admin: OpenAdmin) -> None:
    admin = await open_admin()
    page = admin.page
    await admin.load()
    await nothing_is_hard_to_use(admin)

    async def focused() -> str:
        """The id of what has the focus; it is seen to have it."""
        return str(
            await page.evaluate(
                "() => { const e = document.activeElement, s = getComputedStyle(e);"
                " return e.matches(':focus-visible') && s.outlineStyle === 'none' ? 'unseen' : e.id; }"
            )
        )

    assert await focused() == "jwt"
    await admin.sign_in()
    await admin.visible("#status")
    await page.keyboard.press("Shift+Tab")
    assert await focused() == "leave"
    await page.keyboard.press("Shift+Tab")
    assert await focused() == "pause"
    await page.keyboard.press("Space")
    await admin.until_text("#link-text", "Paused at")
    assert await page.get_by_role("button", name="Pause", pressed=True).count() == 1
    before = await admin.text("#status")
    async with client_of(seen.service, "acme"):
        await page.wait_for_timeout(2_500)
        assert await admin.text("#status") == before
        await page.keyboard.press("Space")
        await admin.until_text("#figure-connections .number", "7")
    await admin.until_text("#figure-connections .number", "6")
    assert await focused() == "pause", "what is written anew keeps the focus"
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await admin.visible("#sign-in")
    assert await focused() == "jwt" and not await page.is_visible("#status")
    for _ in range(4):
        await page.keyboard.press("Tab")
        assert await focused() != "unseen"
    assert admin.console == []


async def test_parts_have_their_names_for_those_who_hear_the_page(open_admin: OpenAdmin) -> None:
    """On the narrow page too, where tables are laid out as blocks."""
    admin = await open_admin(390)
    await admin.show()
    await admin.visible("#tails tbody tr")
    heard = await admin.page.locator("body").aria_snapshot()
    for part in (
        "- banner:",
        "- main:",
        "- contentinfo:",
        '- heading "feedsvc" [level=1]',
        '- region "Figures":',
        '- columnheader "Scope"',
        '- rowheader "acme.orders"',
    ):
        assert part in heard, heard
    meter = admin.page.get_by_role("meter", name="how close the oldest client is")
    assert "of the window used" in (await meter.get_attribute("aria-valuetext") or "")
    assert await admin.page.get_by_role("status").count() == 1, "what is read out by itself is one line"


@pytest.mark.parametrize(
    ("jwt", "words"),
    [
        (make_jwt("ops"), "lacks feedsvc:admin"),
        ("no.jwt.at.all", "The JWT is refused"),
        (make_jwt("ops", scope="feedsvc:admin", ttl_s=-5), "has expired"),
    ][: 1 if SHORT else None],
)
async def test_a_jwt_that_does_not_do_is_refused_in_words(
    open_admin: OpenAdmin, jwt: str, words: str
) -> None:
    admin = await open_admin(390, "dark")
    await admin.load()
    await admin.sign_in(jwt)
    await admin.until_text("#refused", words)
    assert not await admin.page.is_visible("#status")
    assert await admin.page.input_value("#jwt") == ""
    assert await admin.page.get_attribute("#jwt", "aria-invalid") == "true"
    await nothing_is_hard_to_use(admin)
    await admin.sign_in()
    await admin.visible("#status")


@pytest.mark.parametrize(("width", "scheme"), LOOKS[: 1 if SHORT else None])
async def test_a_tail_that_stalls_is_seen_and_heard_at_once_and_so_is_its_end(
    seen: Scene, open_admin: OpenAdmin, width: int, scheme: str
) -> None:
    admin = await open_admin(width, scheme)
    await admin.show()
    await admin.until_text("#state", "Serving")
    seen.stall()
    try:
        await admin.until_text("#state", "Degraded")
        await admin.until_text("#announced", f"initech.{STALLED}")
        first, cells = next(iter((await admin.rows("#tails")).items()))
        assert (first, cells[0]) == (f"initech.{STALLED}", "stalled")
        await admin.until_text("#errors", "tail.stalled")
        assert "SourceUnavailable" in await admin.text("#tail-errors")
        await nothing_is_hard_to_use(admin)
        await admin.shoot(f"stalled-{width}-{scheme}")
    finally:
        seen.heal()
    assert "another instance" not in await admin.text("#link-text")
    if not SHORT:  # the service waits longer with each failure
        await admin.until_text("#state", "Serving")
    assert admin.console == []


@pytest.mark.skipif(SHORT, reason="one more of the states of the page")
async def test_a_page_that_cannot_show_what_it_is_told_says_so(open_admin: OpenAdmin) -> None:
    """It stays open over an update of the service; here a part of it is missing."""
    admin = await open_admin()
    await admin.show()
    await admin.page.evaluate("document.getElementById('closes').remove()")
    await admin.until_text("#link-text", "Reload it")
    assert not any("eyJ" in line for line in admin.console)


@pytest.mark.skipif(SHORT, reason="waits for an expiry; /v1/status shows the same by default")
async def test_a_jwt_that_ends_takes_what_it_showed_with_it(open_admin: OpenAdmin) -> None:
    admin = await open_admin()
    await admin.load()
    await admin.sign_in(make_jwt("ops", scope="feedsvc:admin", ttl_s=3))
    await admin.visible("#status")
    await admin.until_text("#refused", "has expired")
    assert not await admin.page.is_visible("#status")
    assert admin.console == []


@pytest.mark.skipif(SHORT, reason="waits for a drain, a start and a reconnect")
async def test_a_service_that_goes_and_comes_back_is_told_honestly(
    seen: Scene, open_admin: OpenAdmin
) -> None:
    """The last of the module: its clients leave. Draining, disconnected since, stale, back, and that counts are new."""
    admin = await open_admin(1280, "dark")
    await admin.show()
    leaving = asyncio.create_task(asyncio.to_thread(seen.service.stop))
    await admin.until_text("#verdict-title", "Shutting down")
    await leaving
    await admin.until_text("#link-text", "Disconnected since")
    await admin.until_text("#state", "Disconnected")
    assert "What is below is of" in await admin.text("#link-text")
    assert (
        await admin.page.evaluate("getComputedStyle(document.getElementById('status')).filter")
        == "grayscale(1)"
    )
    assert "Disconnected" in await admin.text("#announced")
    await admin.shoot("disconnected")
    await asyncio.to_thread(seen.service.start)
    await admin.page.click("#retry")
    await admin.until_text("#state", "Serving")
    await admin.until_text("#link-text", "started anew")
    await admin.until_text("#tails-none", "No tail is open")
    assert await admin.page.is_visible("#tails-none") and not await admin.page.is_visible("#tails")
    complaints = [line for line in admin.console if "ERR_CONNECTION_REFUSED" not in line]
    assert complaints == [], "but for the attempts that met nobody"
    await admin.shoot("back")
