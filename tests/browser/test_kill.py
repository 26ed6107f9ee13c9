"""`kill -9` of the server while a browser, an event stream and an MCP client are attached (R1, R4)."""

import asyncio

from playwright.async_api import Page, expect
from tests.browser.browsing import WIDE, browser, page
from tests.browser.scene import agent
from tests.patience import PATIENCE
from tests.serve.serving import Served
from tests.serve.streams import listening
from tests.unit.sqlite_stores import opened

from keephold.store.base import EventQuery


async def stored(server: Served) -> list[tuple[int, str]]:
    """All events that the store has, by the store itself."""
    async with opened(server.store) as store:
        return [(event.seq, event.type) for event in await store.events(EventQuery(limit=100_000))]


async def shows(tab: Page, section: str, *ids: str) -> None:
    """Those ids are listed there, in a page that was loaded before all this."""
    place = tab.locator("section", has=tab.get_by_role("heading", name=section))
    for id in ids:
        await expect(place.get_by_role("link", name=id, exact=True).first).to_be_visible()


async def test_R1_everyone_catches_up_with_no_gap_and_no_duplicate(workshop: Served) -> None:
    async with browser() as chromium, page(chromium, WIDE, entry=workshop.entry) as tab, listening(workshop) as events:
        loaded = await tab.evaluate("window.performance.timeOrigin")
        async with agent(workshop) as assistant:
            await assistant.spawn("release", "v1", gate=workshop.path("released"))
            await assistant.spawn("release", "v2", gate=workshop.path("never"))
            await assistant.spawn("build", "app", target="app")
            await assistant.call("create_wait_handle", handleId="approval", type="hook")
            await shows(tab, "Running", "v1", "v2", "app", "approval")
            for number in range(20):
                await assistant.spawn("shout", f"s{number}", text="x")
            workshop.kill()
        await expect(tab.get_by_text("Connection lost, trying again")).to_be_visible()
        workshop.restart()
        async with agent(workshop) as assistant:
            fetched = await assistant.call("release", action="fetch", id="v2")
            assert fetched["state"] == "running"
            workshop.open("released")
            assert await assistant.result("v1") == "released"
            crashed = await assistant.call("build", action="fetch", id="app")
            assert crashed["state"] == "stopped"
            for number in range(20, 40):
                await assistant.spawn("shout", f"s{number}", text="x")
            await assistant.spawn("publish", "publish", version="2.0")
        await expect(tab.get_by_text("Connection lost, trying again")).to_be_hidden()
        await expect(tab.get_by_role("article").filter(has_text="Where should 2.0 go?")).to_be_visible()
        await shows(tab, "Running", "v2", "approval")
        await shows(tab, "Just happened", "s39")
        running = tab.locator("section", has=tab.get_by_role("heading", name="Running"))
        await expect(running.get_by_role("link", name="app", exact=True)).to_have_count(0)
        assert await tab.evaluate("window.performance.timeOrigin") == loaded  # nobody has loaded the page again
        kept = await stored(workshop)
        async with asyncio.timeout(PATIENCE):
            while len(events.heard) < len(kept):  # noqa: ASYNC110 (whatever is missing would be missing for ever)
                await asyncio.sleep(0.05)
        assert [(event.id, event.type) for event in events.heard] == kept
        assert events.connections == 2


async def test_R6_a_server_that_is_told_to_end_lets_everyone_go(workshop: Served) -> None:
    async with browser() as chromium, page(chromium, WIDE, entry=workshop.entry) as tab, listening(workshop) as events:
        async with agent(workshop) as assistant:
            await assistant.spawn("release", "v1", gate=workshop.path("released"))
            await shows(tab, "Running", "v1")
        assert workshop.stop() in (0, 143)
        await expect(tab.get_by_text("Connection lost, trying again")).to_be_visible()
        workshop.restart()
        workshop.open("released")
        await shows(tab, "Just happened", "v1")
        await events.until("handle.stopped")
        assert events.ids == sorted(set(events.ids))
