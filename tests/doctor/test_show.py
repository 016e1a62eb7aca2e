"""The report for people: what is alike is said once."""

from __future__ import annotations

import asyncio

import pytest

from feedsvc.doctor.findings import Findings
from feedsvc.doctor.questions import AT_ONCE, Silent, for_each
from feedsvc.doctor.show import as_text


def test_alike_findings_are_one_line_and_a_remedy_comes_once() -> None:
    findings = Findings()
    for number in range(6):
        findings.add("change_stream", "error", "refused", subject=f"shop.c{number}", remedy="Ask for it.")
        findings.add("find", "ok", "may be read", subject=f"shop.c{number}")
    findings.add("images", "error", "off", subject="shop.a", remedy="Switch them on.")
    findings.add("images", "error", "gone", subject="shop.b", remedy="Switch them on.")
    findings.skip(("oplog_window", "image_expiry", "connection_pool"), "no answer")
    lines = as_text(findings.report("0", None, strict=False)).splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "error change_stream shop.c0, shop.c1, shop.c2, shop.c3 and 2 others: refused",
        "-> Ask for it.",
        "ok find shop.c0, shop.c1, shop.c2, shop.c3 and 2 others: may be read",
        "error images shop.a: off",
        "error images shop.b: gone",
        "-> Switch them on.",
        "skipped oplog_window, image_expiry, connection_pool: no answer",
        "",
        "8 error, 0 warning, 3 skipped, 6 ok",
    ]


async def test_a_silent_server_is_asked_no_more() -> None:
    """A few at a time; who was asked beside the first that got no answer is waited for, the rest is not asked."""
    asked: list[int] = []
    together, over = asyncio.Event(), asyncio.Event()

    async def ask(number: int) -> None:
        asked.append(number)
        if len(asked) == AT_ONCE:
            together.set()
        if number == 0:
            await together.wait()
            over.set()
            raise Silent("gone")
        await over.wait()

    with pytest.raises(Silent, match="gone"):
        await for_each(range(100), ask)
    assert asked == list(range(AT_ONCE))
