"""A day of three agents at the dashboard: what failed is found, a journal of 10,000 steps is scrolled, and pictures."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import expect
from tests.browser.browsing import NARROW_DARK, WIDE, Camera, axe, browser, look_at, overflows, page
from tests.browser.scene import agent
from tests.browser.three_agents import STEPS, fill
from tests.browser.workshop import CONFIG
from tests.serve.serving import Served, served

MOST_ROWS = 1500
"""Entries of a journal that a page has at once, at most."""


@pytest.fixture
def evening(tmp_path: Path) -> Iterator[tuple[Served, str]]:
    """A server at the end of the day, and the uid of the long migration."""
    uid = asyncio.run(fill(tmp_path / "store.db", steps=STEPS))
    with served(tmp_path, CONFIG) as server:
        yield server, uid


@pytest.mark.timeout(240)
async def test_a_day_of_three_agents(evening: tuple[Served, str], camera: Camera) -> None:
    server, uid = evening
    async with agent(server) as assistant, browser() as chromium:
        for number in range(3):
            assistant.spawning("deploy", f"web-{number}", host=f"web-{number}")
        async with page(chromium, entry=server.entry) as tab:
            await expect(tab.get_by_role("article")).to_have_count(3)
            places = {
                "day-home": "/",
                "day-handles": "/handles",
                "day-failed": "/handles?state=failed&time=today",
                "day-conversation": "/conversations/builder?zoom=4",
                "day-journal": f"/handles/{uid}",
            }
            for name, place in places.items():
                await tab.goto(server.dashboard + place)
                await expect(tab.get_by_role("heading", level=1)).to_have_count(1)
                for look in (WIDE, NARROW_DARK):
                    await look_at(tab, look)
                    assert await axe(tab) == [] and not await overflows(tab), name
                    await camera.take(tab, name, look)
            tabs = await tab.get_by_role("navigation", name="Pages").get_by_role("link").all()
            for look in (NARROW_DARK, WIDE):
                await look_at(tab, look)
                for each in tabs:
                    await expect(each).to_be_in_viewport(ratio=1)
            await tab.goto(f"{server.dashboard}/handles/{uid}")
            journal = tab.get_by_role("region", name="Entries of the journal")
            first = journal.get_by_text("row-00000", exact=True)
            async with asyncio.timeout(200):
                while not await first.count():  # blocks are loaded as they come near
                    await journal.evaluate("box => { box.scrollTop += 5000; }")
                    assert await journal.locator("details.step").count() < MOST_ROWS
            await expect(first).to_be_visible()
            await first.click()
            await expect(tab.get_by_text('"row": 0', exact=False)).to_be_visible()
