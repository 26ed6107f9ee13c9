"""Very many handles are stored: pages come, lists are read a page at a time, what one looks for is found."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.serve_stock import stock
from playwright.async_api import expect
from tests.browser.browsing import LOOKS, Camera, browser, look_at, page
from tests.browser.workshop import CONFIG
from tests.serve.serving import Served, served
from tests.soak import tries

MANY, PARKED, PAGE = tries(20_000, soak=100_000), 20, 50


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Served]:
    """A server whose store is full."""
    asyncio.run(stock(tmp_path / "store.db", stopped=MANY - PARKED, parked=PARKED))
    with served(tmp_path, CONFIG) as server:
        yield server


async def test_S5_very_many_handles_are_read_a_page_at_a_time(full: Served, camera: Camera) -> None:
    async with browser() as chromium, page(chromium, entry=full.entry) as tab:
        await expect(tab.get_by_role("heading", name="Running")).to_be_visible()
        await camera.take(tab, "many-home", LOOKS[0])
        for look in (LOOKS[0], LOOKS[-1]):
            await look_at(tab, look)
            await tab.goto(f"{full.dashboard}/handles")
            seen: list[str] = []
            for _ in range(3):
                rows = tab.locator("tr[data-row]")
                await expect(rows).to_have_count(PAGE)
                seen += await tab.locator("tr[data-row] .col-id a").all_inner_texts()
                await tab.get_by_role("link", name="Older").click()
                await expect(tab.get_by_role("link", name=seen[-1], exact=True)).to_have_count(0)
            assert len(set(seen)) == 3 * PAGE
            assert seen[0] == f"hook-{PARKED - 1}"
        await tab.goto(f"{full.dashboard}/handles?q=build-15555")
        await expect(tab.locator("tr[data-row]")).to_have_count(1)
        for place in ("/conversations", "/conversations/conversation-3", "/stats", "/notifications", "/keys"):
            await tab.goto(full.dashboard + place)
            await expect(tab.get_by_role("heading", level=1)).to_have_count(1)
        async with full.client() as http:
            last = (await http.get("/api/handles", params={"sort": "oldest", "limit": 1})).json()["handles"][0]
        await tab.goto(f"{full.dashboard}/handles/{last['uid']}")
        await expect(tab.get_by_role("heading", level=1)).to_contain_text(last["id"])
